"""The lock backends of celery-once: only `share_old_locks` and explicit calls use them."""

from onejob.compat.celery_once.backends.file import File
from onejob.compat.celery_once.backends.redis import Redis

__all__ = ["File", "Redis"]
