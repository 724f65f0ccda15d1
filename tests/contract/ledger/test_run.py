"""What a run is told when it reports, and when it repeats its end."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from onejob.errors import JobCanceled, LeaseLost, StaleTokenError
from onejob.jobs.lifecycle import Transition
from onejob.jobs.model import Cancel
from onejob.jobs.transitions import new_nonce
from onejob.ledger.ledger import NextRun
from tests.conftest import every_store
from tests.contract.support import untouched

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.jobs.model import Job
    from tests.contract.ledger.world import World


@every_store
def test_a_repeated_end_of_a_run_is_recognised(world: World) -> None:
    """Each end of a run that is repeated with its request id has the same answer; with another one it is refused."""
    ledger = world.ledger
    again: dict[str, Any] = {"payload": "[7]", "options": "[8]", "retries": 3}
    ends: dict[str, Callable[..., Job]] = {
        "complete": partial(ledger.complete, result="1"),
        "fail": partial(ledger.fail, error='"bad"', reason="it broke"),
        "abandon": partial(ledger.abandon, reason="stopped"),
        "retry": partial(ledger.retry, next_run=NextRun(**again), error=None, reason="again"),
        "replace": partial(ledger.replace, next_run=NextRun(**again), canvas=False, reason="replaced"),
    }
    for name, end_of in ends.items():
        job = world.run(name)
        request_id = new_nonce()
        ended = end_of(job, request_id=request_id)
        with untouched(world.store, name):
            assert end_of(job, request_id=request_id) == ended
            for other in (new_nonce(), None):
                with pytest.raises(StaleTokenError):
                    end_of(job, request_id=other)


def test_a_run_that_must_stop_learns_it_from_its_report(world: World) -> None:
    """A report raises `JobCanceled` after a cancel request, while steps are kept, and `LeaseLost` after a crash."""
    job = world.run()
    world.ledger.report(job, "0.5")
    world.ledger.cancel("job-1")
    with pytest.raises(JobCanceled):
        world.ledger.report(job, "1")
    assert world.ledger.keep_step(job, "one", "1") == "1"
    assert (world.read().progress, world.ledger.steps(job)) == ("1", {"one": "1"})
    assert world.ledger.crash(job, "killed", "{}").applied
    with pytest.raises(LeaseLost):
        world.ledger.report(job, "2")
    with pytest.raises(LeaseLost):
        world.ledger.keep_step(job, "two", "2")


@every_store
def test_a_cancellation_is_requested_once(world: World) -> None:
    """A request to cancel a run is recorded when it is new or stronger, and not again by a repeated or weaker one."""
    world.run()
    for force in (False, False, True, True, False):
        world.ledger.cancel("job-1", force=force, reason=f"{force}")
    assert world.read().cancel is Cancel.FORCED
    assert world.details(Transition.REQUEST_CANCEL) == ["False", "True"]
