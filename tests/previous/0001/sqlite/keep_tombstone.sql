-- Remember what had come of a job that was removed, if it had ended.
-- in: :id :state :finished_at :tombstone_for (seconds) :now
insert or replace into tombstones (id, state, finished_at, purged_at, until)
select :id, :state, :finished_at, :now, :now + :tombstone_for
where :finished_at is not null and :tombstone_for > 0
