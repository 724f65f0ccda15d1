"""What a body raises decides how its run ends, and what Celery records."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from celery.exceptions import Ignore, Reject, Retry

from onejob.celery.payload import decode_failure
from onejob.celery.run_end import REQUEUE_DELAY, End, end_of
from onejob.errors import (
    JobCanceled,
    JobInterrupted,
    JobReleased,
    LeaseLost,
    StaleTokenError,
    StoreRefusedError,
    StoreUnavailableError,
)
from onejob.jobs.lifecycle import State, Transition
from tests.cases import for_each

if TYPE_CHECKING:
    from collections.abc import Mapping

again: Any = Retry  # whose published types know no number
SILENT: dict[BaseException, End] = {
    StoreUnavailableError("away"): End(Transition.RELEASE, "its run could not reach the store: away", is_silent=True),
    JobCanceled("a"): End(Transition.ABANDON, "canceled on request", is_silent=True),
    JobReleased("a"): End(Transition.RELEASE, "its worker is shutting down", delay=0.0, is_silent=True),
    LeaseLost("a"): End(None, str(LeaseLost("a")), is_silent=True),
    JobInterrupted("a"): End(None, str(JobInterrupted("a")), is_silent=True),
    Reject("later", requeue=True): End(
        Transition.RETRY, "('later', True)", delay=REQUEUE_DELAY, counts=False, is_silent=True
    ),
    Reject(StoreUnavailableError("away")): End(
        Transition.RELEASE, "its run could not reach the store: away", is_silent=True
    ),
}
TOLD: dict[BaseException, End] = {
    again(when=2): End(Transition.RETRY, delay=2),
    again(when=datetime(2026, 1, 1, tzinfo=UTC)): End(Transition.RETRY, delay=0.0),
    Ignore(): End(Transition.ABANDON, "the task raised Ignore"),
    StaleTokenError("a", 1, State.QUEUED): End(None),
    KeyboardInterrupt(): End(None),
}
FAILURES: Mapping[BaseException, tuple[str, BaseException]] = {
    ValueError("bad"): ("ValueError: bad", ValueError("bad")),
    StoreRefusedError("long"): ("StoreRefusedError: long", StoreRefusedError("long")),
    Reject(KeyError("a")): ("KeyError: 'a'", KeyError("a")),
    Reject("no"): ("the task rejected its message", Reject("no", requeue=False)),
}


@for_each("error", SILENT | TOLD)
def test_an_exception_is_an_end(error: BaseException) -> None:
    """An outage releases the job, an interruption or `Ignore` abandons it or leaves it, a `Retry` runs it again."""
    assert end_of(error, has_ended=False) == (SILENT | TOLD)[error]


@for_each("error", FAILURES)
def test_any_other_exception_is_a_failure(error: BaseException) -> None:
    """What is no signal fails the job, with the exception that Celery wraps in a `Reject`, if any."""
    end = end_of(error, has_ended=False)
    reason, raised = FAILURES[error]
    assert (end.transition, end.reason, end.is_silent) == (Transition.FAIL, reason, False)
    rebuilt = decode_failure("a", end.error)
    assert (type(rebuilt), str(rebuilt)) == (type(raised), str(raised))


@pytest.mark.parametrize("signal", [again(when=2), Ignore(), Reject("no"), Reject("later", requeue=True)])
def test_a_run_ends_once(signal: Exception) -> None:
    """After a retry that was recorded, a signal changes nothing; an error still fails the job, or is refused."""
    assert end_of(signal, has_ended=True) == End(None)
    assert end_of(ValueError("bad"), has_ended=True).transition is Transition.FAIL
