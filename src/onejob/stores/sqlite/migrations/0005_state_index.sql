-- Jobs in these states are listed, in order, and counted by an index; most jobs are never in it. Every change of a job
-- evaluates its condition, for which comparisons take less than a list.
create index jobs_state on jobs (state, created_at, id) where state = 'retrying' or state = 'failed' or state = 'canceled';
-- Followers that have ended are listed, too. Those that have not are still found by the index alone.
drop index jobs_follows_id;
create index jobs_follows_id on jobs (follows_id, finished_at) where follows_id is not null;
