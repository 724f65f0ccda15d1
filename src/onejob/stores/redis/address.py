"""Parses the URL of a Redis into a connection pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from redis import ConnectionPool, SSLConnection, exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from onejob.errors import ConfigurationError
from onejob.stores.redis.connection import RETRYABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULTS: dict[str, Any] = {
    "socket_connect_timeout": 2.0,
    "socket_timeout": 5.0,
}
"""What the query of a URL may override."""

_FIXED: dict[str, Any] = {
    "decode_responses": True,
    "encoding": "utf-8",
    # `Client` retries. redis-py would retry its handshake inside each of these retries.
    "retry": Retry(NoBackoff(), 0, RETRYABLE),
}


def pool_of(url: str) -> ConnectionPool:
    """Return the pool for `redis://`, `rediss://` or `unix://`. Raises `ConfigurationError`."""
    try:
        pool = ConnectionPool.from_url(url, **DEFAULTS)
        options = pool.connection_kwargs
        _check(url, options)
        # The URL of the store is often that of the broker, in Celery's spelling of two options.
        if isinstance(options.get("ssl_cert_reqs"), str):
            options["ssl_cert_reqs"] = options["ssl_cert_reqs"].lower().removeprefix("cert_")
        if "virtual_host" in options:
            options["db"] = int(options.pop("virtual_host").strip("/") or 0)
        options.update(_FIXED)
        pool.connection_class(**options)  # raises TypeError for an unknown option
    except (exceptions.RedisError, TypeError) as error:
        raise ConfigurationError(f"the URL of the Redis store has an invalid option: {error}") from None
    except ValueError as error:
        # Other messages may quote a part of the password, which an unencoded slash makes look like the port.
        is_safe = str(error).startswith(("Invalid value for", "Redis URL must"))
        reason = str(error) if is_safe else "are its port and database numbers, and is its password percent-encoded?"
        raise ConfigurationError(f"the URL of the Redis store is invalid: {reason}") from None
    return pool


def _check(url: str, options: Mapping[str, Any]) -> None:
    """Raise `ValueError` for what redis-py ignores, or finds when it connects."""
    parts = urlsplit(url)
    number = "" if parts.scheme == "unix" else unquote(parts.path).strip("/")
    if number and not number.isdecimal():
        msg = "no number of a database"  # which redis-py would take for 0
        raise ValueError(msg)
    for name in DEFAULTS:
        if options[name] is not None and not options[name] > 0:
            msg = f"Invalid value for {name!r}"
            raise ValueError(msg)


def location_of(pool: ConnectionPool) -> str:
    """Return the server and the database, for messages."""
    options = pool.connection_kwargs
    host = options.get("host", "localhost")
    server = f"{f'[{host}]' if ':' in host else host}:{options.get('port', 6379)}"
    return f"{options.get('path', server)}/{options.get('db', 0)}"


def address_of(pool: ConnectionPool) -> str:
    """Return the location and the user, without secrets: a client can push messages for one with the same address."""
    options = pool.connection_kwargs
    user = "a credential provider" if options.get("credential_provider") else options.get("username") or "default"
    scheme = "rediss" if issubclass(pool.connection_class, SSLConnection) else "redis"
    return f"{scheme}://{user}@{location_of(pool)}"
