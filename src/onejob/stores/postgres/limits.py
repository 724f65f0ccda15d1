"""Frees the slots of a PostgreSQL ledger: some parked jobs in one transaction, and in the next one more of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onejob.jobs.handover import UNSENT, Way
from onejob.jobs.limits import PARKED_BY_LIMIT, Freed, read_uses
from onejob.jobs.model import JobRow
from onejob.stores.postgres.statements import Rows, Statements
from onejob.stores.sql import job_in

FIRST_BATCH, LARGEST_BATCH = 2, 32
"""How many parked jobs a transaction looks at: at first one more than usually has room, which shows that it is all."""


def free_slots(sql: Statements, key: str, way: Way, limit: int, room: int | None) -> Freed:
    """Make the first jobs due that are parked on a key and have room on all their keys, at most `limit`.

    `room`: how many slots are free, None for a rate. Whoever frees another one meanwhile looks for jobs after that.
    """
    limit = limit if room is None else min(limit, room)
    freed: list[JobRow] = []
    moved_to: set[str] = set()
    batch, is_alone = FIRST_BATCH if room is None else LARGEST_BATCH, False
    values = {
        "key": key, "parked_on": PARKED_BY_LIMIT + key, "is_swept": way is Way.SWEPT, "is_sent": way not in UNSENT,
        "is_offered": way is Way.OFFERED,
    }  # fmt: skip
    while True:
        count, values["is_alone"] = min(batch, limit - len(freed)), is_alone
        calls = ["lock_limits" if is_alone else "lock_key", *["free_slot"] * count]
        calls += ["set_alarm"] if room is None else []
        rows = [row for rows in sql.run_each([(name, values) for name in calls])[1 : count + 1] for row in rows]
        freed += [job_in(row) for row in rows if row["effect"] == "freed"]
        moved_to |= {row["moved_to"] for row in rows if row["effect"] == "moved"}
        if len(freed) == limit or len(rows) < count or rows[-1]["effect"] == "full":
            return Freed(freed, frozenset(moved_to))
        if rows[-1]["effect"] == "several":
            is_alone = True
        batch = min(4 * batch, LARGEST_BATCH)


def claim_limited(sql: Statements, job: JobRow, values: Mapping[str, Any]) -> Rows:
    """Claim a job with limits, or park it; return the row. Jobs with one key of their own do not wait for others."""
    keys = [use.key for use in read_uses(job.limit_keys)]
    lock = ("lock_key", {"key": keys[0]}) if len(keys) == 1 else ("lock_limits", {})
    return sql.run_each([lock, ("claim_limited", {**values, "limit_keys": job.limit_keys})])[-1]
