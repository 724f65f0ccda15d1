"""The state machine has no dead ends, and only redrive leaves a final state; policies are times and limits."""

from __future__ import annotations

import itertools

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
    """There are six states, three of them final."""
    assert [str(state) for state in State] == ["queued", "running", "retrying", "completed", "failed", "canceled"]
    assert [state for state in State if state.final] == [State.COMPLETED, State.FAILED, State.CANCELED]


def test_every_transition_has_a_rule() -> None:
    """Every transition has a rule."""
    assert set(RULES) == set(Transition)


@for_each("transition", Transition)
def test_every_rule_has_a_meaning(transition: Transition) -> None:
    """Every rule has sources and a unique meaning."""
    assert RULES[transition].sources
    assert " " in RULES[transition].meaning
    assert sum(rule.meaning == RULES[transition].meaning for rule in RULES.values()) == 1


@for_each("state", LIVE)
def test_every_final_state_is_reachable_from_every_live_state(state: State) -> None:
    """Each final state is reachable from every state that is not final."""
    assert _reachable(state) >= FINAL


@for_each("state", LIVE)
def test_every_live_state_has_a_direct_end(state: State) -> None:
    """From every live state, one transition leads to a final state."""
    assert _next_states(state) - {state}
    assert _next_states(state) & FINAL


@for_each("state", FINAL)
def test_final_states_are_left_only_by_redrive(state: State) -> None:
    """No transition leaves a final state, except the redrive of a failed job."""
    assert _next_states(state) == ({State.QUEUED} if state is State.FAILED else set())


def test_every_state_can_be_reached() -> None:
    """Every state is reachable from a new job."""
    assert _reachable(State.QUEUED) == set(State)


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


def test_a_promotion_applies_to_queued_jobs() -> None:
    """A job that waits for its identity is queued, and its promotion does not change the state."""
    assert RULES[Transition.PROMOTE].sources == {State.QUEUED}
    assert (RULES[Transition.PROMOTE].target, RULES[Transition.PROMOTE].fenced) == (None, False)


NONSENSE = (0.0, -1.0, float("nan"), float("inf"), float("-inf"))


def test_a_policy_has_sensible_defaults() -> None:
    """By default a ledger keeps ended jobs for a day and dead letters for two weeks, and the crash limit is three."""
    policy = Policy()
    assert policy.retention == {State.COMPLETED: DAY, State.CANCELED: DAY, State.FAILED: 14 * DAY}
    assert (policy.crash_limit, policy.publish_limit, policy.hold) == (3, 8, 5.0)


@for_each("name, value", itertools.product(["crash_limit", "publish_limit"], [0, -1]))
def test_a_limit_below_one_is_refused(name: str, value: int) -> None:
    """A limit that would stop everything is refused, by its name."""
    with pytest.raises(ConfigurationError, match=f"{name}={value}"):
        Policy(**{name: value})  # type: ignore[arg-type]


@for_each("name", ["crash_limit", "publish_limit"])
def test_a_limit_of_one_is_accepted(name: str) -> None:
    """The smallest limit is one."""
    assert getattr(Policy(**{name: 1}), name) == 1  # type: ignore[arg-type]


@for_each("seconds", NONSENSE)
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


def test_a_nonce_is_sixteen_hex_digits() -> None:
    """A nonce has the length that stores keep eight of, and is not repeated."""
    nonces = {new_nonce() for _ in range(100)}
    assert len(nonces) == 100
    assert all(len(nonce) == 16 and int(nonce, 16) >= 0 for nonce in nonces)
