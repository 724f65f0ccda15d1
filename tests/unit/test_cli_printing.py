"""What the commands print of texts that others chose."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from onejob.cli import main
from onejob.cli.printing import clean
from onejob.jobs.records import Query
from onejob.ledger.ledger import Ledger
from onejob.stores import open_store
from tests.cases import for_each
from tests.fundamentals.shop import claimed, order

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ATTACK = "\x1b]52;c;cm0gLXJm\x07\x1b[2J\x9b31m\x7f\u202etxt.exe\u2066\r\n1969  forged"
"""An OSC sequence that writes the clipboard, CSI in 7 and 8 bits, bidirectional overrides, and a forged line."""
HARMFUL = "\x1b\x07\x9b\x7f\u202e\u2066\r"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a ledger in a file."""
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    """Return that ledger, with a dead letter whose texts attack the terminal."""
    ledger = Ledger(open_store(url))
    ledger.find(Query())
    run = claimed(ledger, ledger.submit(order(1)).job.id)
    error = {"type": "E", "message": ATTACK, "traceback": f"Traceback\n  {ATTACK}\n"}
    ledger.fail(run, json.dumps(error), ATTACK)
    yield ledger
    ledger.close()


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
