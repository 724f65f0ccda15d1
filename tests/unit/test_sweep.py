"""What a sweep does with kinds of jobs that only a race leaves behind. `tests/contract/ledger` has the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Cancel
from onejob.jobs.policy import Policy
from onejob.ledger.ledger import Ledger
from onejob.ledger.sweep import SweepResult
from onejob.stores.sqlite import SQLiteStore
from tests.contract.support import ManualClock, apply, events, queue_next, read, run, submit, sweep

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from onejob.stores.protocol import Store


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    """Return an embedded store on the test's clock."""
    store = SQLiteStore(tmp_path / "ledger.db", clock=clock)
    yield store
    store.close()


def test_a_ledger_without_a_policy_has_the_default_one(store: Store) -> None:
    """A ledger without a policy uses the default one."""
    assert Ledger(store).policy == Policy()
    assert Ledger(store, Policy(hold=1.0)).policy == Policy(hold=1.0)


def test_a_released_job_with_a_cancel_request_is_canceled(store: Store, clock: ManualClock) -> None:
    """A job that was released after a cancel request, and not canceled by its worker, is canceled and not published."""
    asked = apply(store, run(store), Transition.REQUEST_CANCEL, cancel=Cancel.ASKED)
    apply(store, asked, Transition.RELEASE, wake_after=1.0)
    clock.advance(1000.0)
    assert sweep(Ledger(store), lambda job: pytest.fail(f"published {job.id}")) == SweepResult(canceled=1)
    assert (read(store).state, events(store)[-1]) == (State.CANCELED, "cancel")


def test_a_job_whose_predecessor_released_its_identity_is_promoted(store: Store, clock: ManualClock) -> None:
    """A job that is queued after one that released its identity without an end is promoted and published."""
    before = run(store, "job-0", identity="same", lease=5000.0)
    queue_next(store, "job-1")
    apply(store, before, Transition.RELEASE_IDENTITY, keeps_identity=False)
    apply(store, read(store), Transition.PUBLISH, wake_after=1.0)
    clock.advance(1000.0)
    published: list[str] = []
    assert sweep(Ledger(store), lambda job: published.append(job.id)) == SweepResult(published=1)
    assert (published, events(store)[-2:]) == (["job-1"], ["promote", "publish"])


def test_the_pause_after_a_publication_doubles_without_a_cap(store: Store, clock: ManualClock) -> None:
    """The pause after each publication is twice the one before, and no number of publications is too large for it."""
    job = submit(store, lease=10.0)
    ledger = Ledger(store)
    for published, leases in ((0, 1), (1, 2), (2, 4), (10, 1024), (32, 2**32), (10_000, 2**32)):
        apply(store, job, Transition.PUBLISH, published=published, wake_after=0.0)
        sweep(ledger, lambda _: None)
        assert read(store).wake_at == pytest.approx(clock() + 10.0 * leases, abs=1.0)
