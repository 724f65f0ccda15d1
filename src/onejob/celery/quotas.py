"""Quotas of submissions, the same over HTTP and in Python: consumed before, and refunded if no job is created."""

from __future__ import annotations

import logging
import math
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onejob.errors import QuotaExceededError, StoreError, StoreUnavailableError
from onejob.jobs.timestamps import format_timestamp

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from onejob.jobs.model import Admission, Job, Submission
    from onejob.jobs.quota import Quota, Quotas
    from onejob.jobs.records import QuotaUse
    from onejob.jobs.submitter import Submitter
    from onejob.ledger.ledger import Ledger

logger = logging.getLogger("onejob")


@dataclass(frozen=True, slots=True)
class _Counter:
    """A quota, the name of its counter in the store, which is specific to the period, and what it counts."""

    option: str
    quota: Quota
    name: str
    identity: str | None
    """The identity whose jobs are counted; None: all jobs."""

    def number_of(self, identities: Sequence[str]) -> int:
        """Return how many jobs with these identities are counted."""
        return len(identities) if self.identity is None else identities.count(self.identity)


@dataclass(slots=True)
class Charges:
    """What a block that submits knows of the quotas, and what it charges to them."""

    refusal: QuotaExceededError | None = None
    """Set if the quotas do not suffice for a new job or webhook."""
    existing: Admission | None = None
    """Then the answer of an existing job."""
    identities: list[str] = field(default_factory=list)
    """Those of the new jobs, and of the jobs that got a new webhook."""

    def add(self, submissions: Sequence[Submission], admissions: Sequence[Admission]) -> None:
        """Charge the new jobs."""
        pairs = zip(submissions, admissions, strict=True)
        self.identities += [submission.identity for submission, each in pairs if each.outcome.makes_job]

    def remove(self, withdrawn: Sequence[Job]) -> None:
        """Charge nothing for new jobs that were withdrawn."""
        for job in withdrawn:
            self.identities.remove(job.identity)


class QuotaReservation:
    """The quota that submissions have consumed, refunded for those that create no job.

    A refund that fails, since the store is unavailable, is lost: a submitter never gets more than the quota.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._uses: list[tuple[_Counter, QuotaUse, int]] = []

    def consume(self, quotas: Quotas, submitter: str, identities: Sequence[str]) -> None:
        """Count a new job of each identity. Raises `QuotaExceededError`, and then consumes nothing.

        The quota per identity comes first, so that repeating one submission does not use up the total quota.
        """
        try:
            for counter in _counters(quotas, submitter, identities):
                self._increment(counter, counter.number_of(identities))
        except BaseException:
            self.refund()
            raise

    def _increment(self, counter: _Counter, amount: int) -> None:
        quota = counter.quota
        use = self._ledger.consume(counter.name, limit=quota.limit, period=quota.period, amount=amount)
        if not use.counted:
            retry_after = max(math.ceil(use.seconds), 1)
            raise QuotaExceededError(counter.option, str(quota), retry_after, format_timestamp(use.until))
        self._uses.append((counter, use, amount))

    def refund(self, created: Sequence[str] = ()) -> None:
        """Return the consumed quota, except that of the jobs that were created: their identities."""
        while self._uses:
            counter, use, amount = self._uses.pop()
            unused = amount - counter.number_of(created)
            try:
                if unused > 0:
                    self._ledger.refund(use, amount=unused)
            except StoreError as error:
                logger.warning("consumed quota could not be refunded: %s", error)


def _counters(quotas: Quotas, submitter: str, identities: Sequence[str]) -> Iterator[_Counter]:
    prefix = f"{len(submitter)}:{submitter}"
    if quotas.identity is not None:
        for identity in dict.fromkeys(identities):
            name = f"{prefix}:{quotas.identity.period}:{identity}"
            yield _Counter("identity_quota", quotas.identity, name, identity)
    if quotas.total is not None:
        yield _Counter("quota", quotas.total, f"{prefix}:{quotas.total.period}", None)


@contextmanager
def reserved_quotas(
    ledger: Ledger, quotas: Quotas, submitter: Submitter, submissions: Sequence[Submission]
) -> Iterator[Charges]:
    """Consume the quotas of a submitter for a block that submits; what it does not charge is refunded.

    Raises `QuotaExceededError` before anything is stored, unless an existing job answers the only submission.
    """
    charges, reservation = Charges(), QuotaReservation(ledger)
    try:
        reservation.consume(quotas, submitter.name, [each.identity for each in submissions])
    except QuotaExceededError as error:
        charges.refusal = error
        charges.existing = ledger.attach_existing(submissions[0]) if len(submissions) == 1 else None
        if charges.existing is None:
            raise
    try:
        yield charges
    except StoreUnavailableError:
        raise  # the jobs may exist
    except Exception:
        reservation.refund(charges.identities)
        raise
    reservation.refund(charges.identities)
