-- name: clock
-- in: :now (null for the server's clock)
clock as (
  select coalesce(cast(:now as float8), extract(epoch from statement_timestamp())::float8) as now
)
-- name: unsynchronized_clock
-- The clock of a statement whose commit need not wait for the disk, because it is harmless if a crash of the server
-- forgets the statement. The setting holds until the end of the transaction, so all of its statements must be of this
-- kind; a user's transaction (:joins) keeps its own setting.
clock as (
  select coalesce(cast(:now as float8), extract(epoch from statement_timestamp())::float8) as now,
    case when not cast(:joins as boolean) then set_config('synchronous_commit', 'off', true) end
)
