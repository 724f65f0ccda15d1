"""The state machine has no dead ends, and only redrive leaves a final state; policies are times and limits."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from onejob.errors import ConfigurationError
from onejob.jobs.lifecycle import FINAL, RULES, State, Transition
from onejob.jobs.policy import DAY, Policy
from onejob.jobs.transitions import new_nonce
from tests.cases import for_each

LIVE = frozenset(State) - FINAL


def _next_states(state: State, *, fenced: bool | None = None) -> set[State]:
    """Return the states that one transition leads to."""
    rules = [rule for rule in RULES.values() if state in rule.sources and fenced in (None, rule.fenced)]
    return {rule.target for rule in rules if rule.target is not None}


def _reachable(state: State) -> set[State]:
    """Return all states that are reachable from `state`."""
    reached, new = {state}, {state}
    while new:
        new = {target for source in new for target in _next_states(source)} - reached
        reached |= new
    return reached


def test_states_are_six() -> None:
    """There are six states, three of them final, and a new job can reach each."""
    assert [str(state) for state in State] == ["queued", "running", "retrying", "completed", "failed", "canceled"]
    assert [state for state in State if state.final] == [State.COMPLETED, State.FAILED, State.CANCELED]
    assert _reachable(State.QUEUED) == set(State)


@for_each("state", LIVE)
def test_every_final_state_is_reachable_from_every_live_state(state: State) -> None:
    """Each final state is reachable from every state that is not final, and one of them by one transition."""
    assert _reachable(state) >= FINAL
    assert _next_states(state) & FINAL


@for_each("state", FINAL)
def test_final_states_are_left_only_by_redrive(state: State) -> None:
    """No transition leaves a final state, except the redrive of a failed job."""
    assert _next_states(state) == ({State.QUEUED} if state is State.FAILED else set())


def test_only_running_jobs_have_fenced_transitions() -> None:
    """Fenced transitions start in the state running, because only a run has a token."""
    assert {source for rule in RULES.values() if rule.fenced for source in rule.sources} == {State.RUNNING}


def test_only_fenced_transitions_end_a_run() -> None:
    """A running job changes its state only by a fenced transition."""
    assert _next_states(State.RUNNING, fenced=False) == set()
    assert _next_states(State.RUNNING, fenced=True) >= FINAL


def test_only_a_claim_starts_a_run() -> None:
    """Only a claim starts a run, from every state in which a job waits."""
    assert [event for event, rule in RULES.items() if rule.target is State.RUNNING] == [Transition.CLAIM]
    assert RULES[Transition.CLAIM].sources == LIVE - {State.RUNNING}


def test_waiting_jobs_can_be_canceled_expired_and_published() -> None:
    """From every waiting state a job can be claimed, published, canceled and expired."""
    transitions = (Transition.CLAIM, Transition.PUBLISH, Transition.CANCEL, Transition.EXPIRE)
    assert {RULES[transition].sources for transition in transitions} == {LIVE - {State.RUNNING}}


def test_only_a_run_completes_or_fails() -> None:
    """Only a running job completes or fails, except that a waiting job fails whose message can never be sent."""
    sources = {event: rule.sources for event, rule in RULES.items() if rule.target in {State.COMPLETED, State.FAILED}}
    assert sources.pop(Transition.UNPUBLISHABLE) == LIVE - {State.RUNNING}
    assert set(sources.values()) == {frozenset({State.RUNNING})}


def test_the_canvas_is_notified_of_ends_only() -> None:
    """The canvas is notified in all final states, and in no other."""
    assert RULES[Transition.CANVAS_NOTIFIED].sources == FINAL
    assert RULES[Transition.CANVAS_NOTIFIED].target is None


NONSENSE = (0.0, -1.0, float("nan"), float("inf"), float("-inf"))


def test_a_policy_has_sensible_defaults() -> None:
    """By default a ledger keeps ended jobs for a day and dead letters for two weeks, and the crash limit is three."""
    policy = Policy()
    assert policy.retention == {State.COMPLETED: DAY, State.CANCELED: DAY, State.FAILED: 14 * DAY}
    assert (policy.crash_limit, policy.publish_limit, policy.hold) == (3, 8, 5.0)


@for_each("wrong, message", [
    *(({name: value}, f"{name}={value}") for name in ("crash_limit", "publish_limit") for value in (0, -1)),
    *(({"hold": seconds}, "hold must be a positive number") for seconds in NONSENSE),
    *(
        ({"retention": {State.COMPLETED: 1.0, state: seconds}}, f"retention of {state} must be a positive number")
        for state, seconds in itertools.product(sorted(FINAL), NONSENSE)
    ),
])  # fmt: skip
def test_a_policy_that_would_stop_everything_is_refused(wrong: dict[str, Any], message: str) -> None:
    """A limit is at least one, and a hold or a retention a positive, finite number of seconds."""
    with pytest.raises(ConfigurationError, match=message):
        Policy(**wrong)
    assert Policy(crash_limit=1, publish_limit=1).crash_limit == 1


def test_a_nonce_is_sixteen_hex_digits() -> None:
    """A nonce has the length that stores keep eight of, and is not repeated."""
    nonces = {new_nonce() for _ in range(100)}
    assert len(nonces) == 100
    assert all(len(nonce) == 16 and int(nonce, 16) >= 0 for nonce in nonces)
