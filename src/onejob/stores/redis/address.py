"""From a URL to a pool of connections that has not connected yet."""

from __future__ import annotations

from typing import Any

from redis import ConnectionPool, exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from onejob.errors import ConfigurationError

DEFAULTS: dict[str, Any] = {
    "socket_connect_timeout": 2.0,
    "socket_timeout": 5.0,
    "health_check_interval": 30,
    "max_connections": 2**31,
}
"""What the query of a URL may override."""

# READONLY is among them because after a failover a new connection may find the new primary.
SPENT = (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.ReadOnlyError)
"""After one of these a connection is closed, and the request is worth another try."""

_FIXED: dict[str, Any] = {
    # With RESP3 redis-py no longer looks whether a pooled connection still has an unread reply in it.
    "protocol": 2,
    "decode_responses": True,
    "encoding": "utf-8",
    # `Client` retries. redis-py would retry its connecting and its health checks inside each of its retries.
    "retry": Retry(NoBackoff(), 0, SPENT),
}


def pool_of(url: str) -> ConnectionPool:
    """Return the pool for `redis://`, `rediss://` or `unix://`. Raises `ConfigurationError`."""
    try:
        pool = ConnectionPool.from_url(url, **DEFAULTS)
        _understand_celery(pool.connection_kwargs)
        pool.connection_kwargs.update(_FIXED)
        pool.connection_class(**pool.connection_kwargs)  # refuses an option that it does not know
    except (exceptions.RedisError, TypeError) as error:
        msg = f"the URL of the Redis store has an option that cannot work: {error}"
        raise ConfigurationError(msg) from None
    except ValueError as error:
        # Another text may quote what was taken for the port: a part of a password with a bare slash in it.
        known = str(error).startswith(("Invalid value for", "Redis URL must"))
        reason = str(error) if known else "are its port and database numbers, and is its password percent-encoded?"
        msg = f"the URL of the Redis store cannot be read: {reason}"
        raise ConfigurationError(msg) from None
    return pool


def place_of(pool: ConnectionPool) -> str:
    """Name a Redis without its password."""
    options = pool.connection_kwargs
    host = f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
    return f"{options.get('path', host)}/{options.get('db', 0)}"


def _understand_celery(options: dict[str, Any]) -> None:
    """Take two options in Celery's spelling, too: a ledger often lives at the URL of the broker."""
    if isinstance(options.get("ssl_cert_reqs"), str):
        options["ssl_cert_reqs"] = options["ssl_cert_reqs"].lower().removeprefix("cert_")
    if "virtual_host" in options:
        options["db"] = int(options.pop("virtual_host").strip("/") or 0)
