-- The same for many submissions, in their order, so that concurrent batches do not deadlock.
-- in: :submissions (JSON), :wake_in (seconds) :now
-- out: id and time of each job that was written
with {clock}, {given_many}
{insert_given}
