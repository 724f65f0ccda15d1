-- What was added to metrics in each bucket of a period, which has this many seconds and is 0 for the totals. This table
-- has both, as on SQLite. It replaces metrics.
create table onejob.metric_buckets (
  period integer not null,
  starts_at double precision not null,
  name text not null,
  amount double precision not null,
  primary key (period, starts_at, name)
) with (fillfactor = 50);
insert into onejob.metric_buckets (period, starts_at, name, amount) select 0, 0, name, total from onejob.metrics;
