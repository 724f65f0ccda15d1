"""The part of the model that limits jobs: values, slots, tokens, and the jobs that are parked on keys.

A slot is a fact about a job, which is true or false at a time: nothing has to happen for it to become free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

from onejob.jobs.blocks import PARKED_SECONDS
from onejob.jobs.handover import BY_SWEEP, Handover, Way
from onejob.jobs.lifecycle import Transition
from onejob.jobs.limits import (
    PARKED_BY_LIMIT,
    Freed,
    KeyUse,
    LimitUse,
    LimitValue,
    has_room,
    name_of,
    parked_on_key,
    read_uses,
    waits_for,
)
from onejob.jobs.model import JobRow
from onejob.stores.protocol import LISTED_HOLDERS


@dataclass(frozen=True)
class Reservation:
    """The room on a key that `free_slots` has given to a job which is about to run."""

    until: float
    weight: float
    """The tokens that the job has got for it; 0: it is a slot."""


class LimitedRow(Protocol):
    """What is used here of a job with all that belongs to it."""

    job: JobRow

    def set(self, **values: object) -> JobRow: ...
    def record(self, at: float, event: str, detail: str) -> None: ...


class ModelLimits:
    """The protocol `Limits`, and what a claim asks of it."""

    read_clock: Callable[[], float]
    rows: Mapping[str, LimitedRow]

    def __init__(self) -> None:
        self.values: dict[tuple[str, bool], LimitValue] = {}
        """The values, by key and whether they are definitions."""
        self.reservations: dict[tuple[str, str], Reservation] = {}
        """The room of jobs that are about to run, by key and job."""
        self.run_slots: dict[tuple[str, str], int] = {}
        """The tokens of the runs that have taken a slot, by key and job."""
        self.full_at: dict[str, float] = {}
        """When the bucket of a key is full; it may be over."""
        self.alarms: dict[str, float] = {}

    # --- values -----------------------------------------------------------------------------------------------------

    def limit_values(self) -> list[LimitValue]:
        return sorted(self.values.values(), key=lambda value: (value.key, not value.is_default))

    def put_limits(self, values: Sequence[LimitValue]) -> None:
        self.values |= {(value.key, value.is_default): value for value in values}

    def delete_limit(self, key: str) -> None:
        self.values.pop((key, False), None)

    def value_of(self, key: str) -> LimitValue | None:
        """Return the value that a key has now: its own exception, that of its name, or the definition."""
        name = name_of(key)
        found = (self.values.get(each) for each in ((key, False), (name, False), (name, True)))
        return next((value for value in found if value is not None and not value.is_over(self.read_clock())), None)

    # --- slots ------------------------------------------------------------------------------------------------------

    def is_reserved(self, key: str, job_id: str) -> bool:
        """Return whether a job has room on a key, which it has not used yet."""
        found = self.reservations.get((key, job_id))
        return found is not None and found.until > self.read_clock()

    def end_room(self, job_id: str, *, kept: Collection[str] = ()) -> None:
        """End the room of a job that no longer waits for its run, or is parked, or has only the `kept` keys now."""
        for found in [each for each in self.reservations if each[1] == job_id and each[0] not in kept]:
            self.move_full_at(found[0], -self.reservations.pop(found).weight)

    def has_slot(self, key: str, job_id: str) -> bool:
        """Return whether a job runs, with a valid lease, since the claim that took a slot."""
        token, row = self.run_slots.get((key, job_id)), self.rows.get(job_id)
        return row is not None and row.job.token == token and (row.job.lease_until or 0.0) > self.read_clock()

    def holders(self, key: str) -> list[str]:
        """Return the jobs that run, or are about to run, with slots of a key; of a rate those that are about to run."""
        value = self.value_of(key)
        about_to_run = [job_id for job_id in self.rows if self.is_reserved(key, job_id)]
        runs = [job_id for job_id in self.rows if self.has_slot(key, job_id)]
        return sorted(about_to_run + (runs if value is None or value.running is not None else []))

    # --- tokens -----------------------------------------------------------------------------------------------------

    def move_full_at(self, key: str, weight: float) -> None:
        """Take tokens of a rate, or give them back; a key with another limit has none."""
        value, now = self.value_of(key), self.read_clock()
        if value is not None and value.interval is not None:
            self.full_at[key] = max(self.full_at.get(key, now), now) + weight * value.interval

    def enough_at(self, use: KeyUse, value: LimitValue) -> float:
        """Return when the bucket of a rate has enough tokens for a use."""
        assert value.interval is not None
        now = self.read_clock()
        return max(self.full_at.get(use.key, now), now) + (min(use.weight, value.burst) - value.burst) * value.interval

    def look_at(self, key: str) -> None:
        """Forget the reservations that are over, and give their tokens back."""
        for found in [each for each in self.reservations if each[0] == key and not self.is_reserved(*each)]:
            self.move_full_at(key, -self.reservations.pop(found).weight)

    # --- room -------------------------------------------------------------------------------------------------------

    def find_full(self, job: JobRow) -> str | None:
        """Return the first key of a job that has no room for it; None if all have. The keys behind it are not seen."""
        return next((use.key for use in read_uses(job.limit_keys) if not self.has_room(job, use)), None)

    def has_room(self, job: JobRow, use: KeyUse) -> bool:
        """Return whether a key has room for a job."""
        self.look_at(use.key)
        value = self.value_of(use.key)
        if value is None or self.is_reserved(use.key, job.id):
            return True
        if self.is_preceded(job, use.key):
            return False
        if value.running is not None:
            return len(self.holders(use.key)) < value.running
        return self.enough_at(use, value) <= self.read_clock()

    def is_preceded(self, job: JobRow, key: str) -> bool:
        """Return whether another job that is parked on a key comes before a job."""
        return any(_place(each) < _place(job) for each in self.parked(PARKED_BY_LIMIT + key))

    def take_room(self, row: LimitedRow) -> None:
        """Take a slot of each key for the run that has begun, or the tokens that the job has not got yet."""
        job = row.job
        for use in read_uses(job.limit_keys):
            value, reserved = self.value_of(use.key), self.reservations.pop((use.key, job.id), None)
            if value is None or value.running is not None:
                self.run_slots[use.key, job.id] = job.token
            elif reserved is None or not reserved.weight:
                self.move_full_at(use.key, use.weight)

    def park_on_key(self, row: LimitedRow, key: str) -> None:
        """Park a job whose claim is refused, unless it is parked there; its room on other keys is free again."""
        now, job = self.read_clock(), row.job
        if job.parked_on == PARKED_BY_LIMIT + key:
            return
        self.end_room(job.id)
        row.set(
            parked_on=PARKED_BY_LIMIT + key, published_at=now, reason=waits_for(key),
            wake_at=min(now + PARKED_SECONDS, _expiry(job)),
        )  # fmt: skip
        row.record(now, Transition.PARK, waits_for(key))

    # --- parked jobs ------------------------------------------------------------------------------------------------

    def parked(self, parked_on: str | None) -> list[JobRow]:
        """Return the jobs that are parked on a key or a pause: the most urgent ones first, and then the oldest."""
        jobs = [row.job for row in self.rows.values()]
        return sorted((job for job in jobs if job.parked_on == parked_on and is_waiting(job)), key=_place)

    def free_slots(self, key: str, *, way: Way, limit: int) -> Freed:
        self.look_at(key)
        freed: list[JobRow] = []
        moved_to: set[str] = set()
        for job in self.parked(PARKED_BY_LIMIT + key):
            row = self.rows[job.id]
            if len(freed) == limit:
                break
            if job.run_at > self.read_clock():
                row.set(parked_on=None, published_at=None, wake_at=min(job.run_at, _expiry(job)))
            elif not self._has_room_on(key, job):
                break
            elif (full := self.find_full(job)) is not None:
                row.set(parked_on=PARKED_BY_LIMIT + full, reason=waits_for(full))
                moved_to.add(full)
            else:
                freed.append(self._free(row, key, way))
        self._set_alarm(key)
        return Freed(freed, frozenset(moved_to))

    def _has_room_on(self, key: str, job: JobRow) -> bool:
        """Return whether a key has room for a job that is parked on it; a job that now has other keys needs none."""
        use = _use_of(job, key)
        return use is None or self.has_room(job, use)

    def _free(self, row: LimitedRow, key: str, way: Way) -> JobRow:
        """Give a job room on all its keys for one lease, and make it due."""
        now, job = self.read_clock(), row.job
        handover = BY_SWEEP if way is Way.SWEPT else Handover(way)
        wake_after, is_sent = handover.columns_for(job.lease, job.route)
        for use in read_uses(job.limit_keys):
            value = self.value_of(use.key)
            weight = 0.0 if value is None or value.interval is None else use.weight
            self.move_full_at(use.key, weight)
            self.reservations[use.key, job.id] = Reservation(now + job.lease, weight)
        return row.set(
            parked_on=None, reason=has_room(key), run_at=now, published_at=now if is_sent else None,
            wake_at=min(now + wake_after, _expiry(job)),
        )  # fmt: skip

    def _set_alarm(self, key: str) -> None:
        """Remember when the first job that is left has enough tokens."""
        left, value = self.parked(PARKED_BY_LIMIT + key), self.value_of(key)
        self.alarms.pop(key, None)
        if left and value is not None and value.interval is not None:
            self.alarms[key] = self.enough_at(_use_of(left[0], key) or KeyUse(key), value)

    def due_limits(self) -> tuple[list[str], float | None]:
        now = self.read_clock()
        due = sorted(key for key, at in self.alarms.items() if at <= now)
        self.alarms |= dict.fromkeys(due, now + 1)
        return due, min((at - now for at in self.alarms.values()), default=None)

    def spend(self, key: str, amount: float) -> None:
        self.look_at(key)
        self.move_full_at(key, amount)

    # --- reads ------------------------------------------------------------------------------------------------------

    def limit_uses(self, *, limit: int) -> list[LimitUse]:
        keys = (parked_on_key(row.job.parked_on) for row in self.rows.values() if is_waiting(row.job))
        waiting = Counter(key for key in keys if key is not None)
        most = sorted(waiting, key=lambda key: (-waiting[key], key))
        return [self.limit_use(key) for key in most[:limit]]

    def limit_use(self, key: str) -> LimitUse:
        holders, waiting = self.holders(key)[:LISTED_HOLDERS], len(self.parked(PARKED_BY_LIMIT + key))
        return LimitUse(key=key, holders=tuple(holders), waiting=waiting)

    def parked_before(self, job: JobRow) -> int:
        parked = self.parked(job.parked_on) if job.parked_on is not None else []
        return sum(_place(each) < _place(job) for each in parked)


def is_waiting(job: JobRow) -> bool:
    """Return whether a job neither runs nor has ended."""
    return job.lease_until is None and job.finished_at is None


def _place(job: JobRow) -> tuple[int, float, str]:
    """Return by what parked jobs are ordered."""
    return -job.priority_rank, job.created_at, job.id


def _use_of(job: JobRow, key: str) -> KeyUse | None:
    """Return the use of a key by a job; None if the job has others by now."""
    return next((use for use in read_uses(job.limit_keys) if use.key == key), None)


def _expiry(job: JobRow) -> float:
    return inf if job.expires_at is None else job.expires_at
