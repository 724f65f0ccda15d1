#!lua flags=allow-oom
-- Find the job that answers an idempotency key, or else the one that holds an identity.
-- KEYS: identity, and key if there is one
-- ARGV: key
-- returns: the job's id
-- refusal: nil when there is none
local identity, key = unpack(KEYS)
return answered(key, clock()).job_id or redis.call('GET', identity)
