"""The laws of `onejob why`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob.job import Keep
from onejob.lifecycle import RULES, Event
from onejob.store import RECEIPT_LIMIT
from onejob.why import ADMISSIONS, SENTENCES, STATES, explain
from tests.fundamentals.shop import claimed, order

if TYPE_CHECKING:
    from onejob.ledger import Ledger
    from tests.contract.support import ManualClock

SILENT = {Event.RENEW, Event.REPORT}
"""Events that leave no line in the history."""


def test_every_event_has_a_sentence() -> None:
    """Every event of the lifecycle that is written into a history has a sentence, and every state has one."""
    assert set(SENTENCES) == set(RULES) - SILENT
    assert set(STATES) == {state for rule in RULES.values() for state in (*rule.sources, rule.target) if state}


@pytest.mark.parametrize("sentence", [*SENTENCES.values(), *ADMISSIONS.values(), *STATES.values()])
def test_sentences_are_sentences(sentence: str) -> None:
    """A sentence begins with a capital letter and ends with a full stop."""
    assert sentence[0].isupper()
    assert sentence[-1] == "."


def test_a_whole_life(ledger: Ledger, clock: ManualClock) -> None:
    """The story of a job names its duplicates, its lost attempt and its end, in their order."""
    job = ledger.submit(order(42)).job
    ledger.submit(order(42, door="apply_async"))
    claimed(ledger, job.id, "north@shop")
    clock.advance(31)
    ledger.sweep(lambda _: None)
    ledger.complete(claimed(ledger, job.id, "south@shop"), '"done"')
    story = "\n".join(explain(ledger.get(job.id), ledger.history(job.id)))
    told = ["admitted", "equal request", "Attempt 1 started on north@shop", "Attempt 1 was lost, its lease ran out"]
    told += ["Attempt 2 started on south@shop", "Attempt 2 completed the job", "It has completed"]
    assert sorted(told, key=story.index) == told


def test_many_duplicates_are_counted(ledger: Ledger) -> None:
    """The story tells the number of duplicates when the history has room for a part of them only."""
    job = ledger.submit(order(42)).job
    for _ in range(RECEIPT_LIMIT + 29):
        job = ledger.submit(order(42)).job
    story = explain(ledger.get(job.id), ledger.history(job.id))
    assert any(str(RECEIPT_LIMIT + 29) in line for line in story)


def test_a_kept_result_says_how_long_it_answers(ledger: Ledger, clock: ManualClock) -> None:
    """The story of a success that answers equal submissions says until when, and afterwards that it no longer does."""
    job = ledger.submit(order(42)).job
    ledger.complete(claimed(ledger, job.id), '"done"', keep=Keep(identity_for=60.0))
    assert "answers equal submissions until 2027-01-15 08:01:00" in explain(ledger.get(job.id), [])[-1]
    clock.advance(60.0)
    ledger.submit(order(42))
    story = explain(ledger.get(job.id), ledger.history(job.id))
    assert "gave its identity back" in story[-2]
    assert "answers" not in story[-1]
