"""The blocks of a ledger: pauses and strikes, with which operators keep matching jobs from running.

A pause delays the jobs that match, and a strike makes them dead letters without a run. Workers obey a block at the
claim of a job, within `OBEYED_WITHIN` seconds. Times are seconds since the epoch on the store's clock.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, Self

from onejob.jobs.model import JobRow
from onejob.jobs.timestamps import format_timestamp

OBEYED_WITHIN = 0.5
"""Seconds after which every worker knows a new block, or the end of a block."""
BLOCK_LIMIT = 100
"""How many blocks a ledger has at most: while it has blocks, each claim compares its job with all of them."""
PARKED_SECONDS = 3_600.0
"""Seconds after which a sweep looks whether the pause of a parked job still exists: a crash may have hidden its end."""


class BlockKind(StrEnum):
    """The effect of a block on a matching job that waits for a run."""

    PAUSE = "pause"
    """The job is parked until the end of the pause."""
    STRIKE = "strike"
    """The job becomes a dead letter; after the end of the strike a redrive sends it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A pause or a strike. A job matches if it has the task, the queue and the arguments that the block names."""

    id: str
    kind: BlockKind
    task: str = ""
    """The task of the jobs; "": any."""
    queue: str = ""
    """The queue of the jobs; "": any."""
    where: Mapping[str, str]
    """The arguments of the jobs by path, as in `unique_on`, and their values as texts: `{"customer": "42"}`."""
    until: float | None = None
    """When the block ends by itself; None: not before it is ended."""
    note: str = ""
    """Why the block was made, for people."""
    created_by: str = ""
    created_at: float = 0.0

    def is_over(self, now: float) -> bool:
        """Return whether the time of the block is over."""
        return self.until is not None and self.until <= now

    def covers(self, job: JobRow, now: float) -> bool:
        """Return whether the block may match a job at a time, by its task and queue."""
        return not self.is_over(now) and self.task in {"", job.task} and self.queue in {"", job.queue}

    def matches(self, find_argument: Callable[[str], object]) -> bool:
        """Return whether the arguments of a job that the block covers match.

        `find_argument` returns the value at a path, and raises `KeyError` without a value.
        """
        try:
            return all(text == text_of(find_argument(path)) for path, text in self.where.items())
        except KeyError:
            return False

    @property
    def selection(self) -> str:
        """The selection of the block as text: "task shop.charge, queue slow, where customer=42"."""
        named = [f"{name} {value}" for name, value in (("task", self.task), ("queue", self.queue)) if value]
        where = " and ".join(f"{path}={text}" for path, text in self.where.items())
        return ", ".join([*named, *([f"where {where}"] if where else [])])

    @property
    def description(self) -> str:
        """The block as text, for the reason of a job: "paused by p1c0ffee (customer 42 asked), until 2026-..."."""
        done = "paused by" if self.kind is BlockKind.PAUSE else "struck by"
        note = f" ({self.note})" if self.note else ""
        until = f", until {format_timestamp(self.until)}" if self.until is not None else ""
        return f"{done} {self.id}{note}{until}"

    def to_json(self) -> str:
        """Return all but `id`, as JSON."""
        return json.dumps({name: value for name, value in asdict(self).items() if name != "id"})

    @classmethod
    def from_row(cls, id: str, body: str) -> Self:  # noqa: A002 - the name of the column
        """Build a block from a store's row."""
        found: dict[str, Any] = json.loads(body)
        known = {each.name for each in fields(cls)} & found.keys()  # newer processes may keep more
        values = {name: found[name] for name in known} | {"kind": BlockKind(found["kind"])}
        return cls(id=id, **values)


def text_of(value: object) -> str:
    """Return the text that selects an argument: `true`, `false` and `null` as in JSON, others as Python prints them."""
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)
