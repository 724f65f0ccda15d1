"""The limits of keys in Redis: their values, the jobs that have room, and the jobs that are parked on keys."""

# ruff: noqa: D102 - the methods are documented in onejob.stores.protocol

from __future__ import annotations

from collections.abc import Sequence

from onejob.jobs.handover import Way
from onejob.jobs.limits import Freed, LimitUse, LimitValue
from onejob.jobs.model import JobRow
from onejob.stores.protocol import LISTED_HOLDERS
from onejob.stores.redis.client import Part, pairs_of
from onejob.stores.redis.rows import job_of

ALARM_LIMIT = 100
"""How many alarms one call takes, at most."""
NONE = "-"


class Limits(Part):
    """The part of the store that limits how many similar jobs run."""

    def limit_values(self) -> list[LimitValue]:
        (found,) = self._client.read(("HGETALL", self._keys.limits))
        values = [_parse_value(field, text) for field, text in pairs_of(found).items()]
        return sorted(values, key=lambda value: (value.key, not value.is_default))

    def put_limits(self, values: Sequence[LimitValue]) -> None:
        if values:
            pairs = [text for value in values for text in (_field(value.key, value.is_default), _format_value(value))]
            self._client.call("put_limits", (self._keys.limits,), pairs)

    def delete_limit(self, key: str) -> None:
        self._client.call("delete_limit", (self._keys.limits,), (_field(key, is_default=False),))

    def free_slots(self, key: str, *, way: Way, limit: int) -> Freed:
        freed, moved = self._client.call("free_slots", self._keys.wake_sets, (key, way, str(limit)))
        jobs = [job_of(job_id, parts) for job_id, parts in zip(freed[::2], freed[1::2], strict=True)]
        return Freed(jobs, frozenset(moved))

    def due_limits(self) -> tuple[list[str], float | None]:
        keys, seconds = self._client.call("due_limits", (self._keys.limit_alarms,), (str(ALARM_LIMIT),))
        return keys, float(seconds) if seconds else None

    def spend(self, key: str, amount: float) -> None:
        self._client.call("spend", (self._keys.limits,), (key, str(amount)))

    def limit_uses(self, *, limit: int) -> list[LimitUse]:
        (keys,) = self._client.read(("ZREVRANGE", self._keys.waiting, "0", str(limit - 1)))
        return sorted(self._read_uses(keys), key=lambda use: (-use.waiting, use.key))

    def limit_use(self, key: str) -> LimitUse:
        return self._read_uses([key])[0]

    def parked_before(self, job: JobRow) -> int:
        if job.parked_on is None:
            return 0
        (rank,) = self._client.read(("ZRANK", self._keys.parked(job.parked_on), job.id))
        return rank or 0

    def _read_uses(self, keys: Sequence[str]) -> list[LimitUse]:
        if not keys:
            return []
        flat = self._client.call("limit_uses", (self._keys.limits,), keys)
        return [
            LimitUse(key=key, holders=tuple(sorted(ids)[:LISTED_HOLDERS]), waiting=waiting)
            for key, ids, waiting in zip(keys, flat[::2], flat[1::2], strict=True)
        ]


def _field(key: str, is_default: bool) -> str:  # noqa: FBT001 - the field of a value
    return f"{'defined' if is_default else 'set'} {key}"


def _format_value(value: LimitValue) -> str:
    numbers = (value.running, value.interval, value.burst, value.until)
    return " ".join([*(NONE if each is None else str(each) for each in numbers), value.rate or NONE])


def _parse_value(field: str, text: str) -> LimitValue:
    kind, _, key = field.partition(" ")
    running, interval, burst, until, rate = text.split(" ")
    times = [None if each == NONE else float(each) for each in (interval, until)]
    return LimitValue(
        key=key, running=None if running == NONE else int(running), rate="" if rate == NONE else rate,
        interval=times[0], burst=float(burst), is_default=kind == "defined", until=times[1],
    )  # fmt: skip
