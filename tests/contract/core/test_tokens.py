"""Tokens: strictly increasing, whatever the clock does and even after the row was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob.jobs.lifecycle import FINAL, RULES, Transition
from tests.contract.support import START, ManualClock, apply, change, end, read, run, start, submit

if TYPE_CHECKING:
    from onejob.stores.protocol import Store


def test_a_token_is_the_clock_in_microseconds(store: Store, clock: ManualClock) -> None:
    """The first token of a job is the time of its claim."""
    submit(store)
    now = clock.advance(0.5)
    assert start(store).token == int(now * 1e6)


def test_tokens_increase_when_the_clock_stands_still(store: Store, clock: ManualClock) -> None:
    """Claims at the same time of the clock get consecutive tokens."""
    submit(store)
    tokens = []
    for _ in range(4):
        job = start(store)
        tokens.append(job.token)
        apply(store, job, Transition.RELEASE)
    first = int(START * 1e6)
    assert tokens == [first, first + 1, first + 2, first + 3]


@pytest.mark.parametrize("back", [0.5, 3600.0, 1e9])
def test_tokens_increase_when_the_clock_goes_back(store: Store, clock: ManualClock, back: float) -> None:
    """Tokens increase even when the clock goes back."""
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
    """Once the clock has passed the last token, tokens are the clock's time again."""
    first = run(store)
    apply(store, first, Transition.RELEASE)
    apply(store, start(store), Transition.RELEASE)
    now = clock.advance(10.0)
    assert start(store).token == int(now * 1e6)


def test_tokens_increase_after_the_row_was_lost(store: Store, clock: ManualClock) -> None:
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


def test_a_run_of_a_lost_row_writes_nothing(store: Store, clock: ManualClock) -> None:
    """A run of the lost row cannot write to the new row with its id."""
    lost = run(store)
    end(store, lost)
    store.delete(["job-1"], sources=FINAL)
    clock.advance(0.001)
    current = run(store)
    for event in (e for e, rule in RULES.items() if rule.fenced and e is not Transition.RENEW):
        assert not store.apply(change(lost, event)).applied
    assert read(store) == current


def test_each_job_has_its_own_tokens(store: Store, clock: ManualClock) -> None:
    """Claims of one job do not change the tokens of another."""
    submit(store, "job-1")
    submit(store, "job-2")
    for _ in range(3):
        apply(store, start(store, "job-1"), Transition.RELEASE)
    assert start(store, "job-2").token == int(START * 1e6)


def test_tokens_use_the_clock_of_the_store(store: Store) -> None:
    """Without an injected clock, a token is at least the time at which the job was written."""
    job = run(store)
    assert job.token >= int(job.created_at * 1e6)
    assert job.started_at is not None
    assert abs(job.token / 1e6 - job.started_at) < 1.0
