"""The operations of the client are those of every other front end, and the audit log has them."""

from __future__ import annotations

import getpass
import socket
from typing import Any

import pytest
from celery import Celery

import onejob
from onejob.client.operation import Operation
from onejob.errors import (
    ConfigurationError,
    JobNotFoundError,
    JobPurgedError,
    NoDeadLetterError,
    OneJobError,
    ScheduleEntryNotFoundError,
)
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Cancel, Outcome
from onejob.jobs.workers import Registration
from onejob.ledger.ledger import Ledger
from tests.cases import for_each
from tests.conftest import every_store
from tests.operation_cases import NEEDED, OPERATION_CASES, OperationCase, completed, effects, failed, queued, running

CALLS: dict[Operation, tuple[str, dict[str, Any]]] = {
    Operation.CANCEL: ("cancel", {}), Operation.FORCE_CANCEL: ("cancel", {"force": True}),
    Operation.RUN_NOW: ("run_now", {}), Operation.REDRIVE: ("redrive", {}),
    Operation.DELETE: ("delete", {}), Operation.FORCE_DELETE: ("delete", {"force": True}),
}  # fmt: skip
"""The method of each operation, and its arguments."""


@every_store
@for_each("case", [*OPERATION_CASES, *NEEDED])
def test_an_operation_is_passed_on_and_recorded(client: onejob.Client, ledger: Ledger, case: OperationCase) -> None:
    """Each operation changes its job, which it returns, and refuses another; the audit log has both, with the actor."""
    job, other = case.accepted(ledger), case.refused(ledger)
    before = effects(ledger)[other.id]
    name, options = CALLS[case.operation]
    after = getattr(client, name)(job.id, **options)
    assert (None if after is None else after.state) == case.state
    expected = None if case.state is None else (case.state, f"{case.reason} in Python by ann")
    assert effects(ledger).get(job.id) == expected
    with pytest.raises(OneJobError) as refused:
        getattr(client, name)(other.id, **options)
    assert case.why in str(refused.value)
    assert effects(ledger)[other.id] == before
    last, first = ledger.audit(limit=2)
    for entry, each in ((first, job), (last, other)):
        assert (entry.actor, entry.source, entry.address) == ("ann", "python", socket.gethostname())
        assert (entry.action, entry.target) == (case.operation.permission, each.id)
        assert entry.detail == ("forced" if case.operation.is_forced else "")
    assert (first.outcome, last.outcome.partition(":")[0]) == ("done", "refused")


@every_store
@for_each("case", OPERATION_CASES)
def test_many_jobs_are_operated_on(client: onejob.Client, ledger: Ledger, case: OperationCase) -> None:
    """`bulk` takes the jobs that match in the states of the operation; a dry run changes and records nothing."""
    job = case.accepted(ledger)
    case.refused(ledger)
    name: Any = str(case.operation)
    since = client.get(job.id).created_at
    before, entries = effects(ledger), ledger.audit(limit=99)
    found = client.bulk(name, since=since, dry_run=True)
    assert job.id in found.done
    assert found.refused == {}
    assert found.next is None
    assert (effects(ledger), ledger.audit(limit=99)) == (before, entries)
    assert client.bulk(name, since=since).done == found.done
    assert effects(ledger).get(job.id, (None, ""))[0] == case.state
    (entry,) = ledger.audit(limit=1)
    assert entry.outcome == f"{len(found.done)} done, 0 refused"
    assert entry.detail.removeprefix("forced ").startswith("since=")


def test_a_bulk_operation_goes_on_by_its_cursor(client: onejob.Client, ledger: Ledger) -> None:
    """After `limit` jobs a bulk operation ends; its `next` continues it, until every job was processed once."""
    jobs = [queued(ledger).id for _ in range(5)][::-1]
    first = client.bulk("run_now", task="shop.invoice", limit=2)
    second = client.bulk("run_now", task="shop.invoice", limit=9, cursor=first.next)
    assert (first.done, second.done, second.next) == (jobs[:2], jobs[2:], None)


def test_jobs_are_selected_by_id(client: onejob.Client, ledger: Ledger) -> None:
    """One of several ids that is refused stops no other, and its reason is returned; the audit log has the ids."""
    first, ended = queued(ledger), completed(ledger)
    result = client.bulk("cancel", job_ids=[first.id, ended.id, "unknown"])
    assert (result.done, {*result.refused}) == ([first.id], {ended.id, "unknown"})
    assert "is completed" in result.refused[ended.id]
    assert ledger.audit(limit=1)[0].target == f"{first.id} {ended.id} unknown"


def test_values_of_arguments_are_not_recorded(client: onejob.Client, ledger: Ledger) -> None:
    """The audit log has the filters of a bulk operation, and of those that may quote arguments the names alone."""
    queued(ledger)
    client.bulk("force_cancel", state=["queued", "retrying"], argument="secret", submitter="", limit=3)
    assert ledger.audit(limit=1)[0].detail == "forced state=queued state=retrying argument submitter= limit=3"
    client.bulk("cancel", everything=True)
    assert ledger.audit(limit=1)[0].detail == "all=true"


@for_each("given, kind, text", [
    ({"operation": "stop", "task": "x"}, ValueError, "'stop' is no operation: write one of cancel, force_cancel"),
    ({"operation": "cancel"}, ValueError, "give job_ids, a filter, or everything=True"),
    ({"operation": "cancel", "error": ""}, ValueError, "nothing is selected"),
    ({"operation": "cancel", "job_ids": "one"}, TypeError, "job_ids is a list of ids, not the text 'one'"),
    ({"operation": "cancel", "job_ids": ["one"], "task": "x"}, ValueError, "job_ids select the jobs alone"),
    ({"operation": "cancel", "job_ids": ["one"], "limit": 3}, ValueError, "job_ids select the jobs alone"),
    ({"operation": "cancel", "task": "x", "limit": 0}, ValueError, "limit=0 is a number of jobs from 1"),
])  # fmt: skip
def test_nothing_is_selected_by_accident(
    client: onejob.Client, ledger: Ledger, given: dict[str, Any], kind: type[Exception], text: str
) -> None:
    """A bulk operation without a selection, or with two, changes nothing, and says what to write."""
    job = queued(ledger)
    with pytest.raises(kind, match=text):
        client.bulk(**given)
    assert ledger.get(job.id) == job


def test_a_missing_job_is_named(client: onejob.Client, ledger: Ledger) -> None:
    """Every method that takes an id raises `JobNotFoundError`, or `JobPurgedError` for a job that was deleted."""
    gone = failed(ledger)
    client.delete(gone.id)
    for name in ("get", "why", "duplicates", "cancel", "run_now", "redrive", "delete"):
        with pytest.raises(JobPurgedError, match=gone.id):
            getattr(client, name)(gone.id)
        with pytest.raises(JobNotFoundError, match="no-such-job"):
            getattr(client, name)("no-such-job")


# --- what the client shows ------------------------------------------------------------------------------------------


@every_store
def test_a_job_is_explained(client: onejob.Client, app: Celery, ledger: Ledger) -> None:
    """`why` has the sentences of `onejob why`, the history and the duplicates, whose times are `datetime`."""
    invoice: Any = app.tasks["shop.invoice"]
    with onejob.submitter("bob"):
        first = invoice.delay(1)
        invoice.delay(1, "again")
    found = client.why(first.id)
    assert found.job == client.get(first.id)
    assert any(", by bob) was attached" in each for each in found.sentences)
    assert [each.event for each in found.history] == ["submit"]
    assert found.duplicates == client.duplicates(first.id)
    (duplicate,) = found.duplicates
    assert duplicate.outcome == Outcome.ATTACHED
    assert duplicate.submitter == "bob"
    assert duplicate.arguments_differ
    assert duplicate.at >= found.history[0].at >= found.job.created_at
    assert found.stuck == "no worker is alive"
    assert ledger.get(first.id).duplicate_count == 1


@every_store
def test_queues_and_workers_are_listed(client: onejob.Client, ledger: Ledger) -> None:
    """The client lists the live workers, and the queues with their jobs and slots."""
    assert (client.workers(), client.queues()) == ([], [])
    registration = Registration(tasks=("shop.invoice",), queues=("celery",), pool="prefork", concurrency=4)
    ledger.heartbeat("north@host", lasts=60.0, registration=registration)
    (worker,) = client.workers()
    assert (worker.name, worker.pool, worker.concurrency, worker.queues) == ("north@host", "prefork", 4, ("celery",))
    assert (worker.started_at, worker.silent_since) == (None, None)
    assert worker.seen_at.tzinfo is not None
    (queue,) = client.queues()
    assert (queue.queue, queue.slots, queue.workers) == ("celery", 4, 1)


# --- what needs the app -----------------------------------------------------------------------------------------------


def test_a_dead_letter_is_edited(app: Celery, ledger: Ledger) -> None:
    """With an app `edit` submits a dead letter with other arguments, and the audit log has it."""
    client = onejob.Client(app)
    invoice: Any = app.tasks["shop.invoice"]
    dead = invoice.delay(1)
    running_job = ledger.claim(dead.id, nonce="n", node="north").job
    assert running_job is not None
    ledger.fail(running_job, '{"type": "E", "message": "", "traceback": ""}', "E")
    edited = client.edit(dead.id, args=[2])
    assert (edited.outcome, edited.job.state, edited.job.task) == (Outcome.ADMITTED, State.QUEUED, "shop.invoice")
    assert edited.job == client.get(edited.job.id)
    with pytest.raises(JobPurgedError):
        client.get(dead.id)
    (entry,) = ledger.audit(limit=1)
    assert (entry.action, entry.actor, entry.detail) == ("edit", getpass.getuser(), "args kwargs")
    with pytest.raises(NoDeadLetterError):
        client.edit(edited.job.id, kwargs={"note": "x"})
    with pytest.raises(ValueError, match="give args, kwargs or both"):
        client.edit(edited.job.id)


def test_schedules_are_paused_resumed_and_run(app: Celery, ledger: Ledger) -> None:
    """With an app the entries of its schedule are listed, paused, resumed and run, and the audit log has it."""
    schedules = onejob.Client(app).schedules
    paused = schedules.pause("hourly")
    assert paused.name == "hourly"
    assert paused.paused
    assert paused.next_tick_at is None
    assert paused in schedules.list()
    resumed = schedules.resume("hourly")
    assert resumed.next_tick_at is not None
    assert resumed.next_tick_at.tzinfo is not None
    assert ledger.get(schedules.run("hourly")).task == "shop.invoice"
    with pytest.raises(ScheduleEntryNotFoundError, match="did you mean hourly"):
        schedules.pause("hourli")
    recorded = [(each.action, each.target, each.outcome.partition(":")[0]) for each in ledger.audit(limit=9)]
    assert recorded == [
        ("beat pause", "hourli", "refused"), ("beat run", "hourly", "done"), ("beat resume", "hourly", "done"),
        ("beat pause", "hourly", "done"),
    ]  # fmt: skip


def test_what_needs_the_app_says_so(client: onejob.Client, ledger: Ledger) -> None:
    """With a URL alone, `edit` and the schedule raise an error that names the app, and all else works."""
    dead, run = failed(ledger), running(ledger)
    schedules = client.schedules
    for call in (
        lambda: client.edit(dead.id, args=[2]), schedules.list, lambda: schedules.pause("hourly"),
        lambda: schedules.resume("hourly"), lambda: schedules.run("hourly"),
    ):  # fmt: skip
        with pytest.raises(ConfigurationError, match=r"give onejob\.Client the app, and not the URL of its ledger"):
            call()
    assert ledger.audit(limit=9) == [], "nothing was tried"
    assert client.redrive(dead.id).state is State.QUEUED
    assert client.cancel(run.id, force=True).cancel_requested
    assert ledger.get(run.id).cancel is Cancel.FORCED
