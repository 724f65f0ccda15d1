"""The laws of the command line, on a real ledger in a file."""

from __future__ import annotations

import json
import re
import secrets
import time
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import psycopg
import pytest

from onejob.api.api_keys import KeyFile, Role
from onejob.api.response_models import job_view
from onejob.celery.message import encode
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Duplicate, Outcome, Retention
from onejob.jobs.records import Query
from onejob.jobs.timestamps import format_timestamp
from onejob.ledger.ledger import Ledger
from onejob.stores import open_store
from onejob.stores.schema_version import HEAD, VERSIONS
from onejob.transactions.fence import TABLE
from onejob.uniqueness.canonical_json import Limits
from tests.cli.command import APP, call
from tests.fundamentals.shop import claimed, order

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.services import PostgresServer


def test_list_shows_each_job_once(ledger: Ledger, url: str) -> None:
    """`jobs list` prints one line for each job, newest first, after a heading."""
    jobs = [ledger.submit(order(number)).job for number in range(3)]
    lines = call("--store", url, "jobs", "list").output.splitlines()
    assert [line.split()[0] for line in lines] == ["id", *(job.id for job in reversed(jobs))]


def test_list_filters(ledger: Ledger, url: str) -> None:
    """`jobs list` filters by states, by task and by identity."""
    waiting, running = ledger.submit(order(1)).job, ledger.submit(order(2)).job
    claimed(ledger, running.id)

    def ids(*options: str) -> list[str]:
        return [job["id"] for job in json.loads(call("--store", url, "jobs", "list", "--json", *options).output)]

    assert ids("--state", "running") == [running.id]
    assert ids("--state", "running", "--state", "queued") == [running.id, waiting.id]
    assert ids("--task", "another") == []
    assert ids("--identity", waiting.identity) == [waiting.id]
    assert ids("--limit", "1") == [running.id]
    assert ids("--offset", "1") == [waiting.id]


def test_list_filters_by_submitter_and_time(ledger: Ledger, url: str) -> None:
    """`jobs list` filters by submitter and by time, and prints the submitter."""
    first = ledger.submit(order(1, submitter="user:1")).job
    second = ledger.submit(order(2)).job
    timestamp = format_timestamp(second.created_at)

    def found(*options: str) -> list[tuple[str, str]]:
        listed = json.loads(call("--store", url, "jobs", "list", "--json", *options).output)
        return [(job["id"], job["submitter"]) for job in listed]

    assert found("--submitter", "user:1") == [(first.id, "user:1")]
    assert found("--submitter", "") == [(second.id, "")]
    assert found("--since", timestamp) == [(second.id, "")]
    assert found("--until", timestamp) == [(first.id, "user:1")]


def test_list_filters_by_queue_worker_and_argument(ledger: Ledger, url: str) -> None:
    """`jobs list` filters by queue, by the worker of the latest run, and by an argument; counts are filtered, too."""
    payload = '{"task": "shop.invoice", "args": [], "kwargs": {"order_id": 42, "note": "a b"}}'
    first = ledger.submit(replace(order(1, route="fast"), payload=payload)).job
    second = claimed(ledger, ledger.submit(order(2, route="slow")).job.id)

    def found(*options: str) -> list[str]:
        return [job["id"] for job in json.loads(call("--store", url, "jobs", "list", "--json", *options).output)]

    assert found("--queue", "fast") == [first.id]
    assert found("--worker", second.node) == [second.id]
    assert found("--argument", "order_id=42") == found("--argument", "a b") == [first.id]
    assert found("--argument", "order_id=4", "--queue", "slow") == []
    assert call("--store", url, "jobs", "list", "--argument", "note=a", "--count").output.split()[-1] == "1"
    assert found("--stuck", "--argument", "note=a") == [first.id]


def test_list_shows_ages_and_due_times(ledger: Ledger, url: str) -> None:
    """`jobs list` shows the queue and the age of a job, when a waiting one is due, and how long a run has lasted."""
    running = claimed(ledger, ledger.submit(order(1, route="celery")).job.id)
    delayed = ledger.submit(order(2, route="slow", delay=7200.0)).job
    heading, first, second = call("--store", url, "jobs", "list").output.splitlines()
    assert heading.split()[:7] == ["id", "state", "task", "queue", "age", "due", "running"]
    assert re.match(rf"{delayed.id} +queued +shop.invoice +slow +\d+ s +in (2 h|1 h 59 min) +0 +0 +submitted", first)
    assert re.match(rf"{running.id} +running +shop.invoice +celery +\d+ s +\d+ s +1 +0 +running on north", second)


def test_since_takes_a_duration(ledger: Ledger, url: str) -> None:
    """`--since 1h` lists what was submitted within the last hour, and `--until 1h` what was submitted before that."""
    job = ledger.submit(order(1)).job
    assert job.id in call("--store", url, "jobs", "list", "--since", "1h").output
    assert job.id not in call("--store", url, "jobs", "list", "--until", "1h").output


def test_list_shows_stuck_jobs(ledger: Ledger, url: str) -> None:
    """`jobs list --stuck` lists only the jobs that make no progress, with the reason, in JSON, too."""
    ledger.submit(order(1, delay=3600.0))
    job = ledger.submit(order(2)).job
    heading, line = call("--store", url, "jobs", "list", "--stuck").output.splitlines()
    assert (heading.split()[-1], line.split()[0]) == ("stuck", job.id)
    assert line.endswith("no worker is alive")
    (found,) = json.loads(call("--store", url, "jobs", "list", "--stuck", "--json").output)
    assert (found["id"], found["stuck"]) == (job.id, "no worker is alive")
    assert call("--store", url, "jobs", "list", "--stuck", "--count").exit_code == 2


def test_why_has_sentences_in_json(ledger: Ledger, url: str) -> None:
    """`why --json` has the sentences with times in UTC, and the reason why the job is stuck."""
    job = ledger.submit(order(42)).job
    explained = json.loads(call("--store", url, "why", job.id, "--json").output)
    assert explained["stuck"] == "no worker is alive"
    assert explained["sentences"][-1] == "It is stuck: no worker is alive."
    assert format_timestamp(job.created_at) in explained["sentences"][1]


@pytest.mark.parametrize("word", ["yesterday", "2026-01-31", "2026-01-31T12:00:00", "1700000000"])
def test_a_time_needs_a_time_zone(url: str, word: str) -> None:
    """A value that is neither a time with a time zone nor a duration is refused with examples."""
    result = call("--store", url, "jobs", "list", "--since", word)
    assert (result.exit_code, "2026-01-31T12:00:00Z" in result.output, "1h" in result.output) == (2, True, True)


def test_list_counts(ledger: Ledger, url: str) -> None:
    """`jobs list --count` prints how many jobs match, by state and in total, whatever the limit."""
    jobs = [ledger.submit(order(number, submitter="user:1" if number else "")).job for number in range(3)]
    claimed(ledger, jobs[1].id)
    words = ("--store", url, "jobs", "list", "--count", "--limit", "1")
    counted = json.loads(call(*words, "--json").output)
    assert counted == {"total": 3, "by_state": dict.fromkeys(State, 0) | {"queued": 2, "running": 1}}
    assert json.loads(call(*words, "--json", "--submitter", "user:1").output)["total"] == 2
    lines = [line.split() for line in call(*words).output.splitlines()]
    assert (lines[0], lines[1], lines[-1]) == (["state", "jobs"], ["queued", "2"], ["total", "3"])


@pytest.mark.parametrize("words", [["jobs", "show"], ["why"], ["jobs", "cancel"], ["dead", "show"]])
def test_a_purged_job_is_reported_in_a_sentence(ledger: Ledger, url: str, words: list[str]) -> None:
    """The id of a purged job gives exit code 1 and a sentence that says how it ended."""
    job = ledger.submit(order(1)).job
    ledger.cancel(job.id)
    assert ledger.purge([job.id]) == [job.id]
    result = call("--store", url, *words, job.id)
    assert (result.exit_code, "was canceled at" in result.output) == (1, True)


def test_show_hides_internal_columns(ledger: Ledger, url: str) -> None:
    """`jobs show` prints what the HTTP API shows of a job, not its arguments; with `--all` it prints every column."""
    job = claimed(ledger, ledger.submit(order(42)).job.id)
    words = ("--store", url, "jobs", "show", job.id)
    assert json.loads(call(*words, "--json").output) == json.loads(job_view(job).model_dump_json())
    everything = json.loads(call(*words, "--json", "--all").output)
    assert list(everything) == [field.name for field in fields(job)]
    assert (everything["payload"], everything["token"]) == ({"args": [42]}, job.token)
    internal = {"payload", "fingerprint", "token", "claim", "wake_at"}
    assert {line.split()[0] for line in call(*words).output.splitlines()} & internal == set()
    assert {line.split()[0] for line in call(*words, "--all").output.splitlines()} & internal == internal


def test_show_prints_what_is_set(ledger: Ledger, url: str) -> None:
    """`jobs show` has a line for each field with a value: zero and a false result are values, an unset flag is none."""
    job = claimed(ledger, ledger.submit(order(42)).job.id)
    successor = ledger.submit(order(42, queues_next=True)).job

    def job_to_dict(job_id: str) -> dict[str, str]:
        lines = call("--store", url, "jobs", "show", job_id).output.splitlines()
        return {line.split()[0]: line.split()[1] for line in lines}

    assert (job_to_dict(successor.id)["queued_next"], job_to_dict(successor.id)["follows_id"]) == ("true", job.id)
    ledger.complete(job, "false")
    ended = job_to_dict(job.id)
    assert (ended["result"], ended["crashes"]) == ("false", "0")
    assert not {"error", "progress", "queued_next", "cancel_requested", "follows_id"} & set(ended)


EPOCH = re.compile(r"\b\d{10}\.\d")
"""Seconds since the epoch, as nobody reads them."""
LOCAL = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+05:30(?!\S*\d)")
IN_UTC = re.compile(r"\"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})?Z\"")


@pytest.mark.parametrize(
    "words",
    ["jobs show JOB", "jobs show JOB --all", "why JOB", "dead list", "dead show JOB", "duplicates JOB",
     "workers", "keys list --file FILE"],
)  # fmt: skip
def test_times_are_written_for_people(
    ledger: Ledger, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """Each command prints times in ISO 8601, local with their offset or, in JSON, in UTC; never as raw seconds."""
    job = claimed(ledger, ledger.submit(order(1)).job.id)
    ledger.submit(order(1))
    ledger.fail(job, '{"type": "E", "message": "", "traceback": "T"}', "E")
    ledger.store.heartbeat("north", lasts=60.0)
    KeyFile(tmp_path / "keys.json").add("shop", Role.READ)
    arguments = words.replace("JOB", job.id).replace("FILE", str(tmp_path / "keys.json")).split()
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "XXX-5:30")
        time.tzset()
        text, as_json = (call("--store", url, *arguments, *more).output for more in ([], ["--json"]))
    time.tzset()
    assert not EPOCH.search(text + as_json)
    assert LOCAL.search(text), text
    assert IN_UTC.search(as_json), as_json


def test_the_end_of_a_purged_job_has_readable_times(ledger: Ledger, url: str) -> None:
    """The error about a purged job names its end and its purge in UTC."""
    ended = ledger.cancel(ledger.submit(order(1)).job.id)
    ledger.purge([ended.id])
    result = call("--store", url, "jobs", "show", ended.id).output
    assert ended.finished_at is not None
    assert f"was canceled at {format_timestamp(ended.finished_at)} and purged at 2" in result
    assert result.endswith("Z\n")


# --- the file of a ledger -------------------------------------------------------------------------------------------

READS = ("jobs list", "jobs show x", "jobs cancel x", "why x", "dead list", "dead drop x", "dead redrive x",
         "duplicates", "workers", "metrics", "migrate status")  # fmt: skip


@pytest.mark.parametrize("words", READS)
def test_a_mistyped_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    """A SQLite file that does not exist is refused with its path and the remedy, and is not created."""
    monkeypatch.chdir(tmp_path)
    refused = call("--store", "sqlite:///typo.db", *words.split())
    assert refused.exit_code == 1
    assert all(text in refused.output for text in (str(tmp_path / "typo.db"), "--create"))
    assert list(tmp_path.iterdir()) == []


def test_the_file_of_an_app_is_not_created_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command refuses the missing SQLite file of an app's settings, too: a relative path may lead elsewhere here."""
    (tmp_path / "far_shop.py").write_text(APP.format(path=tmp_path / "ledger.db"))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "--create" in call("-A", "far_shop", "jobs", "list").output
    assert not (tmp_path / "ledger.db").exists()


@pytest.mark.parametrize("words", [("--create", "jobs", "list"), ("--create", "migrate", "status"), ("migrate", "up")])
def test_a_file_is_created_on_request(tmp_path: Path, words: tuple[str, ...]) -> None:
    """`--create` and `migrate up` create the file, after which no command needs the option."""
    url = f"sqlite:///{tmp_path / 'new.db'}"
    call("--store", url, *words)
    listed = call("--store", url, "jobs", "list")
    assert (listed.exit_code, listed.output.split()[0]) == (0, "id")


def test_cancel_cancels(ledger: Ledger, url: str) -> None:
    """`jobs cancel` ends a waiting job and records in the ledger where the request came from."""
    job = ledger.submit(order(42)).job
    assert call("--store", url, "jobs", "cancel", job.id).exit_code == 0
    assert ledger.get(job.id).reason == "canceled at the command line"


def test_why_prints_sentences(ledger: Ledger, url: str) -> None:
    """`why` prints the history as sentences."""
    job = ledger.submit(order(42)).job
    assert "The job was admitted" in call("--store", url, "why", job.id).output


@pytest.mark.parametrize("words", [["jobs", "show", "x"], ["why", "x"], ["jobs", "cancel", "x"]])
def test_an_unknown_job_is_reported_in_a_sentence(ledger: Ledger, url: str, words: list[str]) -> None:
    """An unknown id gives exit code 1 and a sentence, no traceback."""
    ledger.submit(order(42))
    result = call("--store", url, *words)
    assert result.exit_code == 1
    assert "no job has the id 'x'" in result.output


def test_a_missing_store_is_reported_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a store and without an app, the command says how to name one."""
    monkeypatch.delenv("ONEJOB_STORE", raising=False)
    result = call("jobs", "list")
    assert result.exit_code == 1
    assert "--store URL" in result.output


def test_the_store_can_be_named_by_the_environment(ledger: Ledger, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONEJOB_STORE names the ledger when --store does not."""
    job = ledger.submit(order(42)).job
    monkeypatch.setenv("ONEJOB_STORE", url)
    assert job.id in call("jobs", "list").output


def test_identity_prints_what_is_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`identity` prints the same text and hash for equal calls; words of JSON are values, others are text."""
    (tmp_path / "cli_shop.py").write_text(APP.format(path=tmp_path / "ledger.db"))
    monkeypatch.syspath_prepend(str(tmp_path))
    one = call("-A", "cli_shop", "identity", "cli_shop.invoice", "42", "note=hello")
    other = call("-A", "cli_shop", "identity", "cli_shop.invoice", "order_id=42")
    text = call("-A", "cli_shop", "identity", "cli_shop.invoice", '"42"')
    assert one.output == other.output
    assert '"order_id":42' in one.output
    assert '"order_id":"42"' in text.output


def test_identity_names_the_tasks_that_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown task is refused with the names of the tasks of the app."""
    (tmp_path / "cli_shop2.py").write_text(APP.format(path=tmp_path / "ledger.db"))
    monkeypatch.syspath_prepend(str(tmp_path))
    result = call("-A", "cli_shop2", "identity", "cli_shop2.bill", "42")
    assert result.exit_code == 1
    assert "cli_shop2.invoice" in result.output


def test_the_settings_of_an_app_apply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command uses the settings of its app: a canceled job is kept for the retention that they set."""
    text = APP.format(path=tmp_path / "ledger.db") + "app.conf.onejob_retention = {'canceled': 7}\n"
    (tmp_path / "patient_shop.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    ledger = Ledger(open_store(f"sqlite:///{tmp_path / 'ledger.db'}"))
    job = ledger.submit(order(1)).job
    assert call("-A", "patient_shop", "jobs", "cancel", job.id).exit_code == 0
    ended = ledger.get(job.id)
    ledger.close()
    assert ended.finished_at is not None
    assert ended.wake_at == pytest.approx(ended.finished_at + 7)


# --- duplicates -----------------------------------------------------------------------------------------------------


def test_duplicates_prints_the_saved_runs(ledger: Ledger, url: str) -> None:
    """`duplicates` counts, by task, identity or submitter, the runs that were saved, and their time if it is known."""
    job = claimed(ledger, ledger.submit(order(1)).job.id)
    for name in ("user:1", "user:2", "user:1"):
        ledger.submit(order(1, submitter=name))
    (before,) = json.loads(call("--store", url, "duplicates", "--json").output)
    assert (before["name"], before["runs"], before["seconds"]) == ("shop.invoice", 3, None)
    ended = ledger.complete(job, "1")
    by_submitter = json.loads(call("--store", url, "duplicates", "--by", "submitter", "--json").output)
    assert [(each["name"], each["runs"], each["counts"]["attached"]) for each in by_submitter] == [
        ("user:1", 2, 2), ("user:2", 1, 1),
    ]  # fmt: skip
    assert ended.finished_at is not None
    assert ended.started_at is not None
    assert by_submitter[0]["seconds"] == pytest.approx(2 * (ended.finished_at - ended.started_at))
    (by_identity,) = json.loads(call("--store", url, "duplicates", "--by", "identity", "--json").output)
    assert by_identity["name"] == job.identity
    assert "user:1" in call("--store", url, "duplicates", "--by", "submitter", "--limit", "1").output
    assert "user:2" not in call("--store", url, "duplicates", "--by", "submitter", "--limit", "1").output


def test_duplicates_lists_the_duplicates_of_a_job(ledger: Ledger, url: str) -> None:
    """`duplicates JOB_ID` lists submitter, time and outcome of each duplicate of a job; an unknown id is an error."""
    job = ledger.submit(order(1)).job
    ledger.submit(order(1, submitter="user:1", source="apply_async", host="web-1"))
    table = call("--store", url, "duplicates", job.id).output
    assert all(word in table for word in ("user:1", "apply_async", "web-1", "attached", "same"))
    (duplicate,) = json.loads(call("--store", url, "duplicates", job.id, "--json").output)
    assert (duplicate["job_id"], duplicate["submitter"]) == (job.id, "user:1")
    assert call("--store", url, "duplicates", "nobody").exit_code == 1


def test_only_duplicates_that_would_have_run_are_saved_runs(ledger: Ledger, url: str) -> None:
    """Attached, replaced and replayed submissions save a run; rejections, later runs and redelivered messages none."""
    job = ledger.submit(order(1, key="a key")).job
    ledger.submit(replace(order(1, replaces=True), fingerprint="other"))
    ledger.submit(order(1))
    claim = claimed(ledger, job.id)
    ledger.submit(order(1, queues_next=True))
    ledger.submit(order(1, rejects=True))
    assert ledger.submit(replace(order(1, key="a key"), fingerprint="reused")).key_reused
    redelivered = Duplicate(
        job_id=job.id, submission_nonce="", outcome=Outcome.REJECTED, answered_by=job.id, source="redelivery",
        submitter="", host="", fingerprint="", arguments_differ=False,
    )  # fmt: skip
    for _ in range(3):
        ledger.record(redelivered)
    ledger.complete(claim, "1", keep=Retention(identity_for=60.0))
    (saving,) = json.loads(call("--store", url, "duplicates", "--json").output)
    counts = {"attached": 1, "replaced": 1, "queued_next": 1, "rejected": 2}
    assert saving["counts"] == dict.fromkeys(Outcome, 0) | counts
    assert (saving["runs"], saving["redelivered"]) == (2, 3)
    table = call("--store", url, "duplicates").output.split()
    assert ("redelivered" in table, table[-1]) == (True, "3")


# --- migrate --------------------------------------------------------------------------------------------------------


@pytest.fixture
def nowhere(postgres_server: PostgresServer) -> Iterator[tuple[str, ...]]:
    """Return the options that name a schema in PostgreSQL which is not there yet."""
    name = f"cli_{secrets.token_hex(4)}"
    yield "--store", postgres_server.url, "--namespace", name
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute(f"drop schema if exists {name} cascade".encode())


def test_migrate_makes_a_ledger(nowhere: tuple[str, ...]) -> None:
    """`migrate status` prints what is to do and `migrate up` does it, after which the ledger can be listed."""
    before = call(*nowhere, "migrate", "status")
    assert (before.exit_code, f"to do: {', '.join(VERSIONS)}" in before.output) == (1, True)
    assert "nothing to do" in call(*nowhere, "migrate", "up").output
    after = call(*nowhere, "migrate", "status", "--json")
    assert (after.exit_code, json.loads(after.output)) == (0, {"current": HEAD, "head": HEAD, "pending": []})
    assert call(*nowhere, "jobs", "list").exit_code == 0


def test_a_missing_ledger_is_reported(nowhere: tuple[str, ...]) -> None:
    """A command on a database without a ledger ends with a sentence that says what to run."""
    listed = call(*nowhere, "jobs", "list")
    assert (listed.exit_code, "migrate up" in listed.output) == (1, True)


def test_migrate_prints_sql(nowhere: tuple[str, ...]) -> None:
    """`migrate sql` prints what `up` would run, in the requested schema or namespace, and changes nothing."""
    printed = call(*nowhere, "migrate", "sql").output
    assert f'create table "{nowhere[-1]}".jobs' in printed
    assert call(*nowhere, "migrate", "status").exit_code == 1


def test_migrate_needs_a_store() -> None:
    """`migrate` without a store is refused with the reason."""
    assert "no ledger is named" in call("migrate", "up").output


def test_the_fence_is_printed() -> None:
    """`migrate fence` prints the statement that makes the table of fences."""
    assert call("migrate", "fence").output == f"{TABLE};\n"


# --- dead letters ---------------------------------------------------------------------------------------------------


@pytest.fixture
def dead(ledger: Ledger) -> list[str]:
    """Return the ids of three dead letters, oldest first: two of a ValueError, one of a KeyError."""
    ids = []
    for number, reason in enumerate(["ValueError: one", "KeyError: 'two'", "ValueError: three"]):
        error = json.dumps({"type": reason.partition(":")[0], "message": "", "traceback": f"Traceback of {number}\n"})
        payload = encode("shop.invoice", [number], {}, Limits())
        job = claimed(ledger, ledger.submit(replace(order(number), payload=payload)).job.id)
        ids.append(ledger.fail(job, error, reason).id)
    return ids


def test_dead_letters_are_listed(dead: list[str], ledger: Ledger, url: str) -> None:
    """`dead list` shows the jobs that failed, newest first, filtered by a requested error."""
    ledger.submit(order(9))
    assert [line.split()[0] for line in call("--store", url, "dead", "list").output.splitlines()[1:]] == dead[::-1]
    found = json.loads(call("--store", url, "dead", "list", "--error", "KeyError", "--json").output)
    assert [job["id"] for job in found] == [dead[1]]


def test_a_dead_letter_is_shown_whole(dead: list[str], ledger: Ledger, url: str) -> None:
    """`dead show` prints payload, reason and traceback, and refuses a job that has not failed."""
    job_to_dict = call("--store", url, "dead", "show", dead[0]).output
    assert all(text in job_to_dict for text in ("payload", "ValueError: one", "\nTraceback of 0\n"))
    waiting = ledger.submit(order(9)).job
    refused = call("--store", url, "dead", "show", waiting.id)
    assert (refused.exit_code, "queued" in refused.output) == (1, True)


def test_dead_letters_are_redriven(dead: list[str], ledger: Ledger, url: str) -> None:
    """`dead redrive` sends the named jobs again, or those of an error, at most as many as the limit."""
    assert call("--store", url, "dead", "redrive", dead[1]).exit_code == 0
    assert call("--store", url, "dead", "redrive", "--error", "ValueError", "--limit", "1").exit_code == 0
    assert [ledger.get(job_id).state for job_id in dead] == ["failed", "queued", "queued"]
    assert [entry.event for entry in ledger.history(dead[2])][-1] == "redrive"


def test_a_dry_run_changes_nothing(dead: list[str], ledger: Ledger, url: str) -> None:
    """`--dry-run` prints what would be done, and changes no job."""
    for command, done in (("redrive", "redriven"), ("drop", "dropped")):
        result = call("--store", url, "dead", command, "--all", "--dry-run").output
        assert result.splitlines() == [*dead[::-1], f"3 would be {done}, 0 refused"]
    assert {ledger.get(job_id).state for job_id in dead} == {"failed"}


def test_a_refusal_does_not_stop_the_others(dead: list[str], ledger: Ledger, url: str) -> None:
    """A refused job is reported with the job that prevents it; the others are redriven, and the exit code is 1."""
    holder = ledger.submit(order(1)).job
    done = call("--store", url, "dead", "redrive", *dead, "--json")
    answer = json.loads(done.output)
    assert (done.exit_code, answer["done"]) == (1, [dead[0], dead[2]])
    assert holder.id in answer["refused"][dead[1]]


@pytest.mark.parametrize("command", ["redrive", "drop"])
@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_what_is_no_dead_letter_is_refused(
    dead: list[str], ledger: Ledger, url: str, command: str, dry_run: tuple[str, ...]
) -> None:
    """An unknown id, or a job that has not failed, is refused with its reason, and does not stop the others."""
    waiting = ledger.submit(order(9)).job
    done = call("--store", url, "dead", command, "nobody", waiting.id, dead[0], "--json", *dry_run)
    answer = json.loads(done.output)
    assert (done.exit_code, answer["done"], list(answer["refused"])) == (1, [dead[0]], ["nobody", waiting.id])
    assert "queued" in answer["refused"][waiting.id]


def test_dead_letters_are_dropped(dead: list[str], ledger: Ledger, url: str) -> None:
    """`dead drop` removes the chosen dead letters for good."""
    assert "2 dropped, 0 refused" in call("--store", url, "dead", "drop", "--error", "ValueError").output
    assert [job.id for job in ledger.find(Query())] == [dead[1]]


@pytest.mark.parametrize("choice", [[], ["some-id", "--all"], ["some-id", "--task", "shop.invoice"]])
def test_bulk_needs_one_choice(dead: list[str], url: str, choice: list[str]) -> None:
    """Nothing chosen, or ids and a filter at once, is refused: no dead letter is sent again by accident."""
    assert dead
    assert call("--store", url, "dead", "redrive", *choice).exit_code == 2


def test_an_app_that_is_none_is_named() -> None:
    """`-A` with the name of another object says of which class that is."""
    told = call("-A", "tests.cli.command:APP", "doctor").output
    assert "'tests.cli.command:APP' is of class str, not a Celery app" in told


def test_an_option_of_the_program_has_its_place() -> None:
    """An option of `onejob` itself after the command is refused with where it stands."""
    told = call("doctor", "-A", "shop").output
    assert "-A stands before the command: onejob -A ... doctor" in told
