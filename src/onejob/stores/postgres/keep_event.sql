-- Store an event, unless it is stored, extend the time for which it is needed, and delete some events that are not.
-- in: :id :body (null: only extend) :keep_for (seconds) :now
-- out: the stored body; nothing without one
with {clock},
expired as (
  select id from onejob.webhook_events
  where until <= (select now from clock) and id <> :id order by until limit 2
  for update skip locked
),
deleted as (
  delete from onejob.webhook_events using expired where webhook_events.id = expired.id
),
extended as (
  update onejob.webhook_events as events
  set until = greatest(events.until, now + cast(:keep_for as float8))
  from clock
  where events.id = :id and events.until > now and cast(:body as text) is null
  returning events.body
),
kept as (
  insert into onejob.webhook_events as events (id, body, until)
  select :id, cast(:body as text), now + cast(:keep_for as float8)
  from clock where cast(:body as text) is not null
  on conflict (id) do update set
    body = case when events.until > (select now from clock) then events.body else excluded.body end,
    until = greatest(events.until, excluded.until)
  returning events.body
)
select body from extended
union all
select body from kept
