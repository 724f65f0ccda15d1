"""Operations at the command line: of one job, of many, of dead letters; what the audit log has of them."""

from __future__ import annotations

import getpass
import json
import re
import socket
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from celery import Celery

from onejob.celery.app_state import app_state_of
from onejob.celery.messages.payload import encode
from onejob.cli.access import audited, find_app
from onejob.client.operation import Operation
from onejob.jobs.audit_entries import AuditEntry
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Outcome
from onejob.jobs.query import Query
from onejob.jobs.text_limits import TextLimits
from onejob.jobs.timestamps import format_timestamp
from onejob.ledger.ledger import Ledger
from tests.cases import for_each
from tests.cli.command import Shell, call
from tests.fundamentals.shop import claimed, order
from tests.operation_cases import NEEDED, OPERATION_CASES, OperationCase, completed, effects, failed, queued, running

COMMANDS = {
    Operation.CANCEL: ("jobs", "cancel"), Operation.FORCE_CANCEL: ("jobs", "cancel", "--force"),
    Operation.RUN_NOW: ("jobs", "run-now"), Operation.REDRIVE: ("dead", "redrive"),
    Operation.DELETE: ("jobs", "delete"), Operation.FORCE_DELETE: ("jobs", "delete", "--force"),
}  # fmt: skip


@for_each("case", [*OPERATION_CASES, *NEEDED])
def test_an_operation_is_passed_on_and_recorded(ledger: Ledger, shell: Shell, case: OperationCase) -> None:
    """Each operation changes its job and refuses another; both are in the audit log, with the user and the host."""
    job, other = case.accepted(ledger), case.refused(ledger)
    before = effects(ledger)
    done, refused = (shell(*COMMANDS[case.operation], each.id) for each in (job, other))
    assert done.exit_code == 0, done.output
    assert job.id in done.output, done.output
    expected = None if case.state is None else (case.state, f"{case.reason} at the command line")
    assert effects(ledger).get(job.id) == expected
    assert refused.exit_code == 1, refused.output
    assert case.why in refused.output, refused.output
    assert effects(ledger)[other.id] == before[other.id]
    last, first = ledger.audit(limit=2)
    for entry, each in ((first, job), (last, other)):
        assert (entry.actor, entry.source, entry.address) == (getpass.getuser(), "cli", socket.gethostname())
        assert (entry.action, entry.target) == (case.operation.permission, each.id)
        assert entry.detail == ("forced" if case.operation.is_forced else "")
    assert first.outcome.startswith(("done", "1 done"))
    assert last.outcome.startswith(("refused", "0 done, 1 refused"))


@for_each("case", OPERATION_CASES)
def test_many_jobs_are_operated_on(ledger: Ledger, shell: Shell, case: OperationCase) -> None:
    """`jobs bulk` asks before it changes the jobs that match, in the states that the operation applies to."""
    job = case.accepted(ledger)
    case.refused(ledger)
    command = ("jobs", "bulk", str(case.operation), "--since", format_timestamp(job.created_at))
    before = effects(ledger)
    assert shell.json(*command, "--dry-run") == {"dry_run": True, "done": [job.id], "refused": {}, "more": False}
    declined = shell(*command, text="n\n")
    assert declined.exit_code == 1
    assert f"1 job will be {case.reason}" in declined.stderr
    assert effects(ledger) == before
    assert f"1 {case.reason}, 0 refused" in shell(*command, text="y\n").output
    assert effects(ledger).get(job.id, (None, ""))[0] == case.state
    assert ledger.audit(limit=1)[0].outcome == "1 done, 0 refused"


def test_a_dead_letter_with_a_key_is_dropped_by_force(ledger: Ledger, shell: Shell) -> None:
    """`dead drop` leaves a dead letter whose idempotency key is still promised, and says so, unless it is forced."""
    job = ledger.fail(claimed(ledger, ledger.submit(order(7, key="k")).job.id), "{}", "no")
    refused = shell("dead", "drop", job.id)
    assert refused.exit_code == 1
    assert "answers its idempotency key until" in refused.output
    assert "1 dropped, 0 refused" in shell("dead", "drop", "--force", job.id).output
    assert ledger.submit(order(7, key="k")).outcome is Outcome.ADMITTED


def test_bulk_takes_what_is_selected(ledger: Ledger, shell: Shell) -> None:
    """Filters, "" too, and a limit select; a job in another state is refused with its reason, and so is no filter."""
    delayed = [queued(ledger).id for _ in range(3)]
    command = ("jobs", "bulk", "cancel", "--yes")
    assert shell.json("jobs", "bulk", "run_now", "--since", "1h", "--dry-run")["done"] == delayed[::-1]
    assert "2 canceled, 0 refused; more jobs match" in shell(*command, "--limit", "2", "--task", "shop.invoice").output
    assert "2 deleted" in shell("jobs", "bulk", "delete", "--error", "cancel", "--yes").output
    assert ledger.audit(limit=1)[0].detail == "error", "what may quote arguments is named only"
    assert "nothing selected" in shell("jobs", "bulk", "delete", "--error", "", "--yes").output
    refused = shell("jobs", "bulk", "redrive", "--state", "queued", "--yes")
    assert refused.exit_code == 1
    assert delayed[0] in refused.output
    assert "0 redriven, 1 refused" in refused.output
    assert shell(*command).exit_code == 2
    ledger.submit(order(99, submitter="ann", delay=3600.0))
    assert shell.json(*command, "--submitter", "")["done"] == [delayed[0]]
    options = "--state queued --state retrying --argument order_id=4 --limit 9 --since 2026-01-31T12:00:00Z".split()
    assert shell(*command, *options, "--submitter", "").exit_code == 0
    assert ledger.audit(limit=1)[0].detail == (
        "state=queued state=retrying argument since=2026-01-31T12:00:00Z submitter= limit=9"
    )


@for_each("option, text", [
    ("--since=999999w", "since=0001-01-01T00:00:00Z"),
    ("--since=0001-01-01T00:00:00+12:00", "since=0001-01-01T00:00:00Z"),
    ("--until=9999-12-31T23:59:59-12:00", "until=9999-12-30T23:59:59Z"),
])  # fmt: skip
def test_times_beyond_the_calendar_select(ledger: Ledger, shell: Shell, option: str, text: str) -> None:
    """A time before the year 1 or after 9999, as a duration or an offset makes it, selects as any other does."""
    queued(ledger)
    assert "1 canceled" in shell("jobs", "bulk", "cancel", "--yes", option).output
    assert ledger.audit(limit=1)[0].detail == text


def test_a_run_that_was_asked_to_stop_may_be_forced(ledger: Ledger, shell: Shell) -> None:
    """A plain cancellation of a run names `--force`, outside of the output to parse; a forced one, or a wait, not.

    For a person each of them is one sentence with the state of the job.
    """
    job = running(ledger)
    assert "--force" in (asked := shell("jobs", "cancel", job.id, "--json")).stderr
    assert json.loads(asked.stdout)["cancel_requested"]
    for result in (shell("jobs", "cancel", job.id, "--force"), shell("jobs", "cancel", queued(ledger).id)):
        assert (result.exit_code, result.stderr) == (0, "")
        assert re.fullmatch(r"\S+ is (running: its cancellation is requested|canceled now)\n", result.stdout)


@for_each("words, hint", [
    ("jobs list --task shop.invoise", "the task shop.invoise. The newest jobs have: shop.invoice\n"),
    ("dead list --error ValueEror", "the error 'ValueEror'. Dead letters have: ValueError\n"),
    ("dead redrive --error ValueEror --yes", "the error 'ValueEror'. Dead letters have: ValueError\n"),
    ("jobs bulk redrive --task shop.invoise --dry-run", "The newest jobs have: shop.invoice\n"),
    ("dead list", ""), ("jobs list --task shop.invoice", ""), ("jobs list --task shop.invoice --state queued", ""),
])  # fmt: skip
def test_a_filter_that_matches_nothing_is_answered_with_what_there_is(
    ledger: Ledger, shell: Shell, words: str, hint: str
) -> None:
    """A task or an error that nothing has is followed by those there are, outside of the output to parse."""
    failed(ledger)
    result = shell(*words.split())
    assert result.exit_code == 0
    assert result.stderr.endswith(hint) if hint else not result.stderr


def test_several_jobs_are_canceled(ledger: Ledger, shell: Shell) -> None:
    """`jobs cancel` takes several ids; one that cannot be canceled stops no other, and makes the exit code 1."""
    first, ended, last = queued(ledger), completed(ledger), queued(ledger)
    result = shell("jobs", "cancel", first.id, ended.id, "unknown", last.id)
    assert result.exit_code == 1
    assert "2 canceled, 2 refused" in result.output
    assert {ledger.get(each.id).state for each in (first, last)} == {State.CANCELED}
    more = [queued(ledger).id for _ in range(2)]
    assert shell.json("jobs", "cancel", "--force", *more)["done"] == more
    assert [(each.action, each.detail) for each in ledger.audit(limit=2)] == [("cancel", "forced"), ("cancel", "")]
    assert shell("jobs", "cancel").exit_code == 2


def test_jobs_that_ended_elsewhere_are_canceled(ledger: Ledger, shell: Shell, tmp_path: Path) -> None:
    """With `--ended-in`, only jobs are selected that have not run here and have an end in a result backend."""
    backend = f"file://{tmp_path}"
    ran, dead, again, waits = (ledger.submit(order(number)).job.id for number in range(4))
    ledger.release(claimed(ledger, again), "its worker stopped")
    app = Celery("old", backend=backend, set_as_current=False)
    for job_id, state in ((ran, "SUCCESS"), (dead, "FAILURE"), (again, "SUCCESS")):
        app.backend.store_result(job_id, None, state)
    result = shell("jobs", "bulk", "cancel", "--ended-in", backend, text="y\n")
    assert "2 jobs will be canceled" in result.output
    assert {ledger.get(each).state for each in (ran, dead)} == {State.CANCELED}
    assert {ledger.get(each).state for each in (again, waits)} == {State.QUEUED}
    away = shell("jobs", "bulk", "cancel", "--ended-in", "file:///nowhere/at/all", "--yes")
    assert away.exit_code == 1
    assert "the result backend did not answer" in away.output


# --- dead letters ---------------------------------------------------------------------------------------------------


@pytest.fixture
def dead(ledger: Ledger) -> list[str]:
    """Return the ids of three dead letters, oldest first: two of a ValueError, one of a KeyError."""
    ids = []
    for number, reason in enumerate(["ValueError: one", "KeyError: 'two'", "ValueError: three"]):
        error = json.dumps({"type": reason.partition(":")[0], "message": "", "traceback": f"Traceback of {number}\n"})
        payload = encode("shop.invoice", [number], {}, TextLimits())
        job = claimed(ledger, ledger.submit(replace(order(number), payload=payload)).job.id)
        ids.append(ledger.fail(job, error, reason).id)
    return ids


def test_dead_letters_are_listed_and_shown(dead: list[str], ledger: Ledger, shell: Shell) -> None:
    """`dead list` has them newest first, `dead show` payload, reason and traceback, `dead groups` their errors."""
    waiting = queued(ledger)
    assert [line.split()[0] for line in shell.lines("dead", "list")[1:]] == dead[::-1]
    assert [job["id"] for job in shell.json("dead", "list", "--error", "KeyError")] == [dead[1]]
    shown = shell("dead", "show", dead[0]).output
    assert all(text in shown for text in ("payload", "ValueError: one", "\nTraceback of 0\n"))
    refused = shell("dead", "show", waiting.id)
    assert refused.exit_code == 1
    assert "queued" in refused.output
    heading, line, _ = shell.lines("dead", "groups")
    assert (heading.split()[:3], line.split()[:3]) == (["jobs", "task", "error"], ["2", "shop.invoice", "ValueError"])
    assert [group["job_ids"] for group in shell.json("dead", "groups")] == [[dead[2], dead[0]], [dead[1]]]


@pytest.mark.parametrize(("command", "done"), [("redrive", "redriven"), ("drop", "dropped")])
def test_dead_letters_are_chosen(dead: list[str], ledger: Ledger, shell: Shell, command: str, done: str) -> None:
    """Ids or a filter choose; a filter asks first, a refused job stops no other, and a dry run changes nothing."""
    waiting, before = queued(ledger).id, effects(ledger)
    assert shell.lines("dead", command, "--all", "--dry-run") == [*dead[::-1], f"3 would be {done}, 0 refused"]
    declined = shell("dead", command, "--error", "ValueError", text="n\n")
    assert declined.exit_code == 1
    assert f"2 jobs will be {done}. Continue? [y/N]" in declined.output
    for choice in ([], ["some-id", "--all"], ["some-id", "--task", "shop.invoice"]):
        assert shell("dead", command, *choice).exit_code == 2, "nothing chosen, or twice"
    named = ("dead", command, "nobody", waiting, dead[1])
    for more in (("--dry-run",), ()):
        assert effects(ledger) == before
        answer = shell.json(*named, *more)
        assert (answer["done"], list(answer["refused"])) == ([dead[1]], ["nobody", waiting])
        assert "queued" in answer["refused"][waiting]
    one = shell("dead", command, "--error", "ValueError", "--limit", "1", "--yes")
    assert one.exit_code == 0
    assert f"1 {done}, 0 refused; more jobs match" in one.output
    assert f"1 {done}, 0 refused" in shell("dead", command, "--all", text="y\n").output
    left = {job.id: job.state for job in ledger.find(Query())}
    assert left == dict.fromkeys([waiting, *(dead if command == "redrive" else [])], State.QUEUED)
    assert [each.detail for each in ledger.audit(limit=1)] == ["all=true"]


@for_each("words", ["dead drop --all", "dead redrive --all", "jobs bulk delete --state failed"])
def test_what_is_confirmed_is_what_is_done(
    dead: list[str], ledger: Ledger, shell: Shell, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """A job that begins to match between the question and its answer stays as it is."""
    late = running(ledger)

    def confirm(*_args: Any, **_options: Any) -> None:
        ledger.fail(late, '{"type": "E"}', "E: late")

    monkeypatch.setattr("click.confirm", confirm)
    assert ", 0 refused" in shell(*words.split()).output
    assert ledger.get(late.id).state is State.FAILED
    assert State.FAILED not in {job.state for job in ledger.get_many(dead).values()}


def test_a_dead_letter_is_edited(ledger: Ledger, app_shell: Shell) -> None:
    """`dead edit` redrives with other arguments, refuses what is no JSON or no argument, and `why` names both jobs."""
    name = app_shell.options[1]
    app: Any = find_app(name)
    own = app_state_of(app).ledger
    run = claimed(own, app.tasks[f"{name}.invoice"].delay(1).id)
    own.keep_step(run, "one", "1")
    old = own.fail(run, '{"type": "E"}', "E: no").id
    for more in ((), ("--forget-steps",)):
        assert app_shell("dead", "redrive", old, *more).exit_code == 0
        assert own.store.steps(old) == ({} if more else {"one": "1"})
        own.fail(claimed(own, old), '{"type": "E"}', "E: no")
    for options in (["--kwargs", "{"], ["--args", "{}"], ["--kwargs", '{"unknown": 1}'], []):
        assert app_shell("dead", "edit", old, *options).exit_code == (1 if options else 2)
    done = app_shell.json("dead", "edit", old, "--args", "[]", "--kwargs", '{"order_id": 2}')
    assert (done["outcome"], done["state"]) == ("admitted", "queued")
    assert f"job {done['id']} was submitted in its place" in app_shell("why", old).output
    assert f"edit of job {old}" in app_shell("why", done["id"]).output
    (entry,) = ledger.audit(limit=1)
    assert entry.action == "edit"
    assert entry.target == old
    assert entry.outcome == "done"
    assert "order_id" not in entry.detail
    own.close()


# --- the audit log --------------------------------------------------------------------------------------------------


def entries(shell: Shell, *options: str) -> list[tuple[str, ...]]:
    """Return action, target and the beginning of the outcome of the entries, newest first."""
    found = shell.json("audit", *options)
    return [(each["action"], each["target"], each["outcome"].partition(":")[0]) for each in found]


def test_changes_of_keys_are_recorded(ledger: Ledger, shell: Shell, tmp_path: Path) -> None:
    """Changes of API keys are recorded in the ledger that is named; without one they work as well."""
    file = ("--file", str(tmp_path / "keys.json"))
    text = shell("keys", "add", "shop", "--role", "submit", *file).output.strip()
    new = shell("keys", "rotate", "shop", "--overlap", "1h", *file).output.strip()
    for command in ("end-sessions", "revoke"):
        for name in ("shop", "nobody"):
            shell("keys", command, name, *file)
    assert entries(shell) == [
        ("keys revoke", "nobody", "refused"), ("keys revoke", "shop", "done"),
        ("keys end-sessions", "nobody", "refused"), ("keys end-sessions", "shop", "done"),
        ("keys rotate", "shop", "done"), ("keys add", "shop", "done"),
    ]  # fmt: skip
    assert [each for each in (text, new) if each in str(ledger.audit(limit=9))] == []
    assert call("keys", "add", "other", "--role", "read", *file).exit_code == 0
    assert call("--store", "sqlite:///nowhere/x.db", "keys", "revoke", "other", *file).exit_code == 0


@for_each("error", [KeyboardInterrupt(), OSError("the disk is gone"), click.ClickException("no backend")])
def test_an_operation_that_breaks_off_is_recorded(ledger: Ledger, error: BaseException) -> None:
    """The audit log says which error or interrupt broke off an operation, which is then not done."""
    with pytest.raises(type(error)), audited(ledger, "cancel", "many"):
        raise error
    assert ledger.audit(limit=1)[0].outcome == f"failed: {type(error).__name__}: {error}"


def test_a_lost_entry_of_the_audit_log_fails_the_command(ledger: Ledger, shell: Shell, tmp_path: Path) -> None:
    """A command whose operation is done, and whose entry in the audit log is not written, says so and exits with 1."""
    job = ledger.submit(order(42)).job
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        connection.execute("drop table audit_log")
    made = shell("jobs", "cancel", job.id)
    assert made.exit_code == 1
    assert f"{job.id} is canceled" in made.output
    assert f"cancel {job.id} is done, and the audit log of the ledger has no entry of it: " in made.output
    assert "no such table: audit_log" in made.output
    assert ledger.get(job.id).state is State.CANCELED


def test_the_audit_log_is_a_table(ledger: Ledger, shell: Shell) -> None:
    """`audit` prints a line for each entry, newest first; `--since` selects, and a limit may be of many pages."""
    for number in range(410):
        ledger.append_audit(AuditEntry(actor="a", source="http", address="b", action=f"action{number}"))
    lines = shell.lines("audit", "--limit", "2")
    assert [word for line in lines for word in line.split() if word.startswith("action4")] == ["action409", "action408"]
    assert [each[0] for each in entries(shell, "--limit", "405")] == [f"action{409 - each}" for each in range(405)]
    for since, count in (("1h", 3), ("365d", 3), ("0s", 0), ("2020-01-01T00:00:00Z", 3), ("2999-01-01T00:00:00Z", 0)):
        assert len(entries(shell, "--since", since, "--limit", "3")) == count, since
    refused = shell("audit", "--since", "yesterday")
    assert refused.exit_code == 2
    assert "1d" in refused.output
