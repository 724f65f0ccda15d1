-- What was added to metrics in each bucket of a period, which has this many seconds and is 0 for the totals. This table
-- has both, so that one statement adds to both. It replaces metrics.
create table metric_buckets (
  period integer not null,
  starts_at real not null,
  name text not null,
  amount real not null,
  primary key (period, starts_at, name)
) strict, without rowid;
insert into metric_buckets (period, starts_at, name, amount) select 0, 0, name, total from metrics;
