"""The statements beside this file. They are written for the schema `onejob`; another schema's name takes its place."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from onejob.jobs.model import Job
from onejob.stores.protocol import DUPLICATE_LIMIT, HISTORY_LIMIT, WINDOW_OVER
from onejob.stores.statement_files import statements

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SQL = statements(__package__, ".sql")
WAITING = frozenset({"admit", "take_keys", "submit", "follow", "record", "record_many"})
"""The statements that may wait for the transaction of a user: it may have submitted an equal job."""
Rows: TypeAlias = "list[dict[str, Any]]"
Statement: TypeAlias = "tuple[str, Mapping[str, Any]]"
"""A text with its values as `:name`, and the values."""
_STAR = re.compile(r"(?<!returning )\b(\w+)\.\*")
COLUMNS = tuple(field.name for field in fields(Job))
_SCHEMA = re.compile(r"\bonejob\.")


class Runner(Protocol):
    """Whoever runs statements: the pool, or the transaction of somebody else."""

    def run(self, statements: Sequence[Statement], *, wait_for_locks: bool = False) -> list[Rows]:
        """Run statements as one transaction and return the rows of each. `wait_for_locks`: they may have to wait."""
        ...


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements of one ledger, and who runs them. `clock` replaces the server's clock, for tests."""

    runner: Runner
    schema: str
    clock: Callable[[], float] | None

    def rows(self, *names: str, **values: Any) -> Rows:
        """Run statements with the same values as one transaction, and return the rows of the first."""
        return self.each([(name, values) for name in names])[0]

    def each(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Rows]:
        """Run statements, each with values of its own, as one transaction, and return the rows of each."""
        given = {
            "now": self.clock() if self.clock else None,
            "history_limit": HISTORY_LIMIT,
            "duplicate_limit": DUPLICATE_LIMIT,
            "window_over": WINDOW_OVER,
        }
        statements = [(statement(name, self.schema), {**values, **given}) for name, values in calls]
        return self.runner.run(statements, wait_for_locks=any(name in WAITING for name, _ in calls))

    def job(self, name: str, **values: Any) -> Job | None:
        """Run a statement that returns one job, or nothing."""
        rows = self.rows(name, **values)
        return Job.from_row(rows[0]) if rows else None


@cache
def statement(name: str, schema: str) -> str:
    """Return a statement with its values as `:name`."""
    text = SQL[name]
    # A prepared statement that returned * would fail in all connections as soon as a later version adds a column.
    named = _STAR.sub(lambda star: ", ".join(f"{star[1]}.{column}" for column in COLUMNS), text)
    return in_schema(named, schema)


def in_schema(text: str, schema: str) -> str:
    """Return SQL for another schema than `onejob`."""
    return _SCHEMA.sub(f'"{schema}".', text)
