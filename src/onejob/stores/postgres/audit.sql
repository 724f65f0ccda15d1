-- name: append_audit
-- Append an entry to the audit log, and delete up to two of the oldest of its kind that exceed the limits.
-- in: :kind :entry (JSON) :keep (entries) :keep_for (seconds) :now
with {clock},
oldest as (
  select id, at from onejob.audit_log where kind = :kind order by id limit 2 for update skip locked
),
deleted as (
  delete from onejob.audit_log as entries using oldest, clock
  where entries.id = oldest.id and (
    oldest.at < now - cast(:keep_for as float8)
    or oldest.id <= (
      select id from onejob.audit_log where kind = :kind order by id desc offset cast(:keep as bigint) - 1 limit 1
    )
  )
)
insert into onejob.audit_log (at, kind, entry) select now, :kind, :entry from clock
-- name: audit
-- in: :before (an id, or null) :limit :keep_for (seconds) :now
-- out: id, at and entry, newest first
with {clock}
select id, at, entry from onejob.audit_log, clock
where id < coalesce(cast(:before as bigint), 9223372036854775807) and at >= now - cast(:keep_for as float8)
order by id desc
limit cast(:limit as bigint)
