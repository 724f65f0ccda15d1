"""The locks of celery-singleton in Redis."""

from typing import Any

from redis import Redis

from onejob.compat.celery_singleton.backends.base import BaseBackend


class RedisBackend(BaseBackend):
    """Keeps a string per lock: the task's id."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Connect at first use; the arguments are those of `Redis.from_url`."""
        self.redis: Any = Redis.from_url(*args, decode_responses=True, **kwargs)

    def lock(self, lock: str, task_id: str, expiry: float | None = None) -> bool:
        """Store the id of a task under a lock, for `expiry` seconds or for ever; False if the lock is held."""
        milliseconds = None if expiry is None else max(1, round(expiry * 1000))
        return bool(self.redis.set(lock, task_id, nx=True, px=milliseconds))

    def unlock(self, lock: str) -> None:
        """Remove a lock."""
        self.redis.delete(lock)

    def get(self, lock: str) -> str | None:
        """Return the id of the task that holds a lock; None if it is free."""
        holder: str | None = self.redis.get(lock)
        return holder

    def clear(self, key_prefix: str) -> None:
        """Remove all locks whose text begins with a prefix."""
        for key in self.redis.scan_iter(match=f"{key_prefix}*", count=1000):
            self.redis.delete(key)
