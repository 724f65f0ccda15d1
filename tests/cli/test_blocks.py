"""Pauses and strikes at the command line."""

from __future__ import annotations

from onejob.ledger.ledger import Ledger
from tests.cli.command import Shell


def test_jobs_are_paused_and_resumed(shell: Shell, ledger: Ledger) -> None:
    """`pause` prints how it is ended, `pauses` lists it, `resume` ends it; no value of an argument is audited."""
    printed = shell(
        "pause", "--task", "shop.invoice", "--where", "order.id=a b", "--until", "2h", "--note", "bank"
    ).output
    (pause,) = shell.json("pauses")
    assert f"Paused: task shop.invoice, where order.id=a b. End it with: onejob resume {pause['id']}" in printed
    assert (pause["kind"], pause["where"], pause["note"]) == ("pause", {"order.id": "a b"}, "bank")
    assert "order.id=a b" in shell("pauses").output
    assert "Resumed: task shop.invoice" in shell("resume", pause["id"]).output
    assert shell.json("pauses") == []
    details = [(each.action, each.detail) for each in reversed(ledger.audit(limit=9))]
    assert details == [("pause", "task=shop.invoice order.id"), ("resume", "")]


def test_jobs_are_struck_until_the_strike_is_lifted(shell: Shell, ledger: Ledger) -> None:
    """`strike` names a task; `lift` ends a strike, and `resume` does not."""
    shell("strike", "shop.invoice", "--where", "order_id=7")
    (strike,) = shell.json("strikes")
    refused = shell("resume", strike["id"])
    assert refused.exit_code == 1
    assert "no pause has the id" in refused.output
    assert "onejob dead redrive sends them again" in shell("lift", strike["id"]).output
    assert shell.json("strikes") == []
    assert ledger.store.blocks() == []


def test_a_wrong_selection_is_one_sentence(shell: Shell, ledger: Ledger) -> None:
    """A pause without a selection, without a value, and with one argument twice is refused with what to write."""
    for given, why in (
        ((), "name a task, a queue, or an argument"), (("--where", "order"), "write customer=42"),
        (("--where", "a=1", "--where", "a=2"), "named twice"), (("--until", "soon"), "nor a duration"),
    ):  # fmt: skip
        refused = shell("pause", *given)
        assert refused.exit_code != 0
        assert why in refused.output
    assert ledger.store.blocks() == []
