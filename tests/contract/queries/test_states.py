"""Lists and numbers of the jobs in each state, which are read from indexes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.records import Query
from onejob.jobs.visibility import Visibility
from onejob.ledger.ledger import Ledger
from onejob.ledger.reader import JobReader
from onejob.stores.state_index import INDEXED_STATES
from tests.contract.support import START, ManualClock, apply, end, read, run, start, steps_to, submit, sweep

if TYPE_CHECKING:
    from onejob.stores.protocol import Store

LISTED = (*INDEXED_STATES, State.RUNNING)


def only(state: State, **values: Any) -> Query:
    """Return a query for the jobs in one state."""
    return Query(states=frozenset({state}), **values)


def ids(store: Store, query: Query) -> list[str]:
    """Return the ids of the jobs that are found."""
    return [job.id for job in store.find(query)]


@pytest.mark.parametrize("state", LISTED)
def test_the_jobs_of_a_state_are_listed_as_all_are(store: Store, clock: ManualClock, state: State) -> None:
    """The list of a state is the list of all jobs without the others: its order, time range, pages and filters."""
    for number in range(24):
        job_id = f"job-{number:02}"
        steps_to(store, job_id, state if number % 3 else State.QUEUED)
        clock.advance(1.0 if number % 2 else 0.0)
    mine = [job for job in store.find(Query()) if job.state is state]
    assert store.find(only(state)) == mine
    assert ids(store, only(state, offset=3, limit=4)) == [job.id for job in mine[3:7]]
    last = mine[4]
    assert store.find(only(state, before=last.created_at, before_id=last.id)) == mine[5:]
    assert store.find(only(state, before=last.created_at)) == [job for job in mine if job.created_at < last.created_at]
    since, until = START + 3.0, START + 9.0
    within = [job for job in mine if since <= job.created_at < until]
    assert store.find(only(state, since=since, until=until)) == within
    assert store.counts(only(state, since=since, until=until)) == {state: len(within)}
    assert store.find(only(state, task="none")) == []
    assert ids(store, only(state, identity="identity-of-job-07")) == ["job-07"]
    assert store.counts(only(state), limit=5) == {state: 5}


@pytest.mark.parametrize("state", [State.RUNNING, State.CANCELED])
def test_more_jobs_of_a_state_than_a_store_reads_at_once(store: Store, clock: ManualClock, state: State) -> None:
    """Pages of a state return each job once, also if more have equal times than a store reads at once."""
    names = sorted((f"job-{number:03}" for number in range(260)), reverse=True)
    for name in names:
        steps_to(store, name, state)
    query, seen = only(state, limit=70, light=True), list[str]()
    while page := store.find(query):
        seen += [job.id for job in page]
        query = replace(query, before=page[-1].created_at, before_id=page[-1].id)
    assert seen == names
    assert store.counts(only(state)) == {state: 260}


def test_states_are_counted(store: Store) -> None:
    """Every job counts in its state, and each number is limited."""
    assert store.count_states(limit=10) == dict.fromkeys(State, 0)
    for number, state in enumerate(State):
        for each in range(number + 1):
            steps_to(store, f"{state}-{each}", state)
    assert store.count_states(limit=10) == {state: number + 1 for number, state in enumerate(State)}
    for limit in (1, 3, 6):
        assert store.count_states(limit=limit) == {state: min(n, limit) for n, state in enumerate(State, 1)}


def test_a_job_counts_as_queued_until_its_canvas_is_notified(store: Store) -> None:
    """A job that has ended counts as queued, and not as completed, until its canvas is notified."""
    job = end(store, run(store, canvas=True))
    counted = store.count_states(limit=10)
    assert (counted[State.QUEUED], counted[State.COMPLETED]) == (1, 0)
    apply(store, job, Transition.CANVAS_NOTIFIED, canvas_pending=False, wake_in=100.0)
    counted = store.count_states(limit=10)
    assert (counted[State.QUEUED], counted[State.COMPLETED]) == (0, 1)


def test_a_failed_job_with_a_canvas_is_not_negative(store: Store) -> None:
    """No number is below zero, although a failed job whose canvas is not notified has not ended for the index."""
    end(store, run(store, canvas=True), Transition.FAIL)
    assert store.count_states(limit=10) == dict.fromkeys(State, 0) | {State.QUEUED: 1, State.FAILED: 1}


def test_a_state_is_left_with_every_transition(store: Store, clock: ManualClock) -> None:
    """A job is in the list of its state alone, whichever way it came into it: by a run, an operator or a sweep."""
    ledger = Ledger(store)

    def states_of(job_id: str) -> list[State]:
        return [state for state in LISTED if job_id in ids(store, only(state))]

    job = run(store)
    assert states_of(job.id) == [State.RUNNING]
    apply(store, job, Transition.RETRY, run_in=0.0, wake_in=1.0)
    assert states_of(job.id) == [State.RETRYING]
    job = start(store)
    assert states_of(job.id) == [State.RUNNING]
    ledger.crash(job, "lost", "{}")
    assert states_of(job.id) == []
    ledger.fail(start(store), "{}", "failed")
    assert states_of(job.id) == [State.FAILED]
    ledger.redrive(job.id)
    assert states_of(job.id) == []
    apply(store, start(store), Transition.RETRY, run_in=100.0, wake_in=100.0)
    ledger.cancel(job.id)
    assert states_of(job.id) == [State.CANCELED]
    clock.advance(1e7)
    sweep(ledger, lambda _: None)
    assert states_of(job.id) == []
    assert store.count_states(limit=10) == dict.fromkeys(State, 0)


@pytest.mark.parametrize("state", INDEXED_STATES)
def test_a_deleted_job_is_in_no_state(store: Store, state: State) -> None:
    """A job that is deleted is listed and counted in no state any more."""
    for name in ("stays", "goes"):
        steps_to(store, name, state)
    if read(store, "goes").holds_identity:
        apply(store, read(store, "goes"), Transition.RELEASE_IDENTITY, sources=frozenset(State), keeps_identity=False)
    assert store.delete(["goes"], sources=frozenset({state})) == ["goes"]
    assert ids(store, only(state)) == ["stays"]
    assert store.count_states(limit=10)[state] == 1


def test_a_limited_reader_counts_the_newest_jobs_it_sees(store: Store, clock: ManualClock) -> None:
    """The numbers of a reader are those of the jobs that it sees; of a limited one up to the limit in all."""
    for number in range(6):
        submit(store, f"job-{number}", submitter="ada" if number % 2 else "bob")
        clock.advance(1.0)
    start(store, "job-5")
    everyone, ada = JobReader(store), JobReader(store, Visibility(submitter="ada"))
    zeros = dict.fromkeys(State, 0)
    assert everyone.count_states(limit=4) == zeros | {State.QUEUED: 4, State.RUNNING: 1}
    assert ada.count_states(limit=10) == zeros | {State.QUEUED: 2, State.RUNNING: 1}
    assert ada.count_states(limit=2) == zeros | {State.QUEUED: 1, State.RUNNING: 1}


def test_an_indexed_query_has_no_other_filter(store: Store) -> None:
    """The jobs of a query have an index if it has no filter, or one state that has an index."""
    assert store.is_indexed(Query(since=START, limit=7))
    assert {state for state in State if store.is_indexed(only(state))} == set(LISTED)
    others: list[dict[str, Any]] = [
        {"task": "a"}, {"tasks": frozenset()}, {"queue": ""}, {"arguments": "a"}, {"node": "a"}, {"reason": "a"},
        {"states": frozenset({State.FAILED, State.CANCELED})}, {"states": frozenset({State.FAILED}), "task": "a"},
        {"unsettled": True}, {"submitter": ""}, {"submitter": "a", "task": "a"},
    ]  # fmt: skip
    assert [values for values in others if store.is_indexed(Query(**values))] == []
