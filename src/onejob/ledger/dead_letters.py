"""Dead letters in bulk: which of them are meant, and what becomes of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onejob.errors import NoDeadLetterError, OneJobError, StoreUnavailableError
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Query

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from onejob.jobs.model import Job
    from onejob.ledger.ledger import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which dead letters are meant: those of some ids, or those that a filter finds, the newest first."""

    job_ids: Sequence[str] = ()
    task: str | None = None
    error: str | None = None
    """A part of the reason."""
    everything: bool = False
    """Without a filter: all of them."""
    limit: int = 100
    """How many a filter finds at most."""

    def __post_init__(self) -> None:
        """Refuse neither and both ways, with `ValueError`: nothing is to happen to a dead letter by accident."""
        filters = bool(self.task or self.error or self.everything)
        if self.job_ids and filters:
            raise ValueError("give job ids or a filter, not both")
        if not self.job_ids and not filters:
            raise ValueError("which? Give job ids, a task, a part of the error, or say that all are meant")


@dataclass(frozen=True, slots=True)
class BulkResult:
    """What became of dead letters that were dealt with."""

    done: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    """Why, by id."""


def dead_letters(task: str | None, error: str | None, limit: int) -> Query:
    """Return what finds dead letters, the newest first; `error` is a part of the reason."""
    return Query(states=frozenset({State.FAILED}), task=task, reason=error, limit=limit)


def bulk_apply(ledger: Ledger, choice: Selection, act: Callable[[Job], object], *, dry_run: bool = False) -> BulkResult:
    """Act on each dead letter that is chosen; one that is refused does not stop the others.

    `dry_run`: only tell on which. Raises `StoreUnavailableError`, after which the whole can be repeated.
    """
    result = BulkResult()
    for job_id, job in _chosen(ledger, choice):
        try:
            job = job or ledger.get(job_id)  # noqa: PLW2901 - which says why it is not there
            if job.state is not State.FAILED:
                raise NoDeadLetterError(job_id, job.state)
            if not dry_run:
                act(job)
        except StoreUnavailableError:
            raise
        except OneJobError as error:
            result.refused[job_id] = str(error)
        else:
            result.done.append(job_id)
    return result


def _chosen(ledger: Ledger, choice: Selection) -> Iterator[tuple[str, Job | None]]:
    if choice.job_ids:
        found = ledger.store.get_many(choice.job_ids)
        yield from ((job_id, found.get(job_id)) for job_id in dict.fromkeys(choice.job_ids))
    else:
        yield from ((job.id, job) for job in ledger.find(dead_letters(choice.task, choice.error, choice.limit)))
