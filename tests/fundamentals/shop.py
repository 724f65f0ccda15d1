"""The shop of the tutorial: it writes invoices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

from onejob.jobs.model import Submission
from onejob.jobs.transitions import new_nonce
from onejob.uniqueness.identity import Identifier

if TYPE_CHECKING:
    from onejob.jobs.model import Job
    from onejob.ledger.ledger import Ledger


def invoice(order_id: int) -> str:
    """Write an invoice."""
    return f"invoice {order_id}"


INVOICE = Identifier("shop.invoice", invoice)


def order(order_id: int, **options: Any) -> Submission:
    """Return the submission of a click on an order."""
    return Submission(
        id=str(uuid4()),
        task="shop.invoice",
        identity=INVOICE.identity([order_id], {}),
        fingerprint=INVOICE.both([order_id], {})[1],
        nonce=new_nonce(),
        payload=f'{{"args": [{order_id}]}}',
        lease=30.0,
        **options,
    )


def claimed(ledger: Ledger, job_id: str, node: str = "north") -> Job:
    """Start a run of a job that can be claimed, and return it."""
    claim = ledger.claim(job_id, nonce=new_nonce(), node=node)
    assert claim.applied, claim
    assert claim.job is not None
    return claim.job
