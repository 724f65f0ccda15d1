"""Loads the SQL of this package, in which the schema `onejob` is replaced by the ledger's schema."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache
from typing import Any, Protocol, TypeAlias

from onejob.jobs.model import JobRow, Submission, values_of
from onejob.stores.protocol import SUBMITTER_LIMIT, Channel
from onejob.stores.schema import in_schema
from onejob.stores.sql import COLUMNS
from onejob.stores.statement_files import NEW_JOB, NEW_VALUES, statements

_TYPES = {"str": "text", "int": "integer", "float": "float8", "bool": "boolean", "Cancel": "integer"}
"""The types of values, by the annotations of the fields that have them."""


def _types_of(kind: Any, names: Collection[str]) -> dict[str, str]:
    """Return the types of some fields of a dataclass, by name."""
    return {each.name: _TYPES[str(each.type).removesuffix(" | None")] for each in fields(kind) if each.name in names}


GIVEN = _types_of(Submission, {*NEW_JOB, "parked_on", "delay", "expires_in"})
"""The types of the fields of a submission that make its new job: the columns of `given`."""
SQL = statements(
    __package__, ".sql",
    given_fields=", ".join(f"cast(:{name} as {kind}) as {name}" for name, kind in GIVEN.items()),
    given_record=", ".join(f"{name} {kind}" for name, kind in GIVEN.items()),
    new_job_values=", ".join(f"given.{name}" for name in NEW_JOB),
    new_values=", ".join(
        f"{name} = coalesce(cast(:{name} as {kind}), jobs.{name})"
        for name, kind in _types_of(JobRow, NEW_VALUES).items()
    ),
)  # fmt: skip
MAY_WAIT = frozenset(
    (
        "admit admit_many admit_many_charged attach take_keys lock_quotas submit submit_charged follow follow_charged "
        "record record_many lock_limits lock_key"
    ).split()
)
"""The names of statements that may wait for a lock of a user's transaction, which may have submitted an equal job."""
KEEP_LEASES = frozenset(("renew", "heartbeat", "renew_messages"))
"""The statements of a heartbeat, which wait for no lock."""
_SHARING = frozenset(
    "claim claim_again report complete apply wake_followers keep_step keep_run_log steps get get_many".split()
)
"""The statements that may share a transaction with those of other callers: they are short, lock the row of their job,
or at its end those of its followers, but none of limits and quotas, and change no setting but that of their commit."""
_SYNCHRONIZED = frozenset("complete apply wake_followers keep_step keep_run_log".split())
"""The statements among them whose commit waits for the disk."""
Rows: TypeAlias = "list[dict[str, Any]]"
Statement: TypeAlias = "tuple[str, Mapping[str, Any]]"
"""SQL with parameters written as `:name`, and their values."""
NAME_LIMIT = 63
"""How many bytes the name of a channel may have."""
_STAR = re.compile(r"(?<!returning )\b(\w+)\.\*")


class Sharing(Enum):
    """The transactions that an operation may share with operations of other callers."""

    NONE = "none"
    UNSYNCHRONIZED = "unsynchronized"
    """Transactions of reads, and of writes whose commit need not wait for the disk."""
    SYNCHRONIZED = "synchronized"
    """Transactions whose commit waits for the disk."""


class Runner(Protocol):
    """Executes statements: the connection pool, or a user's transaction."""

    def run(
        self, statements: Sequence[Statement], *, wait_for_locks: bool = False, keeps_leases: bool = False,
        sharing: Sharing = Sharing.NONE,
    ) -> list[Rows]:  # fmt: skip
        """Run statements as one transaction, and return the rows of each.

        `wait_for_locks`: the statements may wait for a lock of a user's transaction. `keeps_leases`: they are short,
        and urgent.
        """


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements of one ledger, and their runner. `clock` replaces the server's clock, for tests."""

    runner: Runner
    schema: str
    clock: Callable[[], float] | None
    joins: bool = False
    """Whether the statements are part of a user's transaction."""

    def run(self, *names: str, **values: Any) -> Rows:
        """Run statements with the same values as one transaction, and return the rows of the first."""
        return self.run_each([(name, values) for name in names])[0]

    def run_each(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Rows]:
        """Run statements, each with its own values, as one transaction, and return the rows of each."""
        channels = channels_of(self.schema)
        shared = {
            "now": self.clock() if self.clock else None,
            "joins": self.joins,
            "submitter_limit": SUBMITTER_LIMIT,
            "due_channel": channels[Channel.DUE],
            "end_channel": channels[Channel.END],
        }
        statements = [(statement(name, self.schema), {**values, **shared}) for name, values in calls]
        return self.runner.run(statements, **_traits_of(frozenset(name for name, _ in calls)))


@cache
def _traits_of(names: frozenset[str]) -> dict[str, Any]:
    """Return how statements of some names run together: the options of `Runner.run`."""
    return {
        "wait_for_locks": not MAY_WAIT.isdisjoint(names),
        "keeps_leases": not KEEP_LEASES.isdisjoint(names),
        "sharing": _sharing_of(names),
    }


def _sharing_of(names: frozenset[str]) -> Sharing:
    if not names <= _SHARING:
        return Sharing.NONE
    return Sharing.UNSYNCHRONIZED if names.isdisjoint(_SYNCHRONIZED) else Sharing.SYNCHRONIZED


@cache
def channels_of(schema: str) -> Mapping[Channel, str]:
    """Return PostgreSQL's names of a ledger's channels, made from its schema: a whole database shares the names."""
    names = {channel: f"{schema}.{channel}" for channel in Channel}
    if max(map(len, names.values())) <= NAME_LIMIT:
        return names
    return channels_of(hashlib.sha256(schema.encode()).hexdigest()[:32])


@cache
def statement(name: str, schema: str) -> str:
    """Return a statement with its parameters as `:name`."""
    # A prepared statement that returns * fails in all open connections when a migration adds a column.
    expanded = _STAR.sub(lambda star: ", ".join(f"{star[1]}.{column}" for column in COLUMNS), SQL[name])
    return in_schema(expanded, schema)


def sql_values(value: Any) -> dict[str, Any]:
    """Return the fields of a value, with enum members replaced by strings and numbers, which every driver accepts."""
    return {name: item.value if isinstance(item, Enum) else item for name, item in values_of(value).items()}
