"""The shop of the tutorial: it writes invoices."""

from typing import Any
from uuid import uuid4

from onejob.jobs.model import JobRow, Submission
from onejob.jobs.transitions import new_nonce
from onejob.ledger.ledger import Ledger
from onejob.uniqueness.identity import Identifier
from tests.stores.support import accepted


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


def claimed(ledger: Ledger, job_id: str, node: str = "north") -> JobRow:
    """Start a run of a job that can be claimed, and return it."""
    return accepted(ledger.claim(job_id, nonce=new_nonce(), node=node))
