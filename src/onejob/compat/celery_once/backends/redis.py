"""The locks of celery-once in Redis."""

from typing import Any
from urllib.parse import parse_qsl, urlparse

from redis import StrictRedis
from redis.lock import Lock

from onejob.compat.celery_once.helpers import AlreadyQueued
from onejob.errors import ConfigurationError

NO_EXPIRY = -1
"""The remaining time that Redis returns for a key without an expiry."""
redis: Any = None
"""The client of this process, as in celery-once."""
_made_for: str | None = None


def parse_url(url: str) -> dict[str, Any]:
    """Return the arguments of a Redis client for `redis://`, `rediss://` or `redis+socket://`. Raises `ValueError`."""
    parsed = urlparse(url)
    details: dict[str, Any]
    if parsed.scheme == "redis+socket":
        details = {"unix_socket_path": parsed.path}
    elif parsed.scheme in {"redis", "rediss"}:
        given = {"host": parsed.hostname, "port": parsed.port, "password": parsed.password}
        details = {name: value for name, value in given.items() if value or name == "host"}
        details |= {"db": parsed.path.lstrip("/")} if parsed.path.lstrip("/").isdigit() else {}
        details |= {"ssl": True} if parsed.scheme == "rediss" else {}
    else:
        msg = f"unsupported scheme of the lock URL: {parsed.scheme!r}. Use redis://, rediss:// or redis+socket://"
        raise ConfigurationError(msg)
    details |= dict(parse_qsl(parsed.query))
    for name, convert in (("socket_timeout", float), ("db", int)):
        if name in details:
            details[name] = convert(details[name])
    return details


def get_redis(settings: Any) -> Any:
    """Return the client of this process, made once as long as the URL is the same."""
    global redis, _made_for
    url = settings.get("url", _made_for)
    if not redis or url != _made_for:
        redis, _made_for = StrictRedis(**parse_url(url or "redis://localhost:6379/0")), url
    return redis


class Redis:
    """Keeps a key per lock, which expires by itself."""

    def __init__(self, settings: Any) -> None:
        self._redis = get_redis(settings)
        self.blocking = settings.get("blocking", False)
        self.blocking_timeout = settings.get("blocking_timeout", 1)

    @property
    def redis(self) -> Any:
        """The client."""
        return self._redis

    def raise_or_lock(self, key: str, timeout: float, token: str | None = None) -> None:
        """Take a lock for `timeout` seconds, with a token of one's own if given. Raises `AlreadyQueued` if held."""
        lock = Lock(self.redis, key, timeout=timeout, blocking=self.blocking, blocking_timeout=self.blocking_timeout)
        while not lock.acquire(token=token):
            left = self.redis.pttl(key)
            if left > 0 or left == NO_EXPIRY:  # otherwise the lock has just expired
                raise AlreadyQueued(left / 1000.0)

    def clear_lock(self, key: str) -> Any:
        """Remove a lock."""
        return self.redis.delete(key)

    def holder(self, key: str) -> str | None:
        """Return the token of a lock; None if it is free."""
        token = self.redis.get(key)
        return token.decode("utf-8", "replace") if isinstance(token, bytes) else token
