"""The states of the entries of the beat schedule, as the ledger keeps them. Times are seconds since the epoch."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Self


def schedule_digest(entry: str, spec: str) -> str:
    """Return a short digest of an entry's name and its schedule as text, which is equal in all processes."""
    return hashlib.sha256(f"{len(entry)} {entry} {spec}".encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """The state of one entry of the beat schedule. Times are on the store's clock."""

    name: str
    nonce: str
    """The nonce of the latest change; the next change is made only if the nonce is still the same."""
    spec: str
    """The schedule as text: a changed schedule begins anew."""
    since: float
    """The time after which ticks are not decided yet. Intervals are counted from here."""
    seen_at: float
    """When a process that has the schedule looked at it, to about a minute."""
    seen_by: str = ""
    """The worker that looked; "" for a process of beat, which registers nowhere."""
    former_specs: tuple[str, ...] = ()
    """The former schedules, the latest first, which processes with other versions of the app may still have."""
    last_tick: float | None = None
    last_job: str = ""
    """The job that answered the last tick, or the id of a plain Celery task."""
    paused: bool = False

    def to_json(self) -> str:
        """Return all but `name` and `nonce`, as JSON."""
        return json.dumps({name: value for name, value in asdict(self).items() if name not in {"name", "nonce"}})

    @classmethod
    def from_row(cls, name: str, nonce: str, state: str) -> Self:
        """Build a state from a store's row."""
        found: dict[str, Any] = json.loads(state)
        former = found.pop("former_spec", "")  # of ledgers from before there were several
        specs = found.get("former_specs") or ([former] if former else [])
        known = {each.name for each in fields(cls)} & found.keys()  # newer processes may keep more
        values = {each: found[each] for each in known} | {"former_specs": tuple(specs)}
        return cls(name=name, nonce=nonce, **values)
