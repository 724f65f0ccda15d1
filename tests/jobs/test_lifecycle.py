"""The state machine has no dead ends, and only redrive leaves a final state; policies are times and limits."""

import itertools
from typing import Any

import pytest

from onejob.errors import ConfigurationError
from onejob.jobs.ledger_settings import LedgerSettings
from onejob.jobs.lifecycle import FINAL, RULES, State
from tests.cases import for_each

LIVE = frozenset(State) - FINAL


def _next_states(state: State, *, fenced: bool | None = None) -> set[State]:
    rules = [rule for rule in RULES.values() if state in rule.sources and fenced in (None, rule.fenced)]
    return {rule.target for rule in rules if rule.target is not None}


def _reachable(state: State) -> set[State]:
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


@for_each("state", State)
def test_no_state_is_a_dead_end_but_the_final_ones(state: State) -> None:
    """From every live state each final state is reachable, one by one transition; only redrive leaves a final one."""
    if state in LIVE:
        assert _reachable(state) >= FINAL
        assert _next_states(state) & FINAL
    else:
        assert _next_states(state) == ({State.QUEUED} if state is State.FAILED else set())


def test_a_run_is_left_by_its_token_alone() -> None:
    """Fenced transitions start in the state running, since only a run has a token, and no other one ends a run."""
    assert {source for rule in RULES.values() if rule.fenced for source in rule.sources} == {State.RUNNING}
    assert _next_states(State.RUNNING, fenced=False) == set()
    assert _next_states(State.RUNNING, fenced=True) >= FINAL


NONSENSE = (0.0, -1.0, float("nan"), float("inf"), float("-inf"))


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
        LedgerSettings(**wrong)
    assert LedgerSettings(crash_limit=1, publish_limit=1).crash_limit == 1
