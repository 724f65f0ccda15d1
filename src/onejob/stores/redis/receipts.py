"""Who has met a job: the receipts that are kept there, and the tallies of all that ever were."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING

from onejob.job import Outcome, Receipt, Tally, values_of
from onejob.store import RECEIPT_LIMIT, By
from onejob.stores.redis.operations import Call, Operation, Read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onejob.stores.redis.keys import Keys

TALLIES = "1000"
"""About how many tallies one request reads."""


def record(keys: Keys, receipt: Receipt, also: Sequence[str]) -> Operation[None]:
    """Keep the receipts of those who have met a job."""
    job_id = receipt.job_id
    touched = (keys.job(job_id), keys.receipts(job_id), keys.tallies, keys.wake)
    yield Call(
        "record",
        touched,
        values_of(receipt) | {"submissions": json.dumps([receipt.submission, *also]), "receipt_limit": RECEIPT_LIMIT},
    )


def receipts(keys: Keys, job_id: str) -> Operation[list[Receipt]]:
    """Return the newest receipts of a job."""
    (lines,) = yield Read([("LRANGE", keys.receipts(job_id), "0", "-1")])
    return [_receipt(job_id, line) for line in lines]


def _receipt(job_id: str, line: str) -> Receipt:
    submission, at, outcome, answer, door, submitter, host, fingerprint, differs, moved = json.loads(line)
    return Receipt(
        job_id=job_id, submission=submission, outcome=Outcome(outcome), answer=answer, door=door, submitter=submitter,
        host=host, fingerprint=fingerprint, differs=differs == "1", moved=moved == "1", at=float(at),
    )  # fmt: skip


def tallies(keys: Keys, by: By, *, limit: int) -> Operation[list[Tally]]:
    """Return how many have met jobs. All tallies are read: they are in no order."""
    found: dict[str, str] = {}
    cursor = "0"
    while True:
        ((after, page),) = yield Read([("HSCAN", keys.tallies, cursor, "COUNT", TALLIES)])
        found |= page
        cursor = str(after)
        if cursor == "0":
            return _most(found, by, limit)


def _most(found: dict[str, str], by: By, limit: int) -> list[Tally]:
    counts: dict[tuple[str, str, str], int] = defaultdict(int)
    totals: dict[str, int] = defaultdict(int)
    for kind, count in found.items():
        task, identity, submitter, outcome = json.loads(kind)
        name = {By.TASK: task, By.IDENTITY: identity, By.SUBMITTER: submitter}[by]
        counts[name, task, outcome] += int(count)
        totals[name] += int(count)
    first = sorted(totals, key=lambda name: (-totals[name], name))[:limit]
    place = {name: number for number, name in enumerate(first)}
    kinds = sorted((kind for kind in counts if kind[0] in place), key=lambda kind: (place[kind[0]], kind))
    return [Tally(name, task, Outcome(outcome), counts[name, task, outcome]) for name, task, outcome in kinds]
