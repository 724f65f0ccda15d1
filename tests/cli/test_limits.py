"""Limits at the command line."""

from __future__ import annotations

from onejob.ledger.ledger import Ledger
from tests.cases import for_each
from tests.cli.command import Shell
from tests.limited import CUSTOMER, crowd, define


def test_limits_are_listed_with_their_use(shell: Shell, ledger: Ledger) -> None:
    """`limits list` has the definitions, and the keys that jobs wait for, each with its use and the waiting jobs."""
    crowd(ledger)
    rows = {line.split("  ")[0]: " ".join(line.split()) for line in shell.lines("limits", "list")}
    assert rows["customer"] == "customer 2 0"
    assert rows[CUSTOMER] == f"{CUSTOMER} 2 2 of 2 run 1"
    assert rows["model"] == "model 90/minute 90/minute 0"
    assert [(each["key"], each["waiting"]) for each in shell.json("limits", "list")] == [
        ("customer", 0), (CUSTOMER, 1), ("model", 0)
    ]  # fmt: skip


def test_a_key_is_shown_with_its_holders(shell: Shell, ledger: Ledger) -> None:
    """`limits show` has the use of a key, and the jobs that have its slots; `jobs list` has those that wait."""
    first, second, third = crowd(ledger)
    printed = shell("limits", "show", CUSTOMER).output
    assert "use  2 of 2 run" in printed
    assert first in printed
    assert third not in printed
    assert shell.json("limits", "show", CUSTOMER)["holders"] == [first, second]
    assert shell.ids("--room", CUSTOMER) == [third]


def test_an_exception_is_set_and_cleared(shell: Shell, ledger: Ledger) -> None:
    """`limits set` makes a job due that has room then, and says how it is cleared; both are in the audit log."""
    *_, third = crowd(ledger)
    printed = shell("limits", "set", CUSTOMER, "5", "--until", "2h").output
    assert f"Set: {CUSTOMER} has 5 at once, an exception until" in printed
    assert f"onejob limits clear {CUSTOMER}" in printed
    assert ledger.get(third).parked_on is None
    shown = shell.json("limits", "show", CUSTOMER)
    assert (shown["value"], shown["default"]) == ("5", "2")
    assert shown["until"] is not None
    assert f"Cleared: {CUSTOMER} has 2 at once." in shell("limits", "clear", CUSTOMER).output
    assert not shell.json("limits", "show", CUSTOMER)["is_exception"]
    set_, cleared = reversed(ledger.audit(limit=9))
    assert (set_.action, set_.target) == ("set_limit", CUSTOMER)
    assert set_.detail.startswith("value=5 until=")
    assert (cleared.action, cleared.target, cleared.detail) == ("clear_limit", CUSTOMER, "")


def test_a_key_is_stopped(shell: Shell, ledger: Ledger) -> None:
    """The value 0 stops a limit of either kind, also by its name, and the list says so."""
    define(ledger)
    assert shell("limits", "set", "model", "0").exit_code == 0
    assert shell.json("limits", "set", "customer=7", "0", "--json")["use"] == "stopped"
    stopped = [each["key"] for each in shell.json("limits", "list") if each["use"] == "stopped"]
    assert stopped == ["customer=7", "model"]


@for_each("given, why", [
    (("set", "customer", "many"), "is no limit: write how many jobs may run at once"),
    (("set", "customer", "90/minute"), "the limit customer is a number of running jobs"),
    (("set", "model", "5"), "the limit model is a rate"),
    (("set", "model", "5/fortnight"), "limit model"),
    (("set", "other", "5"), "no task defines a limit 'other'"),
    (("set", "customer=" + "x" * 200, "5"), "is no key: write customer or customer=42"),
    (("set", "customer", "5", "--until", "2001-01-01T00:00:00Z"), "over already"),
    (("set", "customer", "5", "--until", "soon"), "nor a duration"),
    (("show", "other"), "no task defines a limit 'other'"), (("clear", "other"), "no task defines a limit 'other'"),
])  # fmt: skip
def test_what_cannot_be_is_one_sentence(shell: Shell, ledger: Ledger, given: tuple[str, ...], why: str) -> None:
    """A wrong value, an unknown limit and a time that is over are refused in a sentence, and nothing is written."""
    define(ledger)
    refused = shell("limits", *given)
    assert refused.exit_code != 0
    assert why in refused.output
    assert all(each.is_default for each in ledger.store.limit_values())
