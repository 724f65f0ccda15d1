-- name: places
-- The ranks of the jobs that are offered to the workers of queues, found one by one in the index.
-- in: :queues (JSON array)
places (queue, rank) as (
  select value, (
    select priority_rank from jobs where route = value and {is_offered} order by priority_rank desc limit 1
  )
  from json_each(:queues)
  union all
  select queue, (
    select priority_rank from jobs
    where route = queue and {is_offered} and priority_rank < rank order by priority_rank desc limit 1
  )
  from places where rank is not null
)
