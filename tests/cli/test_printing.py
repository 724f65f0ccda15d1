"""What the commands print of texts that others chose cannot control the terminal."""

from __future__ import annotations

import json
from dataclasses import replace

from onejob.ledger.ledger import Ledger
from tests.cases import for_each
from tests.cli.command import Shell
from tests.fundamentals.shop import claimed, order

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
    assert (json.loads(code) is not None, SHOWN in text) == (True, "dry" not in command), text
    assert shell.json("jobs", "show", "id")["reason"] == ATTACK
