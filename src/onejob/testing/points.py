"""The points of a run: before and after each of its writes to the ledger. What a test injects happens at one of them.

A point is `before_` or `after_` and the write: `start` (the claim), `progress:1`, `step:NAME`, `complete`, `fail`,
`retry`, `abandon` (after a cancellation), `release`, `replace`, `release_identity`. `start` alone means `after_start`.
Everything that a body does happens between two points, so these are all the places where a crash makes a difference.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onejob.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.jobs.model import Job

_POINT = re.compile(
    r"(before|after)_(start|progress:\d+|step:.+|complete|fail|retry|abandon|release|replace|release_identity)"
)


class WorkerLost(BaseException):
    """Raised within a run to end it as the death of its worker does: no `except Exception` of a body catches it."""


@dataclass
class RecordedRun:
    """What one run has written to the ledger."""

    job_id: str
    task: str
    token: int
    attempt: int
    points: list[str] = field(default_factory=list)
    progress: list[Any] = field(default_factory=list)
    steps: dict[str, Any] = field(default_factory=dict)
    """The steps that this run has kept, by name."""
    retry_in: float | None = None
    """Seconds until the retry that it has requested; None: it has requested none."""


@dataclass(eq=False)
class Hook:
    """An action that is carried out once, when a run of a task reaches a point. `task` is None for that of any task."""

    point: str
    task: str | None
    action: Callable[[Job], object]
    description: str = ""

    def matches(self, point: str, job: Job) -> bool:
        """Return whether this is the point, and the task."""
        return point == self.point and self.task in {None, job.task}


def parse_point(text: str) -> str:
    """Return the full name of a point. Raises `ConfigurationError` for text that names none."""
    point = text if text.startswith(("before_", "after_")) else f"after_{text}"
    if not _POINT.fullmatch(point):
        msg = (
            f"{text!r} is no point of a run: write before_ or after_ and start, progress:1, step:NAME, complete, fail, "
            "retry, abandon, release or replace, such as 'before_step:charge'"
        )
        raise ConfigurationError(msg)
    return point
