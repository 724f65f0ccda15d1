-- Count a submission for ever.
-- in: :task :identity :submitter :outcome
insert into duplicate_stats (task, identity, submitter, outcome, count) values (:task, :identity, :submitter, :outcome, 1)
on conflict do update set count = count + 1
