"""A worker that was frozen beyond its leases is fenced off: every write of its runs is refused.

One worker begins all jobs and is frozen; another takes them over; then the first one resumes. Each test checks one
of the jobs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from onejob import Outcome, State
from tests.celery.harness import LEASE, PATIENCE, House, await_, is_running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from onejob import AsyncResult
    from onejob.jobs.model import Job

OTHERS = ("postgresql-prefork", "redis-prefork", "sqlite-threads")
REPLACED = ("replaced", "replaced at once", "replaced by plain")
WALK = ["one", "two", "three"]


class Overtaken:
    """The state after the last write of the late worker."""

    def __init__(self, house: House, pool: str) -> None:
        self.house = house
        self.pool = pool
        self.late = house.worker("--pool", pool, "-c", "10")
        play = house.play.delay
        self.results: dict[str, AsyncResult] = {
            "result": play("result", ["hold:late>return:late", "return:in time"]),
            "failure": play("failure", ["hold:late>raise:late", "return:in time"]),
            "retry": play("retry", ["hold:late>retry", "return:in time", "return:a third run"]),
            "progress": play("progress", ["hold:late>progress", "progress:second"]),
            "held": play("held", ["hold:late held", "hold:second"]),
            "replaced": play("replaced", ["hold:late>replace:anywhere,note", "return:in time"], ["late part"]),
            "replaced at once": play(
                "replaced at once", ["hold:late>replace:anywhere", "return:in time"], ["late part"]
            ),
            "replaced by plain": play(
                "replaced by plain", ["hold:late>replace:plain", "return:in time"], ["late part"]
            ),
            "steps": house.walk.delay("steps", WALK, {"two": "hold:late"}),
        }
        self.first = {key: house.await_mark(key)[0] for key in self.results}
        house.await_mark("steps", "before two")
        self._take_over()
        self.before = {key: house.job(result) for key, result in self.results.items()}
        self._resume()

    def _take_over(self) -> None:
        self.house.worker("--pool", self.pool, "-c", "10")
        self.late.freeze()
        for key in self.results:
            self.house.await_mark(key, times=2)
        self.house.await_mark("progress", "half")
        for key in ("result", "failure", "retry", "steps", *REPLACED):
            self.results[key].get(PATIENCE)

    def _resume(self) -> None:
        """Let the late runs continue, and wait until each has been refused."""
        for gate in ("late", *(["late held"] if self.pool == "threads" else [])):
            self.house.open(gate)
        self.late.thaw()
        for key, result in self.results.items():
            if not (self.pool == "prefork" and key == "held"):
                await_(partial(self._is_over, key, f"[{result.id}] ignored"))

    def _is_over(self, key: str, line: str) -> bool:
        gone = self.pool == "prefork" and not is_running(self.first[key]["pid"])
        return gone or line in self.late.text

    def assert_untouched(self, key: str, runs: int = 2) -> Job:
        """Assert that the late run of a job has changed nothing."""
        job = self.house.job(self.results[key])
        assert replace(job, lease_until=None, wake_at=None) == replace(self.before[key], lease_until=None, wake_at=None)
        assert self.house.runs(key) == job.attempt == runs
        return job


@pytest.fixture(
    scope="module", params=["sqlite-prefork", *(pytest.param(kind, marks=pytest.mark.deep) for kind in OTHERS)]
)
def overtaken(
    request: pytest.FixtureRequest, new_house: Callable[[Path, str], House], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Overtaken]:
    """Return a house in which a late worker has resumed."""
    kind, _, pool = request.param.partition("-")
    house = new_house(tmp_path_factory.mktemp("late"), kind)
    house.use_lease(2 * LEASE)
    house.app.set_current()
    try:
        yield Overtaken(house, pool)
        house.open("second")
        house.assert_quiet()
    finally:
        house.close()


def test_a_late_result_is_refused(overtaken: Overtaken) -> None:
    """A run that was overtaken cannot complete its job: the result of the run in time stays."""
    assert overtaken.assert_untouched("result").state is State.COMPLETED
    assert overtaken.house.play.AsyncResult(overtaken.results["result"].id).get(PATIENCE) == "in time"


def test_a_late_failure_is_refused(overtaken: Overtaken) -> None:
    """A run that was overtaken cannot fail its job."""
    assert overtaken.assert_untouched("failure").state is State.COMPLETED


def test_a_late_retry_is_refused(overtaken: Overtaken) -> None:
    """A run that was overtaken cannot send its job into a retry."""
    assert overtaken.assert_untouched("retry").state is State.COMPLETED


@pytest.mark.parametrize("key", REPLACED)
def test_a_late_replacement_is_refused(overtaken: Overtaken, key: str) -> None:
    """A run that was overtaken cannot replace its job: the result in time stays, and no replacement is published."""
    assert overtaken.assert_untouched(key).state is State.COMPLETED
    assert [job for job in overtaken.house.ledger.find(House.everything()) if job.task in {"anywhere", "note"}] == []
    await_(lambda: overtaken.house.queued_messages() == 0)
    assert overtaken.house.marks("late part", None) == []


def test_a_late_step_is_not_taken(overtaken: Overtaken) -> None:
    """A run that was overtaken stops at its next step: it does not compute it, and keeps nothing."""
    overtaken.assert_untouched("steps")
    assert [len(overtaken.house.marks("steps", f"step {name}")) for name in WALK] == [1, 1, 1]


def test_late_progress_is_refused(overtaken: Overtaken) -> None:
    """A run that was overtaken stops at its next progress call, and changes nothing."""
    assert overtaken.assert_untouched("progress").progress is not None
    assert len(overtaken.house.marks("progress", "half")) == 1


def test_a_late_run_frees_no_identity(overtaken: Overtaken) -> None:
    """While the current run continues, the end of the late one does not release the identity."""
    overtaken.assert_untouched("held")
    again = overtaken.house.play.delay("held", ["return"])
    assert (again.id, again.outcome) == (overtaken.results["held"].id, Outcome.ATTACHED)
    assert overtaken.house.runs("held") == 2


def test_a_late_child_is_ended(overtaken: Overtaken) -> None:
    """A late worker that learns that its job runs elsewhere ends its own child."""
    if overtaken.pool == "threads":
        assert overtaken.late.alive
    else:
        await_(lambda: not is_running(overtaken.first["held"]["pid"]))
