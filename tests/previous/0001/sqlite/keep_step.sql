-- Memoise a step; an earlier value wins.
-- in: :job_id :token :sources :name :value
-- out: the value that is kept; nothing when the token is stale
insert into steps (job_id, name, value)
select id, :name, :value from jobs
where id = :job_id and token = :token and state in (select value from json_each(:sources))
on conflict (job_id, name) do update set value = steps.value
returning value
