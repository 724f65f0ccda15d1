-- Let this transaction wait only for a moment, wherever it has to.
-- in: :wait (milliseconds)
select set_config('lock_timeout', cast(:wait as text), true)
