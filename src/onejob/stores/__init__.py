"""The stores, chosen by URL. A store's driver is imported only when its URL is used."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from onejob.errors import ConfigurationError

if TYPE_CHECKING:
    from onejob.store import Store

REDIS_SCHEMES = frozenset({"redis", "rediss", "unix", "redis+socket"})
SCHEMES = REDIS_SCHEMES | {"sqlite"}


def scheme_of(url: str) -> str:
    """Return the part of a URL before "://", lower case; "" when there is none."""
    return url.partition("://")[0].lower() if "://" in url else ""


def open_store(url: str, *, prefix: str = "onejob") -> Store:
    """Return the store at `url`: `sqlite:///file`, `redis://`, `rediss://` or `unix://`.

    `prefix` names the ledger's keys in a store that others use too. Raises `ConfigurationError`.
    """
    scheme = scheme_of(url)
    if scheme == "sqlite":
        from onejob.stores.sqlite import SQLiteStore

        return SQLiteStore(_sqlite_path(url))
    if scheme in REDIS_SCHEMES:
        from onejob.stores.redis import RedisStore

        return RedisStore.from_url(url.replace("redis+socket://", "unix://", 1), prefix=prefix)
    known = ", ".join(f"{name}://" for name in sorted(SCHEMES))
    msg = f"no store is known for {scheme + '://' if scheme else url!r}; a ledger lives at one of {known}"
    raise ConfigurationError(msg)


def _sqlite_path(url: str) -> str:
    """Return the file of `sqlite:///relative` or `sqlite:////absolute`."""
    parts = urlsplit(url)
    path = unquote(parts.path)[1:]
    if parts.netloc or not path or path == ":memory:":
        msg = f"{url!r} names no file: write sqlite:///ledger.db, or sqlite:////srv/app/ledger.db for an absolute path"
        raise ConfigurationError(msg)
    return path
