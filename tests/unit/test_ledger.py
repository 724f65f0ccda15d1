"""The ledger's own decisions: which policies are valid, and what a sweep does with each kind of job."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from onejob.errors import ConfigurationError
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Cancel
from onejob.jobs.policy import DAY, Policy
from onejob.jobs.transitions import new_nonce
from onejob.ledger.ledger import Ledger
from onejob.ledger.sweep import Swept
from onejob.stores.sqlite import SQLiteStore
from tests.cases import for_each
from tests.contract.support import ManualClock, apply, end, events, get, queue_next, read, run, start, submit, sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from onejob.stores.protocol import Store

NONSENSE = (0.0, -1.0, float("nan"), float("inf"), float("-inf"))


# --- policy ---------------------------------------------------------------------------------------------------------


def test_a_policy_has_sensible_defaults() -> None:
    """By default a ledger keeps ended jobs for a day and dead letters for two weeks, and the crash limit is three."""
    policy = Policy()
    assert policy.retention == {State.COMPLETED: DAY, State.CANCELED: DAY, State.FAILED: 14 * DAY}
    assert (policy.crash_limit, policy.publish_limit, policy.hold) == (3, 8, 5.0)


@pytest.mark.parametrize("name", ["crash_limit", "publish_limit"])
@pytest.mark.parametrize("value", [0, -1])
def test_a_limit_below_one_is_refused(name: str, value: int) -> None:
    """A limit that would stop everything is refused, by its name."""
    with pytest.raises(ConfigurationError, match=f"{name}={value}"):
        Policy(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["crash_limit", "publish_limit"])
def test_a_limit_of_one_is_accepted(name: str) -> None:
    """The smallest limit is one."""
    assert getattr(Policy(**{name: 1}), name) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", NONSENSE)
def test_a_hold_that_is_no_time_is_refused(seconds: float) -> None:
    """A hold must be a positive, finite number of seconds."""
    with pytest.raises(ConfigurationError, match="hold must be a positive number"):
        Policy(hold=seconds)


@for_each("state, seconds", itertools.product([State.COMPLETED, State.FAILED, State.CANCELED], NONSENSE))
def test_a_retention_that_is_no_time_is_refused(state: State, seconds: float) -> None:
    """A retention must be a positive, finite number of seconds, whichever state it is for."""
    with pytest.raises(ConfigurationError, match=f"retention of {state} must be a positive number"):
        Policy(retention={State.COMPLETED: 1.0, state: seconds})


def test_policies_do_not_share_their_retention() -> None:
    """One policy's default retention is not another's."""
    assert Policy().retention is not Policy().retention


def test_a_ledger_without_a_policy_has_the_default_one(store: Store) -> None:
    """A ledger without a policy uses the default one."""
    assert Ledger(store).policy == Policy()
    assert Ledger(store, Policy(hold=1.0)).policy == Policy(hold=1.0)


def test_a_nonce_is_sixteen_hex_digits() -> None:
    """A nonce has the length that stores keep eight of, and is not repeated."""
    nonces = {new_nonce() for _ in range(100)}
    assert len(nonces) == 100
    assert all(len(nonce) == 16 and int(nonce, 16) >= 0 for nonce in nonces)


# --- sweep ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    """Return an embedded store on the test's clock."""
    store = SQLiteStore(tmp_path / "ledger.db", clock=clock)
    yield store
    store.close()


def _queued(store: Store) -> None:
    submit(store)


def _retrying(store: Store) -> None:
    apply(store, run(store), Transition.RETRY, wake_in=1.0)


def _expired(store: Store) -> None:
    submit(store, expires_in=1.0)


def _half_canceled(store: Store) -> None:
    apply(
        store, apply(store, run(store), Transition.REQUEST_CANCEL, cancel=Cancel.ASKED), Transition.RELEASE, wake_in=1.0
    )


def _lapsed(store: Store) -> None:
    run(store)


def _lapsed_at_the_limit(store: Store) -> None:
    apply(store, run(store), Transition.UPDATE_PROGRESS, crashes=2)


def _lapsed_with_a_cancel_request(store: Store) -> None:
    apply(store, run(store), Transition.REQUEST_CANCEL, cancel=Cancel.FORCED)


def _canvas_pending(store: Store) -> None:
    end(store, run(store, canvas=True))


def _kept(store: Store) -> None:
    end(store, run(store))


def _kept_with_identity(store: Store) -> None:
    apply(store, run(store), Transition.COMPLETE, keeps_identity=True, wake_in=1.0)


def _kept_for_a_key(store: Store) -> None:
    submit(store, key="key-1", key_for=5000.0)
    end(store, start(store))


def _kept_for_a_key_that_is_forgotten(store: Store) -> None:
    submit(store, key="key-1", key_for=1000.0)
    end(store, start(store))


def _next_of_one_that_released_its_identity(store: Store) -> None:
    """Queue job-1 after a job that releases its identity without an end, and set its `wake_at`."""
    before = run(store, "job-0", identity="same", lease=5000.0)
    queue_next(store, "job-1")
    apply(store, before, Transition.RELEASE_IDENTITY, keeps_identity=False)
    apply(store, read(store), Transition.PUBLISH, wake_in=1.0)


def _next_of_a_live_job(store: Store) -> None:
    run(store, "job-0", identity="same", lease=5000.0)
    apply(store, queue_next(store, "job-1"), Transition.PUBLISH, wake_in=1.0)


def _next_that_expired(store: Store) -> None:
    run(store, "job-0", identity="same", lease=5000.0)
    queue_next(store, "job-1", expires_in=1.0)


DECISIONS: list[tuple[Callable[[Store], None], Swept, State | None, list[str]]] = [
    (_queued, Swept(published=1), State.QUEUED, ["publish"]),
    (_retrying, Swept(published=1), State.RETRYING, ["publish"]),
    (_expired, Swept(canceled=1), State.CANCELED, ["expire"]),
    (_half_canceled, Swept(canceled=1), State.CANCELED, ["cancel"]),
    (_lapsed, Swept(published=1, lapsed=1), State.QUEUED, ["crash"]),
    (_lapsed_at_the_limit, Swept(lapsed=1), State.FAILED, ["dead_letter"]),
    (_lapsed_with_a_cancel_request, Swept(lapsed=1), State.CANCELED, ["crash", "cancel"]),
    (_canvas_pending, Swept(published=1), State.COMPLETED, ["notify_canvas"]),
    (_kept, Swept(purged=1), None, []),
    (_kept_with_identity, Swept(purged=1), None, []),
    (_kept_for_a_key, Swept(), State.COMPLETED, []),
    (_kept_for_a_key_that_is_forgotten, Swept(purged=1), None, []),
    (_next_of_one_that_released_its_identity, Swept(published=1), State.QUEUED, ["promote", "publish"]),
    (_next_of_a_live_job, Swept(), State.QUEUED, ["postpone"]),
    (_next_that_expired, Swept(canceled=1), State.CANCELED, ["expire"]),
]


@pytest.mark.parametrize(("prepare", "swept", "state", "recorded"), DECISIONS)
def test_a_sweep_handles_each_kind_of_job(
    store: Store, clock: ManualClock, prepare: Any, swept: Swept, state: State | None, recorded: list[str]
) -> None:
    """Each kind of due job is handled in its own way, counted, and recorded in the history."""
    prepare(store)
    before = events(store)
    clock.advance(1000.0)
    published: list[str] = []
    assert sweep(Ledger(store), lambda job: published.append(job.id)) == swept
    assert published == ["job-1"] * swept.published
    job = get(store, "job-1")
    assert (job.state if job else None) is state
    assert events(store)[len(before) :] == recorded


@pytest.mark.parametrize("prepare", [decision[0] for decision in DECISIONS])
def test_a_sweep_before_wake_at_changes_nothing(store: Store, clock: ManualClock, prepare: Any) -> None:
    """No kind of job is changed before its `wake_at`."""
    prepare(store)
    job = read(store)
    assert sweep(Ledger(store), lambda job: pytest.fail(f"published {job.id}")) == Swept()
    assert get(store, "job-1") == job


def test_the_pause_after_a_publication_doubles_without_a_cap(store: Store, clock: ManualClock) -> None:
    """The pause after each publication is twice the one before, and no number of publications is too large for it."""
    job = submit(store, lease=10.0)
    ledger = Ledger(store)
    for published, leases in ((0, 1), (1, 2), (2, 4), (10, 1024), (32, 2**32), (10_000, 2**32)):
        apply(store, job, Transition.PUBLISH, published=published, wake_in=0.0)
        sweep(ledger, lambda _: None)
        assert read(store).wake_at == pytest.approx(clock() + 10.0 * leases)
