-- Write a queued job that holds its identity, if no job holds it: the outcome of most submissions, at a third of the
-- cost of `submit`, which runs when this writes nothing.
-- in: the fields of the submission, :wake_in (seconds) :now
-- out: the job; nothing when its id exists or another job holds its identity
with {clock},
inserted as (
  {insert_holder}
  from clock
  on conflict do nothing
  returning *
),
inserted_history as (
  insert into onejob.history ({history_columns})
  select id, entries, now, 'submit', state, attempt, node, :source from inserted, clock
)
select inserted.* from inserted
