"""The versions of the ledger's SQL schema, and which of them this code supports.

Schema changes follow expand and contract, so that rolling deployments need no downtime: a version expands the schema in
a way that the previous code tolerates, and only the version after that removes what is unused. So code supports its own
version and the next one. Each version is one file in `migrations/` of each SQL store.
"""

from __future__ import annotations

import re

from onejob.errors import ConfigurationError

FILES = {
    "0001": "0001_jobs",
    "0002": "0002_routes",
    "0003": "0003_lean_rows",
    "0004": "0004_series",
    "0005": "0005_state_index",
    "0006": "0006_audit_kinds",
    "0007": "0007_published_at",
}
"""The file of each version, without its suffix; oldest first."""
VERSIONS = tuple(FILES)
"""All versions, oldest first. This code was written for the last one."""
HEAD = VERSIONS[-1]
TABLE = "schema_version"
"""The table in the ledger's schema whose only row is the version."""


def statements_in(text: str) -> list[str]:
    """Split a migration file into statements, each of which ends with a semicolon at the end of a line."""
    return [part.strip() for part in text.split(";\n") if part.strip()]


def check_version(found: str | None, where: str) -> None:
    """Raise `ConfigurationError` unless this code supports the version (None: there is no ledger)."""
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
        msg = f"the ledger in {where} has schema version {found}, and this onejob supports {HEAD}: upgrade onejob"
    raise ConfigurationError(msg)


def checked_schema(name: str) -> str:
    """Return the name of a schema if it is valid without quotes. Raises `ConfigurationError`."""
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", name) or name.startswith("pg_"):
        msg = (
            f"{name!r} is invalid as the ledger's schema in PostgreSQL: "
            "use up to 63 lower-case letters, digits and underscores, not starting with a digit or pg_"
        )
        raise ConfigurationError(msg)
    return name
