-- name: append_audit
-- in: :kind :entry (JSON) :now
insert into audit_log (at, kind, entry) values (:now, :kind, :entry)
-- name: trim_audit
-- Delete up to two of the oldest entries of a kind that exceed the limits of the audit log.
-- in: :kind :keep (entries) :keep_for (seconds) :now
delete from audit_log
where id in (select id from audit_log where kind = :kind order by id limit 2)
  and (
    at < :now - :keep_for
    or id <= (select id from audit_log where kind = :kind order by id desc limit 1 offset :keep)
  )
-- name: audit
-- in: :before (an id, or null) :limit :keep_for (seconds) :now
-- out: id, at and entry, newest first
select id, at, entry from audit_log
where id < coalesce(:before, 9223372036854775807) and at >= :now - :keep_for
order by id desc limit :limit
