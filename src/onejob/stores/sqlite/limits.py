"""Limits the jobs of a SQLite ledger: looks for room on keys, takes and reserves it, and parks jobs without room."""

from __future__ import annotations

import json

from onejob.jobs.handover import Handover, Way
from onejob.jobs.lifecycle import Transition
from onejob.jobs.limits import (
    PARKED_BY_LIMIT,
    Freed,
    KeyUse,
    LimitValue,
    has_room,
    name_of,
    read_uses,
    waits_for,
)
from onejob.jobs.model import JobRow
from onejob.stores.sql import limit_value_of
from onejob.stores.sqlite.transaction import Transaction


def find_full(tx: Transaction, job: JobRow, *, apart_from: str | None = None) -> str | None:
    """Return the first key of a job, `apart_from` one, that has no room for it; None if all have."""
    uses = (use for use in read_uses(job.limit_keys) if use.key != apart_from)
    return next((use.key for use in uses if not _is_free(tx, job, use)), None)


def take_room(tx: Transaction, job: JobRow) -> None:
    """Take a slot of each key for the run that has begun, or the tokens that its job has not got before."""
    for use in read_uses(job.limit_keys):
        value = _value_of(tx, use.key)
        reserved = tx.rows("use_reservation", key=use.key, job_id=job.id)
        if value is None or value.interval is None:
            tx.rows("take_slot", key=use.key, job_id=job.id, token=job.token)
        elif not (reserved and reserved[0]["weight"]):
            _move_full_at(tx, use.key, value, use.weight)


def park_on_key(tx: Transaction, job: JobRow, key: str) -> JobRow:
    """Park a job whose claim is refused, unless it is parked there; its room on other keys is free again."""
    parked_on, reason = PARKED_BY_LIMIT + key, waits_for(key)
    if job.parked_on == parked_on:
        return job
    for row in tx.rows("release_reservations", job_id=job.id):
        _give_back(tx, row["limit_key"], _value_of(tx, row["limit_key"]), row["weight"])
    parked = tx.existing_job("park_on_key", job_id=job.id, parked_on=parked_on, reason=reason)
    tx.append_history(job.id, Transition.PARK, reason)
    return parked


def free_slots(tx: Transaction, key: str, way: Way, limit: int) -> Freed:
    """Make the first jobs due that are parked on a key and have room on all their keys, at most `limit`."""
    freed: list[JobRow] = []
    moved_to: set[str] = set()
    _look_at(tx, key, _value_of(tx, key))
    while len(freed) < limit:
        job = _first_parked(tx, key)
        if job is None:
            break
        use = _use_of(job, key)
        if job.run_at > tx.now:
            tx.rows("unpark_one", job_id=job.id, run_at=job.run_at, wake_at=job.run_at, published_at=None, reason=None)
        elif use is not None and not _is_free(tx, job, use):
            break
        elif (full := find_full(tx, job, apart_from=key)) is not None:
            tx.rows("park_elsewhere", job_id=job.id, parked_on=PARKED_BY_LIMIT + full, reason=waits_for(full))
            moved_to.add(full)
        else:
            freed.append(_free(tx, job, key, way))
    _set_alarm(tx, key)
    return Freed(freed, frozenset(moved_to))


def spend(tx: Transaction, key: str, amount: float) -> None:
    """Take tokens of the rate of a key, or give some back."""
    value = _value_of(tx, key)
    _look_at(tx, key, value)
    if value is not None and value.interval is not None:
        _move_full_at(tx, key, value, amount)


def forfeit_room(tx: Transaction, job_id: str, kept: str | None = None) -> None:
    """End the room of a job that is about to run, except on the keys of a column `limit_keys`."""
    tx.rows("forfeit_room", job_id=job_id, kept=json.dumps([use.key for use in read_uses(kept)]))


def _value_of(tx: Transaction, key: str) -> LimitValue | None:
    """Return the value that a key has now; None: nothing limits it."""
    rows = tx.rows("limit_value", key=key, name=name_of(key))
    return limit_value_of(rows[0]) if rows else None


def _is_free(tx: Transaction, job: JobRow, use: KeyUse) -> bool:
    """Return whether a key has room for a job."""
    value = _value_of(tx, use.key)
    _look_at(tx, use.key, value)
    (state,) = tx.rows("key_state", key=use.key, job_id=job.id)
    if value is None or state["is_reserved"]:
        return True
    first = _first_parked(tx, use.key)
    if first is not None and _place(first) < _place(job):
        return False
    if value.running is not None:
        return bool(state["taken"] < value.running)
    return _enough_at(tx, use, value, state["full_at"]) <= tx.now


def _look_at(tx: Transaction, key: str, value: LimitValue | None) -> None:
    """Forget the slots and the reservations on a key that are no longer valid, and give their tokens back."""
    tx.rows("forget_slots", key=key)
    for row in tx.rows("forget_reservations", key=key):
        _give_back(tx, key, value, row["weight"])


def _give_back(tx: Transaction, key: str, value: LimitValue | None, weight: float) -> None:
    if weight and value is not None and value.interval is not None:
        _move_full_at(tx, key, value, -weight)


def _move_full_at(tx: Transaction, key: str, value: LimitValue, weight: float) -> None:
    tx.rows("delete_rates")
    tx.rows("move_full_at", key=key, seconds=weight * (value.interval or 0.0))


def _enough_at(tx: Transaction, use: KeyUse, value: LimitValue, full_at: float | None) -> float:
    """Return when the bucket of a rate has enough tokens for a use."""
    missing = min(use.weight, value.burst) - value.burst
    return max(full_at or 0.0, tx.now) + missing * (value.interval or 0.0)


def _free(tx: Transaction, job: JobRow, key: str, way: Way) -> JobRow:
    """Give a job room on all its keys for one lease, and make it due."""
    tx.rows("delete_reservations")
    for use in read_uses(job.limit_keys):
        value = _value_of(tx, use.key)
        weight = 0.0 if value is None or value.interval is None else use.weight
        if value is not None and weight:
            _move_full_at(tx, use.key, value, weight)
        tx.rows("reserve", key=use.key, job_id=job.id, until=tx.now + job.lease, weight=weight)
    handover = Handover(way, 0.0 if way is Way.SWEPT else None)
    wake_after, is_sent = handover.columns_for(job.lease, job.route)
    return tx.existing_job(
        "unpark_one", job_id=job.id, run_at=tx.now, wake_at=tx.now + wake_after,
        published_at=tx.now if is_sent else None, reason=has_room(key),
    )  # fmt: skip


def _set_alarm(tx: Transaction, key: str) -> None:
    """Remember when the first job that is left has enough tokens of a rate."""
    value, first = _value_of(tx, key), _first_parked(tx, key)
    if first is None or value is None or value.interval is None:
        tx.rows("clear_alarm", key=key)
        return
    (state,) = tx.rows("key_state", key=key, job_id=first.id)
    use = _use_of(first, key) or KeyUse(key)
    tx.rows("set_alarm", key=key, alarm=_enough_at(tx, use, value, state["full_at"]))


def _first_parked(tx: Transaction, key: str) -> JobRow | None:
    return tx.job("first_parked", parked_on=PARKED_BY_LIMIT + key)


def _use_of(job: JobRow, key: str) -> KeyUse | None:
    """Return the use of a key by a job; None if the job has others by now, so that it needs no room there."""
    return next((use for use in read_uses(job.limit_keys) if use.key == key), None)


def _place(job: JobRow) -> tuple[int, float, str]:
    """Return by what parked jobs are ordered."""
    return -job.priority_rank, job.created_at, job.id
