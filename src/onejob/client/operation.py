"""The operations on jobs: the name of each, the states that it applies to, and its error for other states."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from onejob import errors
from onejob.jobs.lifecycle import FINAL, RULES, State, Transition
from onejob.jobs.model import JobRow


class Operation(StrEnum):
    """An operation on a job."""

    CANCEL = "cancel", "canceled", frozenset(State) - FINAL, errors.JobEndedError
    FORCE_CANCEL = "force_cancel", "canceled", frozenset(State) - FINAL, errors.JobEndedError
    RUN_NOW = "run_now", "made due", RULES[Transition.RUN_NOW].sources, errors.NotWaitingError
    REDRIVE = "redrive", "redriven", RULES[Transition.REDRIVE].sources, errors.NoDeadLetterError
    DELETE = "delete", "deleted", FINAL, errors.JobNotEndedError
    FORCE_DELETE = "force_delete", "deleted", FINAL, errors.JobNotEndedError

    done: str
    """The participle for a job after the operation."""
    states: frozenset[State]
    """The states of the jobs that the operation applies to."""
    error: type[errors.JobStateError]
    """The error for a job in another state."""

    def __new__(  # noqa: D102 - of an enum: type checkers take it for its look-up, too, which has a name only
        cls,
        name: str,
        done: str = "",
        states: frozenset[State] = FINAL,
        error: type[errors.JobStateError] = errors.JobStateError,
    ) -> Self:
        operation = str.__new__(cls, name)
        operation._value_, operation.done, operation.states, operation.error = name, done, states, error
        return operation

    @property
    def permission(self) -> str:
        """The action that a caller must be permitted."""
        return self.value.removeprefix("force_")

    @property
    def is_forced(self) -> bool:
        """Whether the operation ends the run of a job at once, or deletes a job that something still needs."""
        return self.value.startswith("force_")

    def check(self, job: JobRow) -> None:
        """Raise the error of this operation for a job in a state that it does not apply to."""
        if job.state not in self.states:
            raise self.error(job.id, job.state)
