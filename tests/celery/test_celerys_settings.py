"""Settings of Celery's own that change how a worker begins, receives or ends a run: what each means for a job."""

import os
import signal
from typing import Any

import celery
import pytest

from onejob import State
from onejob.jobs.lifecycle import Transition
from tests.cases import further
from tests.celery.harness import PATIENCE, Cluster, await_
from tests.quiet import provokes

NO_ACKS: dict[str, Any] = {
    "task_acks_late": True, "task_acks_on_failure_or_timeout": False, "task_acks_on_failure": False,
    "task_acks_on_timeout": False,
}  # fmt: skip


@pytest.mark.skipif(tuple(celery.VERSION) < (5, 7), reason="the setting came with Celery 5.7")
@pytest.mark.parametrize("method", ["spawn", *further("fork")])
def test_jobs_run_in_processes_of_every_start_method(cluster: Cluster, method: str) -> None:
    """`worker_pool_start_method`: however its processes begin, a worker runs jobs, and keeps those of one that dies."""
    cluster.worker("-c", "1", forked=False, worker_pool_start_method=method)
    assert cluster.play.delay("plain", ["return:ran"]).get(PATIENCE) == "ran"
    killed = cluster.play.delay("killed", ["kill", "return:again"])
    assert killed.get(PATIENCE) == "again"
    assert (cluster.runs("killed"), cluster.job(killed).crashes) == (2, 1)


def test_a_run_whose_process_dies_is_one_crash(cluster: Cluster) -> None:
    """`task_retry_on_worker_lost`: a job whose process dies runs again at once, which is no retry by Celery."""
    cluster.worker("-c", "1", task_retry_on_worker_lost=True, worker_lost_wait=PATIENCE)
    killed = cluster.play_acks_late.delay("killed", ["kill", "return:again"])
    assert killed.get(PATIENCE) == "again"
    job = cluster.assert_ran(killed, State.COMPLETED, "killed", 2)
    assert (job.crashes, job.retries) == (1, 0)


@provokes(logs=["Hard time limit", "SIGKILL"], because="a body fails, and one takes too long")
def test_a_failed_job_has_no_message(cluster: Cluster) -> None:
    """`task_acks_on_failure`, `_on_timeout`, `_on_failure_or_timeout`: a job that has failed is delivered no more."""
    cluster.worker("-c", "1", **NO_ACKS, onejob_broker_acks=True)
    failed = cluster.play.delay("failed", ["raise"])
    late = cluster.play_time_limit.delay("late", ["hold:never"])
    cluster.await_state(failed, State.FAILED)
    cluster.await_state(late, State.FAILED)
    await_(lambda: cluster.queued_messages() == 0)
    assert (cluster.runs("failed"), cluster.runs("late")) == (1, 1)


def test_a_worker_without_prefetch_leaves_messages_to_others(cluster: Cluster) -> None:
    """`worker_disable_prefetch`: what no process can run stays in the broker, and other workers run it."""
    cluster.worker("-c", "1", worker_disable_prefetch=True)
    held = cluster.begin("held")
    others = [cluster.play.delay(f"other-{number}", ["return:ran"]) for number in range(3)]
    await_(lambda: cluster.queued_messages() == 3)
    cluster.worker("-c", "1", worker_disable_prefetch=True)
    assert [result.get(PATIENCE) for result in others] == ["ran"] * 3
    cluster.open("held")
    assert held.get(PATIENCE) == "held"


@pytest.mark.skipif(tuple(celery.VERSION) < (5, 6), reason="the setting came with Celery 5.6")
def test_jobs_that_wait_for_their_times_are_not_counted(cluster: Cluster) -> None:
    """`worker_eta_task_limit`: jobs with a countdown wait in the ledger, so that a worker takes as many as before."""
    cluster.worker("-c", "2", worker_eta_task_limit=1, worker_prefetch_multiplier=2)
    later = [cluster.play.apply_async((f"later-{n}", ["return:later"]), countdown=0.5) for n in range(5)]
    assert [result.get(PATIENCE) for result in later] == ["later"] * 5
    both = [cluster.begin("left", ["hold:both"]), cluster.begin("right", ["hold:both"])]
    cluster.open("both")
    assert [result.get(PATIENCE) for result in both] == ["left", "right"]


def test_a_chord_whose_counter_expires_ends(cluster: Cluster) -> None:
    """`result_chord_expires`: a chord of jobs ends within the time for which Celery keeps its counter."""
    cluster.worker("-c", "2", result_chord_expires=60)
    chord = celery.chord([cluster.play.s(str(number), ["return:part"]) for number in range(3)])
    assert chord(cluster.gather.s("key")).get(PATIENCE) == ["part"] * 3


@provokes(Transition.RELEASE, because="a worker is shut down cold")
def test_remapped_sigterm_is_a_cold_shutdown(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """`REMAP_SIGTERM=SIGQUIT`: SIGTERM shuts a worker down cold, and its job is requeued, which is no crash."""
    monkeypatch.setenv("REMAP_SIGTERM", "SIGQUIT")
    first = cluster.worker("-c", "1", forked=False)
    held = cluster.begin("held", ["hold:gate", "return:again"])
    os.kill(first.pid, signal.SIGTERM)
    first.await_end()
    assert "Cold" in first.text
    monkeypatch.delenv("REMAP_SIGTERM")
    cluster.worker("-c", "1")
    assert held.get(PATIENCE) == "again"
    assert (cluster.runs("held"), cluster.job(held).crashes) == (2, 0)


@pytest.mark.deep
def test_jobs_in_quorum_queues_run(rabbit: Cluster, channel: Any, queue: str) -> None:
    """Quorum queues: jobs run once each, with a countdown, a retry and a time that waits in the ledger, too."""
    quorum = {"task_default_queue_type": "quorum", "broker_transport_options": {"confirm_publish": True}}
    rabbit.app.conf.update(quorum)
    rabbit.worker("-c", "2", **quorum)
    results = [rabbit.play.delay("once", ["return:1"]), rabbit.play.delay("again", ["retry", "return:2"])]
    results += [rabbit.play.apply_async(("later", ["return:3"]), countdown=0.3)]
    assert [result.get(PATIENCE) for result in results] == ["1", "2", "3"]
    assert [rabbit.runs(key) for key in ("once", "again", "later")] == [1, 2, 1]
    channel.queue_declare(queue, durable=True, auto_delete=False, arguments={"x-queue-type": "quorum"})  # or it raises
