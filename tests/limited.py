"""Limits in a ledger and jobs that have them, which the tests of all faces of limits share."""

from __future__ import annotations

from collections.abc import Sequence

from onejob.jobs.limits import KeyUse, Limit, first_park, write_uses
from onejob.ledger.ledger import Ledger
from tests.stores.support import submission

CUSTOMER = "customer=42"
LIMITS = (Limit("customer", running=2), Limit(name="model", rate="90/minute"))


def define(ledger: Ledger, limits: Sequence[Limit] = LIMITS) -> None:
    """Write the definitions of limits, as a worker does at its start."""
    ledger.define_limits([limit.value() for limit in limits])


def crowd(ledger: Ledger, key: str = CUSTOMER, *, count: int = 3, task: str = "shop.invoice") -> list[str]:
    """Define the limits, submit jobs with one key, and start those that have room; return the ids of all."""
    define(ledger)
    limit_keys = write_uses([KeyUse(key)])
    ids = [f"{key.partition('=')[2] or key}-{number}" for number in range(count)]
    for job_id in ids:
        ledger.submit(submission(job_id, task=task, limit_keys=limit_keys, parked_on=first_park(limit_keys)))
        ledger.claim(job_id, nonce=job_id, node="north@web-1")
    return ids
