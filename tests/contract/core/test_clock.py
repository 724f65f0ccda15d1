"""A clock that jumps backward: nothing is lost, tokens grow, and no second run starts while a lease holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob.errors import StaleTokenError
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Outcome, Retention
from onejob.ledger.ledger import Ledger
from tests.contract.support import LEASE, admission, claim, end, read, run, start, submit, sweep, take_due

if TYPE_CHECKING:
    from onejob.stores.protocol import Store
    from tests.contract.support import ManualClock

JUMP = 3600.0


def test_tokens_grow_after_a_backward_jump(store: Store, clock: ManualClock) -> None:
    """A run that starts after a backward jump has a larger token than every earlier run, which is refused."""
    ledger = Ledger(store)
    submit(store)
    clock.advance(2 * JUMP)
    first = start(store)
    clock.advance(-JUMP)
    ledger.crash(first, "its worker died", "{}")
    second = start(store)
    assert second.token > first.token > clock.now * 1e6
    with pytest.raises(StaleTokenError):
        ledger.complete(first, "1")
    assert ledger.complete(second, "2").result == "2"


def test_no_second_run_starts_while_a_lease_holds(store: Store, clock: ManualClock) -> None:
    """After a backward jump the lease of a run lasts longer by the jump, or until its next renewal corrects it."""
    ledger = Ledger(store)
    job = run(store)
    clock.advance(-JUMP)
    clock.advance(LEASE)
    assert not ledger.crash(job, "its lease expired", "{}", lapsed=True).applied
    assert not claim(store).applied
    assert take_due(store) == []
    assert ledger.renew([(job.id, job.claim)])[0].held
    clock.advance(LEASE)
    assert ledger.crash(job, "its lease expired", "{}", lapsed=True).applied


def test_nothing_is_lost_by_a_backward_jump(store: Store, clock: ManualClock) -> None:
    """A job that was submitted before a backward jump runs, at the latest when the clock is where it was."""
    published: list[str] = []
    submit(store)
    clock.advance(-JUMP)
    submit(store, "job-2")
    for passed in (LEASE, JUMP):
        clock.advance(passed)
        sweep(Ledger(store), lambda job: published.append(job.id))
    assert set(published) == {"job-1", "job-2"}
    for job_id in ("job-1", "job-2"):
        assert end(store, start(store, job_id)).state is State.COMPLETED


def test_windows_last_longer_by_a_backward_jump(store: Store, clock: ManualClock) -> None:
    """A uniqueness window, and the retention of an idempotency key, last longer by a backward jump."""
    Ledger(store).complete(run(store, identity="same", key="k"), "1", keep=Retention(identity_for=60.0))
    clock.advance(-JUMP)
    clock.advance(60.0)
    assert admission(store, "job-2", identity="same").outcome is Outcome.REPLAYED
    assert admission(store, "job-3", identity="other", key="k").job.id == "job-1"
    clock.advance(JUMP)
    assert admission(store, "job-4", identity="same").outcome is Outcome.ADMITTED
    assert read(store, "job-1").holds_identity is False
