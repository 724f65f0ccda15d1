-- Refused requests and logins are kept apart from what operators did, which they must not displace.
alter table audit_log add column kind text not null default 'action';
create index audit_log_kind on audit_log (kind, id);
