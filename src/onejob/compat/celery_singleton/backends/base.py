"""The interface that celery-singleton expects of a lock backend."""

from abc import ABC, abstractmethod


class BaseBackend(ABC):
    """A place for locks. Programs derive backends of their own from it."""

    @abstractmethod
    def lock(self, lock: str, task_id: str, expiry: float | None = None) -> bool:
        """Store the id of a task under a lock, for `expiry` seconds or for ever; False if the lock is held."""

    @abstractmethod
    def unlock(self, lock: str) -> None:
        """Remove a lock."""

    @abstractmethod
    def get(self, lock: str) -> str | None:
        """Return the id of the task that holds a lock; None if it is free."""

    @abstractmethod
    def clear(self, key_prefix: str) -> None:
        """Remove all locks whose text begins with a prefix."""
