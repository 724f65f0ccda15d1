"""The table of rules: complete, and free of dead ends and ways back from an end."""

from __future__ import annotations

from onejob.jobs.lifecycle import FINAL, RULES, State, Transition
from tests.cases import for_each

LIVE = frozenset(State) - FINAL


def _ways(state: State, *, fenced: bool | None = None) -> set[State]:
    """Return the states that one event leads to."""
    rules = [rule for rule in RULES.values() if state in rule.sources and fenced in (None, rule.fenced)]
    return {rule.target for rule in rules if rule.target is not None}


def _reachable(state: State) -> set[State]:
    """Return all states that a job can come to from `state`."""
    found, new = {state}, {state}
    while new:
        new = {target for source in new for target in _ways(source)} - found
        found |= new
    return found


def test_states_are_six() -> None:
    """The states are the six that users of such systems know, three of them final."""
    assert [str(state) for state in State] == ["queued", "running", "retrying", "completed", "failed", "canceled"]
    assert [state for state in State if state.final] == [State.COMPLETED, State.FAILED, State.CANCELED]


def test_every_event_has_a_rule() -> None:
    """No event is without its row in the table."""
    assert set(RULES) == set(Transition)


@for_each("event", Transition)
def test_a_rule_says_what_it_means(event: Transition) -> None:
    """Every rule has sources and a meaning of its own."""
    assert RULES[event].sources
    assert " " in RULES[event].meaning
    assert sum(rule.meaning == RULES[event].meaning for rule in RULES.values()) == 1


@for_each("state", LIVE)
def test_every_live_state_has_a_way_to_every_end(state: State) -> None:
    """From every state that is not final a job can come to each of the three ends."""
    assert _reachable(state) >= FINAL


@for_each("state", LIVE)
def test_every_live_state_has_a_direct_way_out(state: State) -> None:
    """No live state can be left only by way of itself: one event leads to an end or to a run."""
    assert _ways(state) - {state}
    assert _ways(state) & FINAL


@for_each("state", FINAL)
def test_what_has_ended_stays_ended(state: State) -> None:
    """No event leaves a final state, but that a dead letter can be sent again."""
    assert _ways(state) == ({State.QUEUED} if state is State.FAILED else set())


def test_every_state_can_be_reached() -> None:
    """A new job can come to every state."""
    assert _reachable(State.QUEUED) == set(State)


def test_only_a_run_is_fenced() -> None:
    """Fenced events come from a running job, for only a run has a token to name."""
    assert {source for rule in RULES.values() if rule.fenced for source in rule.sources} == {State.RUNNING}


def test_only_the_fenced_end_a_run() -> None:
    """Nobody but the run itself, or who names its token, takes a running job to another state."""
    assert _ways(State.RUNNING, fenced=False) == set()
    assert _ways(State.RUNNING, fenced=True) >= FINAL


def test_a_claim_is_the_only_way_to_run() -> None:
    """Only a claim makes a job run, and it starts from every state in which a job waits."""
    assert [event for event, rule in RULES.items() if rule.target is State.RUNNING] == [Transition.CLAIM]
    assert RULES[Transition.CLAIM].sources == LIVE - {State.RUNNING}


def test_what_waits_can_be_canceled_expired_and_published() -> None:
    """Wherever a job waits for a run, it can be claimed, published, canceled and expired alike."""
    events = (Transition.CLAIM, Transition.PUBLISH, Transition.CANCEL, Transition.EXPIRE)
    assert {RULES[event].sources for event in events} == {LIVE - {State.RUNNING}}


def test_only_a_run_completes_or_fails() -> None:
    """A job that does not run can be canceled; it cannot have a result or an error."""
    sources = {event: rule.sources for event, rule in RULES.items() if rule.target in {State.COMPLETED, State.FAILED}}
    assert set(sources.values()) == {frozenset({State.RUNNING})}


def test_a_delivery_is_for_what_has_ended() -> None:
    """The canvas is told of an end, and only of an end."""
    assert RULES[Transition.CANVAS_NOTIFIED].sources == FINAL
    assert RULES[Transition.CANVAS_NOTIFIED].target is None


def test_a_promotion_is_for_what_has_not_begun() -> None:
    """A job that waits for its identity waits in the queue, and its turn is no change of its state."""
    assert RULES[Transition.PROMOTE].sources == {State.QUEUED}
    assert (RULES[Transition.PROMOTE].target, RULES[Transition.PROMOTE].fenced) == (None, False)
