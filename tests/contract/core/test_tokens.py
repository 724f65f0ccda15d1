"""Tokens: strictly growing, whatever the clock and the store's memory do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob.jobs.lifecycle import FINAL, RULES, Transition
from tests.contract.support import START, ManualClock, apply, change, end, read, run, start, submit

if TYPE_CHECKING:
    from onejob.stores.protocol import Store


def test_a_token_is_the_clock_in_microseconds(store: Store, clock: ManualClock) -> None:
    """The first token of a job is the moment of its claim."""
    submit(store)
    now = clock.advance(0.5)
    assert start(store).token == int(now * 1e6)


def test_tokens_grow_when_the_clock_stands_still(store: Store, clock: ManualClock) -> None:
    """Claims at one moment of the clock get one token after the other."""
    submit(store)
    tokens = []
    for _ in range(4):
        job = start(store)
        tokens.append(job.token)
        apply(store, job, Transition.RELEASE)
    first = int(START * 1e6)
    assert tokens == [first, first + 1, first + 2, first + 3]


@pytest.mark.parametrize("back", [0.5, 3600.0, 1e9])
def test_tokens_grow_when_the_clock_goes_back(store: Store, clock: ManualClock, back: float) -> None:
    """A clock that goes back does not take tokens back."""
    clock.advance(back)
    tokens = []
    submit(store, delay=-back)
    for _ in range(3):
        job = start(store)
        tokens.append(job.token)
        apply(store, job, Transition.RELEASE)
        clock.advance(-back / 2)
    first = int((START + back) * 1e6)
    assert tokens == [first, first + 1, first + 2]


def test_a_token_catches_up_with_the_clock(store: Store, clock: ManualClock) -> None:
    """After a clock that went back has come forth again, tokens are the clock's once more."""
    first = run(store)
    apply(store, first, Transition.RELEASE)
    apply(store, start(store), Transition.RELEASE)
    now = clock.advance(10.0)
    assert start(store).token == int(now * 1e6)


def test_tokens_grow_after_the_row_was_lost(store: Store, clock: ManualClock) -> None:
    """An id that is submitted again after its row was lost gets larger tokens than before."""
    first = run(store)
    apply(store, first, Transition.RELEASE)
    second = start(store)
    end(store, second)
    assert store.delete(["job-1"], sources=FINAL)
    clock.advance(0.001)
    third = run(store)
    assert third.attempt == 1
    assert third.token > second.token > first.token


def test_a_run_from_before_the_loss_is_powerless(store: Store, clock: ManualClock) -> None:
    """A run of the lost row cannot write to the row that has its id now."""
    lost = run(store)
    end(store, lost)
    store.delete(["job-1"], sources=FINAL)
    clock.advance(0.001)
    current = run(store)
    for event in (e for e, rule in RULES.items() if rule.fenced and e is not Transition.RENEW):
        assert not store.apply(change(lost, event)).applied
    assert read(store) == current


def test_tokens_of_jobs_are_their_own(store: Store, clock: ManualClock) -> None:
    """The claims of one job do not move the tokens of another."""
    submit(store, "job-1")
    submit(store, "job-2")
    for _ in range(3):
        apply(store, start(store, "job-1"), Transition.RELEASE)
    assert start(store, "job-2").token == int(START * 1e6)


def test_the_stores_own_clock_makes_tokens(store: Store) -> None:
    """Without an injected clock, a token is at least the time at which the job was written."""
    job = run(store)
    assert job.token >= int(job.created_at * 1e6)
    assert job.started_at is not None
    assert abs(job.token / 1e6 - job.started_at) < 1.0
