"""Every kind of session and connection: a commit, a rollback and a savepoint decide on submissions and completions."""

import pytest

from onejob import LeaseLost, Outcome
from onejob.celery.current_job import RunningJob
from onejob.jobs.lifecycle import State, Transition
from onejob.observability.events import JobEvent
from tests.quiet import provokes
from tests.transactions.owners import Owner
from tests.transactions.place import Place


def published(place: Place, owner: Owner) -> list[str]:
    """Return the messages after a commit: published at once if the library reports commits, else by the next sweep."""
    if not owner.hooked:
        assert place.messages() == []
        place.sweep()
    return place.messages()


def submitted(emitted: list[JobEvent]) -> list[tuple[str, object]]:
    return [(event.job_id, event.fields["outcome"]) for event in emitted if event.name == "job_submitted"]


def complete(owner: Owner, run: RunningJob, result: str) -> None:
    owner.call(lambda handle: run.complete_in(handle, result))


def test_the_commit_creates_and_publishes_the_job(place: Place, owner: Owner, emitted: list[JobEvent]) -> None:
    """A job exists, is published, and is reported with its duplicates, after the commit of its transaction only."""
    owner.execute(place.stage.insert("a"))
    first, second = owner.submit(place.effect, "a"), owner.submit(place.effect, "a")
    assert (first.outcome, second.outcome, second.id) == (Outcome.ADMITTED, Outcome.ATTACHED, first.id)
    assert (place.jobs(), place.messages(), place.notes("a"), emitted) == ([], [], 0, [])
    owner.commit()
    assert [(job.id, job.state) for job in place.jobs()] == [(first.id, State.QUEUED)]
    assert (published(place, owner), place.notes("a"), place.sweep()) == ([first.id], 1, 0)
    assert submitted(emitted) == ([(first.id, "admitted"), (first.id, "attached")] if owner.hooked else [])


def test_a_rollback_leaves_no_trace(place: Place, owner: Owner, emitted: list[JobEvent]) -> None:
    """A job whose transaction was rolled back does not exist, and the session's next commit publishes its own only."""
    owner.execute(place.stage.insert("a"))
    owner.submit(place.effect, "first")
    owner.rollback()
    assert (place.rows("jobs"), place.rows("history"), place.sweep(), place.messages()) == (0, 0, 0, [])
    assert (place.notes("a"), submitted(emitted)) == (0, [])
    second = owner.submit(place.effect, "second")
    owner.commit()
    owner.execute("select 1")
    owner.commit()
    assert published(place, owner) == [second.id]


def test_savepoints_are_undone_by_themselves(place: Place, owner: Owner, emitted: list[JobEvent]) -> None:
    """A job in a savepoint that was rolled back does not exist; one in a released savepoint is published once."""
    savepoint = owner.savepoint()
    kept = owner.submit(place.effect, "kept")
    savepoint.release()
    savepoint = owner.savepoint()
    owner.submit(place.effect, "undone")
    savepoint.rollback()
    assert (place.jobs(), place.messages()) == ([], [])
    owner.commit()
    assert [job.id for job in place.jobs()] == [kept.id] == published(place, owner)
    assert place.sweep() == 0
    assert submitted(emitted) == ([(kept.id, "admitted")] if owner.hooked else [])
    savepoint = owner.savepoint()
    owner.submit(place.effect, "rolled back around it")
    savepoint.release()
    owner.rollback()
    owner.commit()
    assert [job.id for job in place.jobs()] == [kept.id]
    assert place.messages() == [kept.id]


@provokes(Transition.CRASH, because="the test ends the run")
def test_effects_result_and_state_are_one_commit(place: Place, owner: Owner) -> None:
    """A completion is undone by a rollback, or committed with its effects; a stale run is refused before its commit."""
    run = place.started("a")
    for result, end in (("undone", owner.rollback), ("kept", owner.commit)):
        owner.execute(place.stage.insert("a"))
        complete(owner, run, result)
        assert (place.ledger.get(run.id), place.notes("a"), run.find_committed()) == (run.job, 0, None)
        end()
    job = place.ledger.get(run.id)
    assert (job.state, job.result, place.notes("a")) == (State.COMPLETED, '"kept"', 1)
    assert run.find_committed() == job
    stale = place.started("b")
    second = place.claim_again(stale)
    with pytest.raises(LeaseLost):
        complete(owner, stale, "late")
    owner.rollback()
    assert place.ledger.complete(second, '"in time"').result == '"in time"'
