"""What an operator's operation does, with real workers, to what hangs on the job above the ledger."""

from collections.abc import Callable

import pytest
from celery.exceptions import TaskRevokedError

from onejob import Outcome
from onejob.client.jobs import edit
from onejob.jobs.lifecycle import State
from tests.celery.harness import PATIENCE, Cluster


def test_a_job_that_is_canceled_while_it_waits_for_its_replacement_stays_so(
    new_cluster: Callable[..., Cluster],
) -> None:
    """The tasks of a chain that replaced it go on, as jobs of their own; the one at its end, which is the job, not."""
    cluster = new_cluster()
    cluster.worker()
    replaced = cluster.play.delay("replaced", ["replace:play,play"], ["part", ["hold:go"]])
    cluster.await_mark("part")
    cluster.await_state(replaced, State.QUEUED)
    cluster.ledger.cancel(replaced.id)
    cluster.await_state(replaced, State.CANCELED)  # it may be looking for its end, and then ends after that
    cluster.open("go")
    (part,) = [job for job in cluster.jobs(task="play") if job.id != replaced.id]
    cluster.await_state(part.id, State.COMPLETED)
    cluster.await_rest()
    assert cluster.job(replaced).state is State.CANCELED
    assert cluster.runs("part") == 1
    assert {job.id for job in cluster.jobs()} == {replaced.id, part.id}
    with pytest.raises(TaskRevokedError):
        replaced.get(PATIENCE)


def test_a_cancellation_reaches_the_followers_of_a_job(cluster: Cluster) -> None:
    """Who has attached with an id of its own gets the cancellation as its end; one that is canceled alone, alone."""
    first = cluster.play.apply_async(("k", ["return"]), countdown=3600)
    followers = [
        cluster.play.apply_async(("k", ["return"]), task_id=name, countdown=3600) for name in ("alone", "along")
    ]
    cluster.ledger.cancel("alone")
    assert cluster.job(first).state is State.QUEUED
    cluster.ledger.cancel(first.id)
    cluster.worker()
    for result in (first, *followers):
        assert cluster.await_state(result, State.CANCELED).state is State.CANCELED
    assert cluster.job("along").reason.startswith(f"it follows job {first.id}, which was canceled")


def test_an_edited_job_answers_the_callers_key(cluster: Cluster) -> None:
    """The caller's repeated call gets the result of the edited job, also through a worker's message and its end."""
    dead = cluster.play.apply_async(("k", ["raise:no"]), idempotency_key="key")
    cluster.worker()
    cluster.await_state(dead, State.FAILED)
    edited = edit(cluster.app, cluster.ledger, dead.id, args=["k", ["return:mended"]]).job
    again = cluster.play.apply_async(("k", ["raise:no"]), idempotency_key="key")
    assert again.id == edited.id
    assert again.outcome in {Outcome.ATTACHED, Outcome.REPLAYED}
    assert again.get(PATIENCE) == "mended"
    assert cluster.runs("k") == 2
