"""A worker that was frozen beyond its leases is fenced off: every write of its runs is refused.

One worker begins all jobs and is frozen; another takes them over; then the first one resumes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from onejob import Outcome, State
from onejob.jobs.lifecycle import Transition
from tests.celery.harness import LEASE, PATIENCE, House, await_, is_running
from tests.quiet import KILLED, provokes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from onejob import AsyncResult
    from onejob.jobs.model import Job

OTHERS = ("postgresql-prefork", "redis-prefork", "sqlite-threads")
REPLACED = ("replaced", "replaced at once", "replaced by plain")
WALK = ["one", "two", "three"]
pytestmark = provokes(Transition.CRASH, logs=[KILLED], because="the worker is frozen for longer than its lease")


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
            **{
                key: play(key, [f"hold:late>replace:{task}", "return:in time"], ["late part"])
                for key, task in {"replaced at once": "anywhere", "replaced by plain": "plain"}.items()
            },
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

    def assert_its_child_is_ended(self) -> None:
        """Assert that the late worker has ended the child whose job runs elsewhere, if it has children."""
        if self.pool == "threads":
            assert self.late.alive
        else:
            await_(lambda: not is_running(self.first["held"]["pid"]))


@pytest.mark.parametrize("kind", ["sqlite-prefork", *(pytest.param(kind, marks=pytest.mark.deep) for kind in OTHERS)])
def test_a_late_worker_changes_nothing(new_house: Callable[[Path, str], House], tmp_path: Path, kind: str) -> None:
    """A run that was overtaken cannot end, retry, replace or go on with its job, takes no step, and frees nothing."""
    store, _, pool = kind.partition("-")
    house = new_house(tmp_path, store)
    house.use_lease(2 * LEASE)
    house.app.set_current()
    try:
        overtaken = Overtaken(house, pool)
        for key in ("result", "failure", "retry", "steps", *REPLACED):
            assert overtaken.assert_untouched(key).state is State.COMPLETED
        assert house.play.AsyncResult(overtaken.results["result"].id).get(PATIENCE) == "in time"
        assert [job for job in house.jobs() if job.task in {"anywhere", "note"}] == []
        await_(lambda: house.queued_messages() == 0)
        assert house.marks("late part", None) == []
        assert [len(house.marks("steps", f"step {name}")) for name in WALK] == [1, 1, 1]
        assert overtaken.assert_untouched("progress").progress is not None
        assert len(house.marks("progress", "half")) == 1
        overtaken.assert_untouched("held")
        again = house.play.delay("held", ["return"])
        assert (again.id, again.outcome) == (overtaken.results["held"].id, Outcome.ATTACHED)
        assert house.runs("held") == 2
        overtaken.assert_its_child_is_ended()
        house.open("second")
        house.assert_quiet()
    finally:
        house.close()
