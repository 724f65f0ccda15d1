-- Write a queued job that holds its identity, if nothing is in its way: what most submissions come to, at a third of the
-- cost of submit, which is asked when this writes nothing.
-- in: the fields of the submission, :wake_in (seconds) :now
-- out: the job; nothing when its id exists or another job holds its identity
with {clock},
placed as (
  {insert_holder}
  from clock
  on conflict do nothing
  returning *
),
noted as (
  insert into onejob.history ({history_columns})
  select id, entries, now, 'submit', state, attempt, node, :source from placed, clock
)
select placed.* from placed
