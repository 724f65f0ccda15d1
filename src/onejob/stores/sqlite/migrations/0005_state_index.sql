-- Jobs in these states are listed and counted by an index; most jobs never are in one of them, and cost nothing.
create index jobs_state on jobs (state, created_at) where state in ('retrying', 'failed', 'canceled');
-- Followers that have ended are listed, too. Those that have not are still found by the index alone.
drop index jobs_follows_id;
create index jobs_follows_id on jobs (follows_id, finished_at) where follows_id is not null;
