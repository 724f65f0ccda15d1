"""The settings of celery-singleton in Celery's configuration, with or without a namespace."""

from collections.abc import Callable
from functools import partial
from typing import Any

from onejob.compat.shims import import_class

DEFAULT_BACKEND = "celery_singleton.backends.redis.RedisBackend"
_REDIS = ("redis://", "rediss://", "unix://")
_imported = partial(import_class, name="celery_singleton", package="onejob.compat.celery_singleton")


def _setting(name: str, default: Any = None, convert: Callable[[Any], Any] = lambda value: value) -> Any:
    """Return a property that reads a setting."""
    return property(lambda config: convert(config.app.conf.get(f"singleton_{name}", default)))


class Config:
    """The settings of an app, which are read at each access."""

    def __init__(self, app: Any) -> None:
        self.app = app

    key_prefix = _setting("key_prefix", "SINGLETONLOCK_", str)
    """`singleton_key_prefix`: the beginning of the keys of locks."""
    backend_class = _setting("backend_class", DEFAULT_BACKEND, _imported)
    """`singleton_backend_class`: a class, or its dotted path. Raises `ConfigurationError` for a wrong path."""
    json_encoder_class = _setting("json_encoder_class", None, _imported)
    """`singleton_json_encoder_class`: a `json.JSONEncoder` class, or its dotted path; or None."""
    backend_kwargs = _setting("backend_kwargs", {}, dict)
    """`singleton_backend_kwargs`: keyword arguments of the backend."""
    raise_on_duplicate = _setting("raise_on_duplicate")
    """`singleton_raise_on_duplicate`: None if it is not set."""
    lock_expiry = _setting("lock_expiry")
    """`singleton_lock_expiry` in seconds: None if it is not set."""

    @property
    def backend_url(self) -> str | None:
        """`singleton_backend_url`: default the result backend if it is a Redis, else the broker."""
        conf = self.app.conf
        url: str | None = conf.get("singleton_backend_url")
        if url is None:
            url = backend if (backend := conf.get("result_backend") or "").startswith("redis://") else conf.broker_url
        return url

    @property
    def has_backend(self) -> bool:
        """Whether there is a place for locks: a custom backend, or the URL of a Redis."""
        return self.app.conf.get("singleton_backend_class") is not None or str(self.backend_url).startswith(_REDIS)
