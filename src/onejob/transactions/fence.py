"""A guard row in the database of the user: effects there happen at most once, wherever the ledger lives."""

from __future__ import annotations

from typing import Protocol

from onejob.errors import ConfigurationError, InvalidArgumentsError
from onejob.transactions.sessions import transaction_of

TABLE = """\
create table onejob_fence (
  job_id varchar(255) not null,
  name varchar(255) not null,
  token bigint not null,
  at timestamp not null default current_timestamp,
  primary key (job_id, name)
)"""
"""The table of the guard rows, in SQL that PostgreSQL and SQLite understand."""
_INSERT = """\
insert into onejob_fence (job_id, name, token) values (:job_id, :name, :token)
on conflict do nothing
returning token"""
NAME_LIMIT = 255
UNDEFINED_TABLE = "42P01"
"""PostgreSQL's code, whatever the language of its messages."""
DIALECTS = ("postgresql", "sqlite")


class HasToken(Protocol):
    """A job, or the running job."""

    @property
    def id(self) -> str:
        """The job's id."""
        ...

    @property
    def token(self) -> int:
        """The fencing token of its run."""
        ...


def fence(session: object, job: HasToken, name: str = "") -> bool:
    """Write a guard row into the transaction of a session: True the first time, False when its effects are there.

    For effects in a database where the ledger does not live: put the call and the effects into one transaction, and
    leave the effects out when it returns False. Then they happen at most once in the life of the job, whoever else
    still runs it. `name` (up to 255 characters) tells several effects of one job apart. The table is
    `onejob.transactions.fence.TABLE`; its rows are of use as long as the job is in the ledger. For PostgreSQL and SQLite.

    Raises `ConfigurationError`, `InvalidArgumentsError`, and else what the driver raises.
    """
    if not isinstance(name, str) or len(name) > NAME_LIMIT:
        msg = f"the name of effects is a text of at most 255 characters, not {name!r}"
        raise InvalidArgumentsError(msg)
    transaction = transaction_of(session)
    if transaction.dialect not in DIALECTS:
        msg = f"a fence works in {' and '.join(DIALECTS)}, not in {transaction.dialect}"
        raise ConfigurationError(msg)
    if transaction.autocommits:
        msg = "this connection is in autocommit mode: a fence and its effects need one transaction"
        raise ConfigurationError(msg)
    try:
        rows = transaction.rows(_INSERT, {"job_id": job.id, "name": name, "token": job.token})
    except Exception as error:
        if _table_is_missing(error):
            msg = f"this database has no table for fences; create it once:\n{TABLE}"
            raise ConfigurationError(msg) from error
        raise
    return bool(rows)


def _table_is_missing(error: Exception) -> bool:
    """Tell whether a driver's error, or the one that a library has wrapped, says that the table is not there."""
    causes = (error, error.__cause__, getattr(error, "orig", None))
    codes = {getattr(cause, name, None) for cause in causes for name in ("sqlstate", "pgcode")}
    return UNDEFINED_TABLE in codes or "no such table: onejob_fence" in str(error)
