"""Jobs at the command line: lists, one job, its explanation, its duplicates; and how times are printed."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import fields, replace
from pathlib import Path

import pytest

from onejob.api.api_keys import KeyFile, Role
from onejob.api.response_models import job_json
from onejob.jobs.lifecycle import State
from onejob.jobs.query import Query
from onejob.jobs.timestamps import format_timestamp
from onejob.jobs.workers import Registration
from onejob.ledger.ledger import Ledger
from tests.cases import for_each
from tests.cli.command import Shell, call
from tests.fundamentals.shop import claimed, order
from tests.operation_cases import failed

# --- lists ----------------------------------------------------------------------------------------------------------


@for_each("words", [("jobs", "list"), ("dead", "list")])
def test_a_list_says_what_it_leaves_out(ledger: Ledger, shell: Shell, tmp_path: Path, words: tuple[str, ...]) -> None:
    """A list has the same columns for jobs and dead letters, and says that more match, or that nothing is stored."""
    for number in range(3 - len(ledger.find(Query()))):
        failed(ledger, number)
    full, short = shell(*words), shell(*words, "--limit", "2")
    assert full.output.split("\n")[0].split()[:5] == ["id", "state", "task", "queue", "age"]
    assert (len(full.output.splitlines()), full.stderr) == (1 + 3, "")
    assert len(short.stdout.splitlines()) == 3
    assert "newest 2, and more match" in short.stderr
    assert "--limit" not in shell(*words, "--task", "another").stderr
    empty = call("--store", f"sqlite:///{tmp_path / 'other.db'}", "--create", *words)
    assert empty.exit_code == 0
    assert "There is no ledger here, or an empty one: sqlite://" in empty.stderr


def test_list_shows_due_times_and_stuck_jobs(ledger: Ledger, shell: Shell) -> None:
    """`jobs list` shows ages and due times, with `--stuck` only what makes no progress, and why; `why` has it, too."""
    delayed = ledger.submit(order(1, route="slow", delay=7200.0)).job
    job = ledger.submit(order(2, route="celery")).job
    heading, _, line = shell.lines("jobs", "list")
    assert heading.split()[:7] == ["id", "state", "task", "queue", "age", "due", "running"]
    assert re.match(rf"{delayed.id} +queued +shop.invoice +slow +\d+ s +in (2 h|1 h 59 min) +0 +0 +submitted", line)
    heading, line = shell.lines("jobs", "list", "--stuck")
    assert (heading.split()[-1], line.split()[0], line[-18:]) == ("stuck", job.id, "no worker is alive")
    (found,) = shell.json("jobs", "list", "--stuck")
    assert (found["id"], found["stuck"]) == (job.id, "no worker is alive")
    explained = shell.json("why", job.id)
    assert (explained["stuck"], explained["sentences"][-1]) == (found["stuck"], "It is stuck: no worker is alive.")
    assert "The job was admitted" in shell("why", job.id).output


def test_list_counts(ledger: Ledger, shell: Shell) -> None:
    """`jobs list --count` prints how many jobs match, by state and in total, whatever the limit."""
    jobs = [ledger.submit(order(number, submitter="user:1" if number else "")).job for number in range(3)]
    claimed(ledger, jobs[1].id)
    words = ("jobs", "list", "--count", "--limit", "1")
    assert shell.json(*words) == {"total": 3, "by_state": dict.fromkeys(State, 0) | {"queued": 2, "running": 1}}
    assert shell.json(*words, "--submitter", "user:1")["total"] == 2
    lines = [line.split() for line in shell.lines(*words)]
    assert (lines[0], lines[1], lines[-1]) == (["state", "jobs"], ["queued", "2"], ["total", "3"])
    assert shell(*words, "--stuck").exit_code == 2


# --- one job --------------------------------------------------------------------------------------------------------


def test_what_is_no_job_is_reported_in_a_sentence(ledger: Ledger, shell: Shell) -> None:
    """An unknown id, or that of a purged job, gives exit code 1 and a sentence; its beginning or its end is enough."""
    ended = ledger.cancel(ledger.submit(order(1)).job.id)
    ledger.purge([ended.id])
    ledger.submit(order(9))
    purged = f"was canceled at {format_timestamp(ended.finished_at or 0)} and was purged at 2"
    for words in (["jobs", "show"], ["why"], ["jobs", "cancel"], ["dead", "show"]):
        for job_id, sentence in ((ended.id, purged), ("x", "no job has the id 'x'"), ("", "no job has the id ''")):
            result = shell(*words, job_id)
            assert result.exit_code == 1, words
            assert sentence in result.output, words
    for number, job_id in enumerate(("a9d0-1", "a9d0-2", "0ecc-3")):
        ledger.submit(replace(order(number), id=job_id))
    failed = ledger.submit(replace(order(7), id="1f00-4")).job
    ledger.fail(claimed(ledger, failed.id), '{"type": "E", "message": "no", "traceback": ""}', "no")
    assert failed.id in shell("dead", "show", "1f").output
    for command in (["why"], ["jobs", "show"], ["jobs", "run-now"], ["jobs", "cancel"]):
        assert "0ecc-3" in shell(*command, "0e").output
        assert "0ecc-3" in shell(*command, "…c-3").output
        assert "several ids begin or end with 'a9d'" in shell(*command, "a9d").output


def test_show_hides_internal_columns(ledger: Ledger, shell: Shell) -> None:
    """`jobs show` prints what HTTP shows and has a value, not its arguments; with `--all` it prints every column."""
    job = claimed(ledger, ledger.submit(order(42)).job.id)
    successor = ledger.submit(order(42, queue_next=True)).job
    words = ("jobs", "show", job.id)
    assert shell.json(*words) == json.loads(job_json(ledger.get(job.id)))
    everything = shell.json(*words, "--all")
    assert list(everything) == [field.name for field in fields(job)]
    assert (everything["payload"], everything["token"]) == ({"args": [42]}, job.token)
    internal = {"payload", "fingerprint", "token", "claim", "wake_at"}
    for more, shown in (((), set()), (("--all",), internal)):
        assert {line.split()[0] for line in shell.lines(*words, *more)} & internal == shown
    follower = dict(line.split()[:2] for line in shell.lines("jobs", "show", successor.id))
    ledger.complete(job, "false")
    ended = dict(line.split()[:2] for line in shell.lines("jobs", "show", job.id))
    assert (ended["result"], ended["crashes"], follower["follows_id"]) == ("false", "0", job.id)
    assert not {"error", "progress", "queued_next", "cancel_requested", "follows_id"} & {*ended}


EPOCH = re.compile(r"\b\d{10}\.\d")
"""Seconds since the epoch, as nobody reads them."""
LOCAL = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+05:30(?!\S*\d)")
IN_UTC = re.compile(r"\"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})?Z\"")


def test_times_are_written_for_people(
    ledger: Ledger, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times are in ISO 8601, local with their offset or, in JSON, in UTC; one that is not known is null."""
    job = claimed(ledger, ledger.submit(order(1)).job.id)
    ledger.submit(order(1))
    ledger.fail(job, '{"type": "E", "message": "", "traceback": "T"}', "E")
    ledger.store.heartbeat("north", lasts=60.0)
    KeyFile(tmp_path / "keys.json").add("shop", Role.READ)
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "XXX-5:30")
        time.tzset()
        for words in ("jobs show JOB", "jobs show JOB --all", "why JOB", "dead show JOB", "duplicates JOB", "workers",
                      "keys list --file FILE"):  # fmt: skip
            command = words.replace("JOB", job.id).replace("FILE", str(tmp_path / "keys.json")).split()
            text, as_json = (shell(*command, *more).output for more in ([], ["--json"]))
            found = [bool(pattern.search(text + as_json)) for pattern in (EPOCH, LOCAL, IN_UTC)]
            assert found == [False, True, True], (words, text, as_json)
    time.tzset()
    ledger.store.heartbeat("north", lasts=60.0, registration=Registration(started_at=1.8e9))
    ledger.store.heartbeat("south", lasts=60.0, registration=Registration(silent_since=1.8e9))
    north, south = sorted(shell.json("workers"), key=lambda each: each["name"])
    assert (north["silent_since"], south["started_at"]) == (None, None)
    assert north["started_at"] == south["silent_since"] == "2027-01-15T08:00:00Z"


# --- duplicates -----------------------------------------------------------------------------------------------------


def test_duplicates_prints_the_saved_runs(ledger: Ledger, shell: Shell) -> None:
    """`duplicates` counts the runs saved by task, identity or submitter; with an id it lists those of a job."""
    payload = json.dumps({"task": "shop.invoice", "args": [1], "kwargs": {"note": "b"}})
    job = claimed(ledger, ledger.submit(replace(order(1), payload=payload)).job.id)
    for name in ("user:1", "user:2", "user:1"):
        ledger.submit(order(1, submitter=name, source="apply_async", host="web-1"))
    (before,) = shell.json("duplicates")
    assert "?: not known, since no completed job" in shell("duplicates").output
    assert (before["name"], before["runs"], before["seconds"]) == ("shop.invoice", 3, None)
    ended = ledger.complete(job, "1")
    (by_submitter,) = shell.json("duplicates", "--by", "submitter", "--limit", "1")
    assert (by_submitter["name"], by_submitter["runs"], by_submitter["counts"]["attached"]) == ("user:1", 2, 2)
    assert by_submitter["seconds"] == pytest.approx(2 * ((ended.finished_at or 0) - (ended.started_at or 0)))
    (group,) = shell.json("duplicates", "--by", "identity")
    assert (group["name"], group["task"], group["arguments"]) == (job.identity, "shop.invoice", '1, note="b"')
    assert "shop.invoice" in shell("duplicates", "--by", "identity").output
    table = shell("duplicates", job.id).output
    assert all(word in table for word in ("user:1", "apply_async", "web-1", "attached", "same"))
    assert [each["submitter"] for each in shell.json("duplicates", job.id)] == ["user:1", "user:2", "user:1"]
    assert shell("duplicates", "nobody").exit_code == 1


# --- texts that others chose ----------------------------------------------------------------------------------------


ATTACK = "Größe 数 ✓ \x1b]52;c;cm0gLXJm\x07\x1b[2J\x9b31m\x7f\u202etxt.exe\u2066\r\n1969  forged"
"""Letters, an OSC sequence that writes the clipboard, CSI in 7 and 8 bits, bidirectional overrides, a forged line."""
SHOWN = r"Größe 数 ✓ \x1b]52;c;cm0gLXJm\x07\x1b[2J\x9b31m\x7f\u202etxt.exe\u2066\r"
"""How its first line is printed."""
HARMFUL = "\x1b\x07\x9b\x7f\u202e\u2066\r"


@for_each("command", [
    "dead list", "dead show id", "jobs list", "jobs show id", "jobs show --all id", "why id",
    "dead redrive --all --dry-run",
])  # fmt: skip
def test_no_escape_sequence_reaches_the_terminal(ledger: Ledger, shell: Shell, command: str) -> None:
    """No command prints a control character of a text, nor a line that it forges, which JSON escapes; letters stay."""
    if not ledger.get_or_none("id"):
        error = {"type": "E", "message": ATTACK, "traceback": f"Traceback\n  {ATTACK}\n"}
        run = claimed(ledger, ledger.submit(replace(order(1), id="id")).job.id)
        ledger.fail(run, json.dumps(error), ATTACK)
    text, code = (shell(*command.split(), *options).output for options in ((), ("--json",)))
    wrong = shell("why", f"no{ATTACK}").output
    assert not {*text, *code, *wrong} & {*HARMFUL}
    assert command == "dead show id" or not [line for line in text.splitlines() if line.startswith("1969")]
    assert json.loads(code) is not None, text
    assert (SHOWN in text) == ("dry" not in command), text
    assert shell.json("jobs", "show", "id")["reason"] == ATTACK


@for_each("command", ["jobs list --task", "jobs show", "jobs cancel", "why", "duplicates", "dead groups --task"])
def test_bytes_that_are_no_text_are_refused(ledger: Ledger, shell: Shell, command: str) -> None:
    """An argument or an option with bytes that are not UTF-8 is refused with its text, and exit code 2."""
    refused = shell(*command.split(), os.fsdecode(b"\xff"))
    assert refused.exit_code == 2
    assert "is not valid UTF-8: '\\udcff'" in refused.stderr
