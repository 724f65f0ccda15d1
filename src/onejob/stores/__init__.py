"""Opens stores by URL: the driver of a store is imported only when a URL needs it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

from onejob.errors import ConfigurationError
from onejob.stores.django_database import SCHEME as DJANGO_SCHEME
from onejob.stores.django_database import resolve
from onejob.stores.protocol import Store
from onejob.stores.urls import redacted, scheme_of

REDIS_SCHEMES = frozenset({"redis", "rediss", "unix", "redis+socket"})
POSTGRES_SCHEMES = frozenset({"postgresql", "postgres"})
_KINDS = {"postgresql": POSTGRES_SCHEMES, "redis": REDIS_SCHEMES, "sqlite": frozenset({"sqlite"})}
SCHEMES = frozenset().union(*_KINDS.values())
"""The schemes of the URLs of stores, which URLs of Celery's brokers and result backends may have, too."""


def kind_of(url: str) -> str:
    """Return `postgresql`, `redis` or `sqlite`. Raises `ConfigurationError` for a URL that names no store."""
    scheme = scheme_of(resolve(url))
    for kind, schemes in _KINDS.items():
        if scheme in schemes:
            return kind
    known = ", ".join(f"{name}://" for name in sorted(SCHEMES | {DJANGO_SCHEME}))
    raise ConfigurationError(f"no store supports {scheme or 'a URL without '}://; supported are {known}")


def open_store(url: str, *, namespace: str = "onejob") -> Store:
    """Return the store at `url`: `sqlite:///file`, `postgresql://`, `redis://`, `rediss://`, `unix://`, `django://alias`.

    `namespace` separates ledgers in the same database: the schema in PostgreSQL, the prefix of the keys in Redis.
    Raises `ConfigurationError`.
    """
    url = resolve(url)
    kind = kind_of(url)
    if kind == "sqlite":
        from onejob.stores.sqlite import SQLiteStore

        return SQLiteStore(sqlite_path(url))
    if kind == "postgresql":
        postgres_driver()
        from onejob.stores.postgres import PostgresStore

        return PostgresStore(url, schema=namespace)
    from onejob.stores.redis import RedisStore

    return RedisStore.from_url(url.replace("redis+socket://", "unix://", 1), prefix=namespace)


def postgres_driver() -> ModuleType:
    """Return the module of connections to PostgreSQL. Raises `ConfigurationError` without the driver."""
    try:
        from onejob.stores.postgres import connection
    except ImportError as error:
        msg = f'the PostgreSQL store needs a driver ({error.name} is missing): pip install "onejob[postgres]"'
        raise ConfigurationError(msg) from error
    return connection


def display_url(url: str, *, with_user: bool = False) -> str:
    """Return a store's URL without password and options, `with_user` for PostgreSQL. Raises `ConfigurationError`.

    The file of a SQLite ledger is absolute: a relative path is another file in another working directory.
    """
    url = resolve(url)
    kind = kind_of(url)
    if kind == "sqlite":
        from onejob.stores.sqlite.files import absolute_path

        return f"sqlite:///{absolute_path(sqlite_path(url))}"
    if kind == "postgresql":
        connection = postgres_driver()
        info = connection.conninfo_of(url)
        return f"postgresql://{connection.user_of(info) if with_user else ''}{connection.address_of(info)}"
    from onejob.stores.redis import connection as redis_connection

    url = url.replace("redis+socket://", "unix://", 1)
    return f"{scheme_of(url)}://{redis_connection.location_of(redis_connection.pool_of(url))}"


def missing_file(url: str) -> Path | None:
    """Return the file of a SQLite ledger that opening it would create; None if it exists, and for other ledgers."""
    if kind_of(url) != "sqlite":
        return None
    path = Path(sqlite_path(resolve(url))).absolute()
    return None if path.exists() else path


def sqlite_path(url: str) -> str:
    """Return the file of `sqlite:///relative` or `sqlite:////absolute`."""
    parts = urlsplit(url)
    path = unquote(parts.path)[1:]
    if parts.netloc or parts.query or parts.fragment or not path or path == ":memory:":
        raise ConfigurationError(
            f"{redacted(url)} names no file: write sqlite:///ledger.db, or sqlite:////srv/app/ledger.db for an "
            "absolute path, without options, and with %3F and %23 for ? and #"
        )
    return path
