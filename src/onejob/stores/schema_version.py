"""The versions of the ledger's SQL schema, and which of them this code can work with.

A change of the schema comes in steps, so that a rolling deployment never stops: a version *expands* the schema in a way
that the code before it survives, and only the version after that may take away what is no longer used. So code works
with its own version and with the one that follows. Each version is one file in `migrations/` of each SQL store.
"""

from __future__ import annotations

import re

from onejob.errors import ConfigurationError

FILES = {"0001": "0001_jobs"}
"""The file of each version, without its suffix; oldest first."""
VERSIONS = tuple(FILES)
"""All versions, oldest first. The last one is what this code was written for."""
HEAD = VERSIONS[-1]
TABLE = "schema_version"
"""The table, in the ledger's schema, with the version as its only row."""


def statements_in(text: str) -> list[str]:
    """Return the statements of such a file: each ends with a semicolon at the end of a line."""
    return [part.strip() for part in text.split(";\n") if part.strip()]


def check_version(found: str | None, where: str) -> None:
    """Raise `ConfigurationError` unless this code can work with the version that was found (None: there is none)."""
    if found in (HEAD, f"{int(HEAD) + 1:04}"):
        return
    if found is None:
        msg = f"there is no ledger in {where}: run `onejob --store URL migrate up`"
    elif found < HEAD:
        msg = (
            f"the ledger in {where} has schema version {found}, and this onejob needs {HEAD}: "
            "run `onejob --store URL migrate up`"
        )
    else:
        msg = f"the ledger in {where} has schema version {found}, and this onejob knows {HEAD}: upgrade onejob"
    raise ConfigurationError(msg)


def checked_schema(name: str) -> str:
    """Return the name of a schema. Raises `ConfigurationError` for what is no plain name."""
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", name) or name.startswith("pg_"):
        msg = (
            f"{name!r} cannot name the ledger's schema in PostgreSQL: "
            "use up to 63 lower-case letters, digits and underscores, with no digit and no pg_ in front"
        )
        raise ConfigurationError(msg)
    return name
