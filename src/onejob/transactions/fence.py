"""A fence row in the application's database: the effects of a job there happen at most once, wherever its ledger is."""

from __future__ import annotations

from typing import Protocol

from onejob.errors import ConfigurationError, InvalidArgumentsError
from onejob.transactions.sessions import sqlstate_of, transaction_of

TABLE = """\
create table onejob_fence (
  job_id varchar(255) not null,
  name varchar(255) not null,
  token bigint not null,
  at timestamp not null default current_timestamp,
  primary key (job_id, name)
)"""
"""DDL of the table, for PostgreSQL and SQLite."""
_INSERT = """\
insert into onejob_fence (job_id, name, token) values (:job_id, :name, :token)
on conflict do nothing
returning token"""
NAME_LIMIT = 255
UNDEFINED_TABLE = "42P01"
"""SQLSTATE of PostgreSQL; its messages depend on the locale."""
DIALECTS = ("postgresql", "sqlite")


class HasToken(Protocol):
    """A `RunningJob`."""

    @property
    def id(self) -> str:
        """The job's id."""

    @property
    def token(self) -> int:
        """The fencing token of its run."""


def fence(session: object, job: HasToken, name: str = "") -> bool:
    """Insert a fence row in the transaction of a session. Returns False if the row exists: skip the effects then.

    For effects in a database other than the ledger's: call it in the transaction of the effects, and make them only
    when it returns True. They then happen at most once per job, also when two runs of it overlap. `name` (up to 255
    characters) distinguishes several effects of one job. The table is `onejob.transactions.fence.TABLE`; its rows can
    be deleted when the job is no longer in the ledger. For PostgreSQL and SQLite.

    Raises `ConfigurationError`, `InvalidArgumentsError`, and the driver's own errors.
    """
    if not isinstance(name, str) or len(name) > NAME_LIMIT:
        raise InvalidArgumentsError(f"the name of a fence must be a string of at most 255 characters, not {name!r}")
    transaction = transaction_of(session)
    if transaction.dialect not in DIALECTS:
        raise ConfigurationError(f"a fence requires {' or '.join(DIALECTS)}, not {transaction.dialect}")
    if transaction.autocommits:
        raise ConfigurationError("this connection is in autocommit mode: a fence and its effects need one transaction")
    try:
        rows = transaction.rows(_INSERT, {"job_id": job.id, "name": name, "token": job.token})
    except Exception as error:
        if sqlstate_of(error) == UNDEFINED_TABLE or "no such table: onejob_fence" in str(error):
            raise ConfigurationError(f"this database has no table onejob_fence; create it once:\n{TABLE}") from error
        raise
    return bool(rows)
