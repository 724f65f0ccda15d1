"""What the commands print of texts that others chose, and the audit log at the command line."""

from __future__ import annotations

import getpass
import itertools
import json
import socket
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from onejob.cli import main
from onejob.cli.printing import clean
from onejob.jobs.records import AuditEntry, Query
from onejob.ledger.ledger import Ledger
from onejob.stores import open_store
from tests.cases import for_each
from tests.fundamentals.shop import claimed, order

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result


ATTACK = "\x1b]52;c;cm0gLXJm\x07\x1b[2J\x9b31m\x7f\u202etxt.exe\u2066\r\n1969  forged"
"""An OSC sequence that writes the clipboard, CSI in 7 and 8 bits, bidirectional overrides, and a forged line."""
HARMFUL = "\x1b\x07\x9b\x7f\u202e\u2066\r"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a ledger in a file."""
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def plain(url: str) -> Iterator[Ledger]:
    """Return that ledger."""
    ledger = Ledger(open_store(url))
    ledger.find(Query())
    yield ledger
    ledger.close()


@pytest.fixture
def ledger(plain: Ledger) -> Ledger:
    """Return that ledger, with a dead letter whose texts attack the terminal."""
    run = claimed(plain, plain.submit(order(1)).job.id)
    error = {"type": "E", "message": ATTACK, "traceback": f"Traceback\n  {ATTACK}\n"}
    plain.fail(run, json.dumps(error), ATTACK)
    return plain


def output(*args: str) -> str:
    """Run the command, and return what it prints."""
    return CliRunner().invoke(main, args, catch_exceptions=False).output


@for_each("command, options", itertools.product(
    [
        ["dead", "list"], ["dead", "show", "ID"], ["jobs", "list"], ["jobs", "show", "ID"],
        ["jobs", "show", "--all", "ID"], ["why", "ID"], ["dead", "redrive", "--all", "--dry-run"],
    ], [[], ["--json"]]))  # fmt: skip
def test_no_escape_sequence_reaches_the_terminal(
    ledger: Ledger, url: str, command: list[str], options: list[str]
) -> None:
    """No command prints a control or format character of a job's texts, in tables, sentences or JSON."""
    (job,) = ledger.find(Query())
    text = output("--store", url, *(job.id if word == "ID" else word for word in command), *options)
    assert not set(text) & set(HARMFUL)
    if options:
        json.loads(text)


def test_json_keeps_the_text(ledger: Ledger, url: str) -> None:
    """JSON output escapes unprintable characters, so that a reader gets the very text."""
    (job,) = ledger.find(Query())
    assert json.loads(output("--store", url, "jobs", "show", job.id, "--json"))["reason"] == job.reason


def test_a_reason_forges_no_line(ledger: Ledger, url: str) -> None:
    """A line end in a reason is escaped, so that it cannot look like a line of another command's output."""
    (job,) = ledger.find(Query())
    for command in (["dead", "list"], ["why", job.id], ["jobs", "show", job.id]):
        assert not [line for line in output("--store", url, *command).splitlines() if line.startswith("1969")]


def test_an_error_is_cleaned(ledger: Ledger, url: str) -> None:
    """An error message that repeats an id is cleaned, too."""
    assert not set(output("--store", url, "why", f"no{ATTACK}")) & set(HARMFUL)


def test_letters_stay() -> None:
    """Letters of all scripts are printed as they are, and what is escaped is escaped as Python has it."""
    assert clean("Größe 数 ✓") == "Größe 数 ✓"
    assert clean("a\nb\x1b", keep="\n") == "a\nb\\x1b"


def call(*args: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(main, args, catch_exceptions=False)


def log(url: str, *options: str) -> list[dict[str, Any]]:
    """Return the audit log, newest first."""
    entries: list[dict[str, Any]] = json.loads(call("--store", url, "audit", "--json", *options).output)
    return entries


def test_actions_are_recorded(plain: Ledger, url: str) -> None:
    """Cancellations, redrives and drops are recorded with the user, the host, the jobs and the outcome."""
    jobs = [plain.submit(order(number)).job for number in range(3)]
    for job in jobs[:2]:
        plain.fail(claimed(plain, job.id), '{"type": "E", "message": "", "traceback": ""}', "E")
    call("--store", url, "jobs", "cancel", "--force", jobs[2].id)
    call("--store", url, "jobs", "cancel", "unknown")
    call("--store", url, "dead", "redrive", jobs[0].id, "unknown")
    call("--store", url, "dead", "drop", "--all", "--dry-run")
    call("--store", url, "dead", "drop", "--all", "--yes")
    found = log(url)
    assert {(each["actor"], each["source"], each["address"]) for each in found} == {
        (getpass.getuser(), "cli", socket.gethostname())
    }
    assert [(each["action"], each["target"], each["outcome"].partition(":")[0]) for each in found] == [
        ("drop", "", "1 done, 0 refused"), ("redrive", f"{jobs[0].id} unknown", "1 done, 1 refused"),
        ("cancel", "unknown", "refused"), ("cancel", jobs[2].id, "done"),
    ]  # fmt: skip
    assert [each["detail"] for each in (found[0], found[-1])] == ["everything=True", "forced"]


def test_changes_of_keys_are_recorded(plain: Ledger, url: str, tmp_path: Path) -> None:
    """Changes of API keys are recorded in the ledger that is named; without one they work as well."""
    file = str(tmp_path / "keys.json")
    text = call("--store", url, "keys", "add", "shop", "--role", "submit", "--file", file).output.strip()
    new = call("--store", url, "keys", "rotate", "shop", "--overlap", "1h", "--file", file).output.strip()
    call("--store", url, "keys", "revoke", "shop", "--file", file)
    call("--store", url, "keys", "revoke", "nobody", "--file", file)
    found = log(url)
    assert [(each["action"], each["target"], each["outcome"].partition(":")[0]) for each in found] == [
        ("keys revoke", "nobody", "refused"), ("keys revoke", "shop", "done"), ("keys rotate", "shop", "done"),
        ("keys add", "shop", "done"),
    ]  # fmt: skip
    assert [each for each in (text, new) if each in json.dumps(found)] == []
    assert call("keys", "add", "other", "--role", "read", "--file", file).exit_code == 0
    assert call("--store", "sqlite:///nowhere/x.db", "keys", "revoke", "other", "--file", file).exit_code == 0


def test_the_list_is_a_table(plain: Ledger, url: str) -> None:
    """`audit` prints a line for each entry, newest first."""
    for number in range(3):
        plain.append_audit(AuditEntry(actor="a", source="http", address="b", action=f"action{number}"))
    lines = call("--store", url, "audit", "--limit", "2").output.splitlines()
    assert len(lines) == 3
    assert "action2" in lines[1]
    assert "action1" in lines[2]


@for_each("since, count", [("1h", 3), ("365d", 3), ("0s", 0), ("2020-01-01T00:00:00Z", 3), ("2999-01-01T00:00:00Z", 0)])
def test_since_selects_by_time(plain: Ledger, url: str, since: str, count: int) -> None:
    """`--since` takes a duration or a time, and prints the entries from then on."""
    for number in range(3 - len(plain.audit(limit=10))):
        plain.append_audit(AuditEntry(actor="a", source="http", address="b", action=f"action{number}"))
    assert len(log(url, "--since", since)) == count


def test_all_pages_are_listed(plain: Ledger, url: str) -> None:
    """A limit that is larger than a page lists the entries of all pages, each once."""
    for number in range(410):
        plain.append_audit(AuditEntry(actor="a", source="http", address="b", action=str(number)))
    assert [each["action"] for each in log(url, "--limit", "405")] == [str(409 - number) for number in range(405)]


def test_an_invalid_time_is_refused(url: str) -> None:
    """Anything else is a usage error that shows both formats."""
    result = call("--store", url, "audit", "--since", "yesterday")
    assert result.exit_code == 2
    assert "1d" in result.output
