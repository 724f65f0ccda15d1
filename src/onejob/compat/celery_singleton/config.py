"""The settings of celery-singleton in Celery's configuration, with or without a namespace."""

from __future__ import annotations

from typing import Any

from onejob.compat.shims import import_class

DEFAULT_BACKEND = "celery_singleton.backends.redis.RedisBackend"
_REDIS = ("redis://", "rediss://", "unix://")


class Config:
    """Reads the settings of an app each time they are asked for."""

    def __init__(self, app: Any) -> None:
        self.app = app

    @property
    def key_prefix(self) -> str:
        """`singleton_key_prefix`: what the keys of locks begin with."""
        return str(self._get("key_prefix", "SINGLETONLOCK_"))

    @property
    def backend_class(self) -> Any:
        """`singleton_backend_class`: a class, or its dotted path. Raises `ConfigurationError` for a wrong path."""
        return _imported(self._get("backend_class", DEFAULT_BACKEND))

    @property
    def json_encoder_class(self) -> Any:
        """`singleton_json_encoder_class`: a `json.JSONEncoder` class, or its dotted path; or None."""
        return _imported(self._get("json_encoder_class"))

    @property
    def backend_kwargs(self) -> dict[str, Any]:
        """`singleton_backend_kwargs`: keyword arguments of the backend."""
        return dict(self._get("backend_kwargs", {}))

    @property
    def backend_url(self) -> str | None:
        """`singleton_backend_url`: default the result backend if it is a Redis, else the broker."""
        url: str | None = self._get("backend_url")
        if url is None:
            url = self.app.conf.get("result_backend")
            if not url or not url.startswith("redis://"):
                url = self.app.conf.get("broker_url")
        return url

    @property
    def raise_on_duplicate(self) -> bool | None:
        """`singleton_raise_on_duplicate`: None if it is not set."""
        value: bool | None = self._get("raise_on_duplicate")
        return value

    @property
    def lock_expiry(self) -> float | None:
        """`singleton_lock_expiry` in seconds: None if it is not set."""
        value: float | None = self._get("lock_expiry")
        return value

    @property
    def has_backend(self) -> bool:
        """Whether there is a place for locks: a backend of one's own, or the URL of a Redis."""
        return self._get("backend_class") is not None or str(self.backend_url).startswith(_REDIS)

    def _get(self, name: str, default: Any = None) -> Any:
        return self.app.conf.get(f"singleton_{name}", default)


def _imported(path: object) -> Any:
    return import_class(path, "celery_singleton", "onejob.compat.celery_singleton")
