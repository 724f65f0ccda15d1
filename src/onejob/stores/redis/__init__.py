"""The Redis store: one ledger in one slot of a Redis 7.0 or later, on the server's clock."""

from onejob.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
