-- Write queued jobs as `admit` does, for many submissions in their order, so that concurrent batches do not deadlock.
-- variants: charged
-- in: :submissions (JSON, with :wake_after and :is_sent) :now
--     with quotas also :charges (JSON: an array of objects with the id of a job, and the name, the limit and the period
--     of a quota); lock_quotas ran before
-- out: id and time of each job that was written; none when the quotas do not suffice for all
with {clock}, {given_many}
/* charged:
, charges as (
  select * from json_to_recordset(cast(:charges as json)) as charges (
    id text, name text, max_used bigint, period float8
  )
),
needed as (
  select name, count(*) as number, min(max_used) as max_used from charges group by name
),
exceeded as (
  select from onejob.quotas join needed using (name), clock
  where case when until > now then used else 0 end + number > max_used
),
inserted as (
*/
{insert_given/* charged:_charged*/}
/* charged:
),
charged as (
  update onejob.quotas as quotas set
    used = case when until > now then used else 0 end + number,
    until = case when until > now then until else now + period end
  from (
    select name, count(*) as number, min(period) as period from inserted join charges using (id) group by name
  ) as uses, clock
  where quotas.name = uses.name
)
select id, created_at from inserted
*/
