"""First: equal submissions are one job.

These files read as a tutorial of the ledger, from the first submission to the late worker. They use no broker: what
Celery adds is in `tests/celery`.
"""

from onejob.jobs.lifecycle import State
from onejob.jobs.model import Outcome
from onejob.ledger.ledger import Ledger
from onejob.uniqueness.identity import Identifier
from tests.fundamentals.shop import order


def test_the_first_submission_is_admitted(ledger: Ledger) -> None:
    """A submission whose identity is free becomes a queued job that holds the identity."""
    admission = ledger.submit(order(42))
    assert admission.outcome is Outcome.ADMITTED
    assert admission.job.state is State.QUEUED
    assert admission.job.holds_identity


def test_an_equal_one_is_attached(ledger: Ledger) -> None:
    """A submission whose identity is held is answered with the job that holds it, and counted there."""
    first = ledger.submit(order(42))
    again = ledger.submit(order(42))
    assert again.outcome is Outcome.ATTACHED
    assert again.job.id == first.job.id
    assert again.job.duplicate_count == 1


def test_another_one_is_admitted(ledger: Ledger) -> None:
    """Jobs with different identities are independent."""
    ledger.submit(order(42))
    assert ledger.submit(order(43)).outcome is Outcome.ADMITTED


def test_identity_depends_on_values_not_on_spelling() -> None:
    """Positional, keyword and default spellings of one call have one identity; another type is another value."""

    def invoice(order_id: object, note: str = "") -> None:
        """Do nothing."""

    equal = Identifier("shop.invoice", invoice)
    assert equal.identity([42], {}) == equal.identity([], {"order_id": 42, "note": ""})
    assert equal.identity([42], {}) != equal.identity(["42"], {})


def test_the_identity_is_free_after_the_end(ledger: Ledger) -> None:
    """When a job has completed, an equal submission is a new job."""
    first = ledger.submit(order(42)).job
    run = ledger.claim(first.id, nonce="claim-of-attempt-1", node="north").job
    assert run is not None
    ledger.complete(run, '"done"')
    again = ledger.submit(order(42))
    assert again.outcome is Outcome.ADMITTED
    assert again.job.id != first.id
