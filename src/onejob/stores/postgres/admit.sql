-- Write a queued job that holds its identity, if no job holds it: the outcome of most submissions, at a fraction of the
-- cost of `submit`, which runs when this writes nothing.
-- in: the fields of the submission, :wake_after (seconds) :is_sent :now
-- out: its id and its time; nothing when its id exists or another job holds its identity
with {clock}, {given_new}
{insert_given}
