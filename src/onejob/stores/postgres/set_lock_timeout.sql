-- Limit how long this transaction waits for each lock.
-- in: :wait (milliseconds)
select set_config('lock_timeout', cast(:wait as text), true)
