"""The audit log at the command line."""

from __future__ import annotations

import getpass
import json
import socket
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from onejob.cli import main
from onejob.jobs.records import AuditEntry, Query
from onejob.ledger.ledger import Ledger
from onejob.stores import open_store
from tests.cases import for_each
from tests.fundamentals.shop import claimed, order

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a ledger in a file."""
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    """Return that ledger."""
    ledger = Ledger(open_store(url))
    ledger.find(Query())
    yield ledger
    ledger.close()


def call(*args: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(main, args, catch_exceptions=False)


def log(url: str, *options: str) -> list[dict[str, Any]]:
    """Return the audit log, newest first."""
    entries: list[dict[str, Any]] = json.loads(call("--store", url, "audit", "--json", *options).output)
    return entries


def test_actions_are_recorded(ledger: Ledger, url: str) -> None:
    """Cancellations, redrives and drops are recorded with the user, the host, the jobs and the outcome."""
    jobs = [ledger.submit(order(number)).job for number in range(3)]
    for job in jobs[:2]:
        ledger.fail(claimed(ledger, job.id), '{"type": "E", "message": "", "traceback": ""}', "E")
    call("--store", url, "jobs", "cancel", "--force", jobs[2].id)
    call("--store", url, "jobs", "cancel", "unknown")
    call("--store", url, "dead", "redrive", jobs[0].id, "unknown")
    call("--store", url, "dead", "drop", "--all", "--dry-run")
    call("--store", url, "dead", "drop", "--all")
    found = log(url)
    assert {(each["actor"], each["source"], each["address"]) for each in found} == {
        (getpass.getuser(), "cli", socket.gethostname())
    }
    assert [(each["action"], each["target"], each["outcome"].partition(":")[0]) for each in found] == [
        ("drop", "", "1 done, 0 refused"), ("redrive", f"{jobs[0].id} unknown", "1 done, 1 refused"),
        ("cancel", "unknown", "refused"), ("cancel", jobs[2].id, "done"),
    ]  # fmt: skip
    assert [each["detail"] for each in (found[0], found[-1])] == ["everything=True limit=100", "forced"]


def test_changes_of_keys_are_recorded(ledger: Ledger, url: str, tmp_path: Path) -> None:
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


def test_the_list_is_a_table(ledger: Ledger, url: str) -> None:
    """`audit` prints a line for each entry, newest first."""
    for number in range(3):
        ledger.append_audit(AuditEntry(actor="a", source="http", address="b", action=f"action{number}"))
    lines = call("--store", url, "audit", "--limit", "2").output.splitlines()
    assert len(lines) == 3
    assert "action2" in lines[1]
    assert "action1" in lines[2]


@for_each("since, count", [("1h", 3), ("365d", 3), ("0s", 0), ("2020-01-01T00:00:00Z", 3), ("2999-01-01T00:00:00Z", 0)])
def test_since_selects_by_time(ledger: Ledger, url: str, since: str, count: int) -> None:
    """`--since` takes a duration or a time, and prints the entries from then on."""
    for number in range(3 - len(ledger.audit(limit=10))):
        ledger.append_audit(AuditEntry(actor="a", source="http", address="b", action=f"action{number}"))
    assert len(log(url, "--since", since)) == count


def test_all_pages_are_listed(ledger: Ledger, url: str) -> None:
    """A limit that is larger than a page lists the entries of all pages, each once."""
    for number in range(410):
        ledger.append_audit(AuditEntry(actor="a", source="http", address="b", action=str(number)))
    assert [each["action"] for each in log(url, "--limit", "405")] == [str(409 - number) for number in range(405)]


def test_an_invalid_time_is_refused(url: str) -> None:
    """Anything else is a usage error that shows both formats."""
    result = call("--store", url, "audit", "--since", "yesterday")
    assert result.exit_code == 2
    assert "1d" in result.output
