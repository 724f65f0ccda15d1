"""Submitting is one step in the ledger: one admission per identity, and the true outcome for all others."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from onejob import (
    InvalidArgumentsError,
    InvalidPayloadError,
    Outcome,
    State,
    StoreUnavailableError,
    TaskIdReusedError,
)
from tests.celery.app import build
from tests.celery.harness import PATIENCE, ROOT, await_, on_every_store

if TYPE_CHECKING:
    from pathlib import Path

    from tests.celery.harness import House


@on_every_store("shared")
def test_many_threads_submit_one_job(shared: House) -> None:
    """Of many threads that submit the same at once, one is admitted, and all get the same job."""
    results: list[Any] = []
    start = threading.Barrier(16)

    def submit() -> None:
        start.wait()
        results.append(shared.play.delay("threads", ["hold"]))

    threads = [threading.Thread(target=submit) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outcomes = [result.outcome for result in results]
    assert (outcomes.count(Outcome.ADMITTED), outcomes.count(Outcome.ATTACHED)) == (1, 15)
    assert len({result.id for result in results}) == 1
    shared.open("threads")
    assert [result.get(PATIENCE) for result in results] == ["threads"] * 16
    assert shared.job(results[0]).duplicate_count == 15
    shared.assert_ran(results[0], State.COMPLETED, "threads", 1)


PROCESS = """
import json, sys
from tests.celery.app import build
app = build(json.loads(sys.argv[1]))
sys.stdin.readline()
print(json.dumps([app.tasks["play"].delay(f"processes-{n}", ["hold:processes"]).outcome for n in range(20)]))
"""


@on_every_store("shared")
def test_many_processes_submit_one_job_each(shared: House) -> None:
    """Of several processes that submit the same jobs at once, exactly one is admitted for each job."""
    command = [sys.executable, "-c", PROCESS, json.dumps(shared.config)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    processes = [subprocess.Popen(command, **pipes) for _ in range(3)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [json.loads(process.communicate()[0]) for process in processes]
    for outcomes in zip(*answers, strict=True):
        assert sorted(outcomes) == ["admitted", "attached", "attached"]
    shared.open("processes")
    shared.await_rest()
    assert [shared.runs(f"processes-{number}") for number in range(20)] == [1] * 20


def test_two_apps_share_one_ledger(shared: House) -> None:
    """Two app instances on one ledger, as two beats or two web services, submit one job."""
    other = build(shared.config)
    first = shared.play.delay("apps", ["hold"])
    second: Any = other.tasks["play"].delay("apps", ["hold"])
    assert (second.id, second.outcome) == (first.id, Outcome.ATTACHED)
    shared.open("apps")
    assert second.get(PATIENCE) == "apps"
    shared.assert_ran(first, State.COMPLETED, "apps", 1)


@on_every_store("shared")
def test_a_far_job_holds_its_identity(shared: House) -> None:
    """A job that is due in an hour is live: an equal submission attaches to it, and a later one waits, too."""
    far = shared.play.apply_async(("far", ["return"]), countdown=3600)
    farther = shared.play.apply_async(("far", ["return"]), countdown=7200)
    assert (farther.id, farther.outcome) == (far.id, Outcome.ATTACHED)
    assert farther.job.run_at - farther.job.created_at == pytest.approx(3600)
    farther.revoke()
    shared.assert_ran(far, State.CANCELED, "far", 0)


def test_an_equal_submission_reschedules_a_job_to_an_earlier_time(shared: House) -> None:
    """A job that is due in an hour runs at once, under its id, after an equal submission without a countdown."""
    far = shared.play.apply_async(("forward", ["return"]), countdown=3600)
    near = shared.play.delay("forward", ["return"])
    assert (near.id, near.outcome) == (far.id, Outcome.ATTACHED)
    assert far.get(PATIENCE) == "forward"
    shared.assert_ran(far, State.COMPLETED, "forward", 1)


def test_one_id_is_one_submission(shared: House) -> None:
    """Submitting again under an id that exists answers with the job of that id, and starts nothing."""
    first = shared.play.apply_async(("id", ["hold"]), task_id="an-id-of-my-own")
    again = shared.play.apply_async(("id", ["return"]), task_id="an-id-of-my-own")
    other = shared.play.apply_async(("another-call", ["return"]), task_id="an-id-of-my-own")
    assert first.id == again.id == other.id == "an-id-of-my-own"
    assert (again.outcome, other.outcome) == (Outcome.ATTACHED, Outcome.ATTACHED)
    shared.open("id")
    assert first.get(PATIENCE) == "id"
    shared.assert_ran(first, State.COMPLETED, "id", 1)
    assert shared.runs("another-call") == 0


@pytest.mark.parametrize(
    ("args", "kwargs"), [((1, 2, 3, 4), {}), ((), {}), ((1,), {"a": 1}), ((1,), {"unknown": 1}), ((), {"b": 1})]
)
def test_wrong_arguments_leave_nothing_behind(shared: House, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Arguments that do not fit the task raise a TypeError at the caller, and nothing is stored or sent."""
    before = shared.ledger.find(shared.everything())
    with pytest.raises(TypeError) as raised:
        shared.add.apply_async(args, kwargs)
    assert isinstance(raised.value, InvalidArgumentsError)
    assert shared.ledger.find(shared.everything()) == before


def test_unstorable_arguments_that_do_not_count_are_refused_too(shared: House) -> None:
    """An argument outside of the identity must be storable all the same; the identity stays free."""
    with pytest.raises(InvalidPayloadError):
        shared.play.delay("outside", ["return"], object())
    shared.assert_free("outside")


def test_a_submission_without_a_ledger_raises(house: House, tmp_path: Path) -> None:
    """When the ledger does not answer, `delay` raises `StoreUnavailableError`, and nothing is sent."""
    lost = build(house.config | {"onejob_store": f"sqlite:///{tmp_path / 'nowhere' / 'ledger.db'}"})
    with pytest.raises(StoreUnavailableError):
        lost.tasks["play"].delay("lost", ["return"])
    assert house.queued_messages() == 0


def test_every_submission_is_recorded(shared: House) -> None:
    """A job's history has its submitter, and its duplicates have theirs."""
    first = shared.play.delay("history", ["hold"])
    shared.play.delay("history", ["hold"])
    shared.app.send_task("play", ("history", ["hold"]))
    await_(lambda: shared.job(first).duplicate_count == 2)
    shared.open("history")
    assert first.get(PATIENCE) == "history"
    assert shared.ledger.history(first.id)[0].detail == "apply_async"
    assert [duplicate.source for duplicate in shared.ledger.duplicates(first.id)] == ["apply_async", "message"]


@on_every_store("shared")
def test_an_id_belongs_to_one_task(shared: House) -> None:
    """A submission under the id of another task's job raises `TaskIdReusedError`, and changes nothing."""
    first = shared.play.apply_async(("mine", ["hold"]), task_id="id-of-play")
    shared.await_mark("mine")
    before = shared.job(first)
    with pytest.raises(TaskIdReusedError, match=r"'id-of-play' belongs to a job of play, .* of echo") as raised:
        shared.echo.apply_async(("other",), task_id="id-of-play")
    assert (raised.value.job_id, raised.value.task, raised.value.existing_task) == ("id-of-play", "echo", "play")
    assert replace(shared.job(first), wake_at=None, lease_until=None) == replace(before, wake_at=None, lease_until=None)
    shared.open("mine")
    assert first.get(PATIENCE) == "mine"


def test_a_message_with_the_id_of_another_task_is_dropped(shared: House) -> None:
    """A message with the id of another task's job is dropped: that job runs and ends as itself, with its own canvas."""
    waiting = shared.play.apply_async(("waits", ["return"]), countdown=3600, task_id="id-of-another")
    shared.app.send_task("echo", ("other",), task_id="id-of-another")
    shared.app.send_task("plain", ("sent",))
    shared.await_mark("sent", "plain")
    await_(lambda: shared.queued_messages() == 0)
    assert (shared.job(waiting).state, shared.marks("echo")) == (State.QUEUED, [])
    due = shared.play.apply_async(("due", ["hold"]), task_id="id-of-a-due-one")
    shared.await_mark("due")
    shared.app.send_task("echo", ("other",), task_id="id-of-a-due-one")
    shared.open("due")
    assert due.get(PATIENCE) == "due"
    shared.app.send_task("echo", ("other",), task_id="id-of-a-due-one")
    waiting.revoke()
    await_(lambda: shared.queued_messages() == 0)
    assert (shared.runs("due"), shared.marks("echo")) == (1, [])
