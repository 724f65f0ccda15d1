"""What the commands print of texts that others chose cannot control the terminal."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from onejob.cli import main
from onejob.cli.printing import clean
from onejob.ledger.ledger import Ledger
from onejob.stores import open_store
from tests.cases import for_each
from tests.fundamentals.shop import claimed, order

if TYPE_CHECKING:
    from pathlib import Path


ATTACK = "\x1b]52;c;cm0gLXJm\x07\x1b[2J\x9b31m\x7f\u202etxt.exe\u2066\r\n1969  forged"
"""An OSC sequence that writes the clipboard, CSI in 7 and 8 bits, bidirectional overrides, and a forged line."""
HARMFUL = "\x1b\x07\x9b\x7f\u202e\u2066\r"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a ledger with a dead letter whose texts attack the terminal."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    ledger = Ledger(open_store(url))
    error = {"type": "E", "message": ATTACK, "traceback": f"Traceback\n  {ATTACK}\n"}
    ledger.fail(claimed(ledger, ledger.submit(replace(order(1), id="id")).job.id), json.dumps(error), ATTACK)
    ledger.close()
    return url


def output(*args: str) -> str:
    """Run the command, and return what it prints."""
    return CliRunner().invoke(main, args, catch_exceptions=False).output


@for_each("command", [
    "dead list", "dead show id", "jobs list", "jobs show id", "jobs show --all id", "why id",
    "dead redrive --all --dry-run",
])  # fmt: skip
def test_no_escape_sequence_reaches_the_terminal(url: str, command: str) -> None:
    """No command prints a control character of a job's texts, nor a line that they forge but in a traceback."""
    text, code = (output("--store", url, *command.split(), *options) for options in ((), ("--json",)))
    assert not set(text + code) & set(HARMFUL)
    assert command == "dead show id" or not [line for line in text.splitlines() if line.startswith("1969")]
    assert json.loads(code) is not None


def test_json_keeps_the_text(url: str) -> None:
    """JSON output escapes unprintable characters, so that a reader gets the very text."""
    assert json.loads(output("--store", url, "jobs", "show", "id", "--json"))["reason"] == ATTACK


def test_an_error_is_cleaned(url: str) -> None:
    """An error message that repeats an id is cleaned, too."""
    assert not set(output("--store", url, "why", f"no{ATTACK}")) & set(HARMFUL)


def test_letters_stay() -> None:
    """Letters of all scripts are printed as they are, and what is escaped is escaped as Python has it."""
    assert clean("Größe 数 ✓") == "Größe 数 ✓"
    assert clean("a\nb\x1b", keep="\n") == "a\nb\\x1b"
