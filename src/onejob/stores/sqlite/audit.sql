-- name: append_audit
-- in: :entry (JSON) :now
insert into audit_log (at, entry) values (:now, :entry)
-- name: trim_audit
-- Delete up to two of the oldest entries that exceed the limits of the audit log.
-- in: :keep (entries) :keep_for (seconds) :now
delete from audit_log
where id in (select id from audit_log order by id limit 2)
  and (at < :now - :keep_for or id <= (select max(id) from audit_log) - :keep)
-- name: audit
-- in: :before (an id, or null) :limit :keep_for (seconds) :now
-- out: id, at and entry, newest first
select id, at, entry from audit_log
where id < coalesce(:before, 9223372036854775807) and at >= :now - :keep_for
order by id desc limit :limit
