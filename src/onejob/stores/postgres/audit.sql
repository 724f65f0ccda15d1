-- name: append_audit
-- in: :kind :entry (JSON) :now
with {clock}
insert into onejob.audit_log (at, kind, entry) select now, :kind, :entry from clock
-- name: trim_audit
-- Delete up to two of the oldest entries of a kind that exceed the limits, also for a role that may not delete any.
-- in: :kind :keep (entries) :keep_for (seconds) :now
with {clock}
select onejob.trim_audit_log(:kind, cast(:keep as bigint), cast(:keep_for as float8), now) from clock
-- name: audit
-- in: :before (an id, or null) :limit :keep_for (seconds) :now
-- out: id, at and entry, newest first
with {clock}
select id, at, entry from onejob.audit_log, clock
where id < coalesce(cast(:before as bigint), 9223372036854775807) and at >= now - cast(:keep_for as float8)
order by id desc
limit cast(:limit as bigint)
