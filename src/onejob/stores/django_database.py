"""The URL `django://alias` of a database in Django's settings, which is resolved each time it is used.

Django gives a database another name while tests run (`test_shop` instead of `shop`), so that the URL is never kept.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

from onejob.errors import ConfigurationError
from onejob.stores.urls import redacted

SCHEME = "django"


def alias_of(url: str) -> str | None:
    """Return the alias in `django://alias`; None for any other URL. Raises `ConfigurationError` for an empty alias."""
    scheme, separator, alias = url.partition("://")
    if not separator or scheme.lower() != SCHEME:
        return None
    alias = alias.rstrip("/")
    if not alias or "/" in alias:
        msg = f"{redacted(url)} names no database of Django: write django://default, or another alias in DATABASES"
        raise ConfigurationError(msg)
    return alias


def resolve(url: str) -> str:
    """Return the `postgresql://` or `sqlite:///` URL of `django://alias` at this moment; any other URL as it is.

    Raises `ConfigurationError` without Django or its settings, for an unknown alias, and for another engine.
    """
    alias = alias_of(url)
    if alias is None:
        return url
    connection = _connection(alias)
    if connection.vendor == "postgresql":  # with all that libpq needs; options of Django and of its driver stay out
        given = connection.get_connection_params()
        params = {name: value for name, value in given.items() if name in _libpq_options() and value not in (None, "")}
        role = connection.settings_dict["OPTIONS"].get("assume_role")
        if role:  # Django runs SET ROLE on each connection
            params["options"] = f"{params.get('options', '')} -c role={role}".strip()
        params.pop("client_encoding", None)
        if connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"):  # by which Django knows of such a pooler
            params["pooler"] = "transaction"
        return f"postgresql://?{urlencode(params, quote_via=quote)}"
    if connection.vendor == "sqlite":
        name = str(connection.settings_dict["NAME"])
        is_bare_uri = name.startswith("file:") and "?" not in name  # which would be taken for the name of a file
        return f"sqlite:///{quote(f'{name}?' if is_bare_uri else name)}"
    engine = connection.settings_dict["ENGINE"]
    raise ConfigurationError(
        f"onejob_store={redacted(url)}: the engine of this database is {engine}; a ledger can be in PostgreSQL or "
        "SQLite. Name the alias of such a database, or a Redis by its URL"
    )


def address_of(url: str) -> tuple[Any, ...]:
    """Return the name and the server of the database of `django://alias`, which change when Django moves it."""
    settings = _connection(str(alias_of(url))).settings_dict
    return (settings["NAME"], settings.get("HOST"), settings.get("PORT"), settings["ENGINE"])


def _connection(alias: str) -> Any:
    """Return Django's connection of this thread, which may be closed. Raises `ConfigurationError`."""
    try:
        from django.core.exceptions import ImproperlyConfigured
        from django.db import connections
        from django.utils.connection import ConnectionDoesNotExist
    except ImportError as error:
        msg = f'the store django://{alias} needs Django ({error.name} is missing): pip install "onejob[django]"'
        raise ConfigurationError(msg) from error
    try:
        return connections[alias]
    except ConnectionDoesNotExist:
        known = ", ".join(sorted(connections.settings))
        raise ConfigurationError(f"the store django://{alias} names no database: DATABASES has {known}") from None
    except ImproperlyConfigured as error:
        module = os.environ.get("DJANGO_SETTINGS_MODULE", "")
        hint = "" if module else ". Set DJANGO_SETTINGS_MODULE before the Celery app is used"
        raise ConfigurationError(f"the store django://{alias} needs Django's settings: {error}{hint}") from error


@cache
def _libpq_options() -> frozenset[str]:
    """Return the names of libpq's options. Raises `ConfigurationError` without the driver."""
    from onejob.stores import postgres_driver

    options = postgres_driver().psycopg.pq.Conninfo.get_defaults()
    return frozenset(option.keyword.decode() for option in options)
