"""The lock backends of celery-singleton: only `share_old_locks` and explicit calls use them."""

from typing import Any

from onejob.compat.celery_singleton.backends.base import BaseBackend
from onejob.compat.celery_singleton.backends.redis import RedisBackend

_backend: Any = None
_made_from: Any = None


def get_backend(config: Any) -> Any:
    """Return the backend of a configuration, made once as long as the configuration is the same."""
    global _backend, _made_from
    wanted = config.backend_class, config.backend_url, config.backend_kwargs
    if _backend is None or _made_from != wanted:
        made, url, kwargs = wanted
        _backend, _made_from = made(url, **kwargs), wanted
    return _backend


__all__ = ["BaseBackend", "RedisBackend", "get_backend"]
