"""The operations of the ledger on limits: their values, and the jobs that wait for room."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from onejob import errors
from onejob.jobs.handover import Way
from onejob.jobs.limits import LimitValue, name_of, parked_on_key, read_uses
from onejob.jobs.model import JobRow
from onejob.ledger.limits import definition_of, unknown_limit
from onejob.ledger.reader import JobReader

FREED_LIMIT = 100
"""How many jobs that have waited for room one operation makes due."""
EXCEPTION_LIMIT = 1_000
"""How many exceptions of limits a ledger has at most."""
WAITING_KEYS = 10_000
"""How many keys that jobs wait for are looked at when a limit changes."""


@dataclass(frozen=True, slots=True)
class Freeing:
    """How jobs get to workers that had to wait for room: by sweeps, unless an app says otherwise."""

    way: Callable[[], Way] = lambda: Way.SWEPT
    send: Callable[[Sequence[JobRow]], object] = lambda _jobs: None
    """Sends the messages of jobs, where they need one."""
    report: Callable[[errors.StoreError], object] = lambda _error: None
    """Gets the error of a store that does not say which jobs have room: they are looked at again later."""


class LimitOperations(JobReader):
    """Writes the values of limits, and makes the jobs due that have waited for room."""

    freeing: Freeing | None = Freeing()
    """How jobs get to workers that had to wait for room; None: this ledger makes none due."""

    def give_back(self, job: JobRow) -> None:
        """Make jobs due that wait for the room that a job has had, or that the job itself waits for."""
        keys = [use.key for use in read_uses(job.limit_keys)]
        parked = parked_on_key(job.parked_on)  # may be of earlier arguments
        self.free_slots(keys if parked is None else [*keys, parked])

    def free_slots(self, keys: Iterable[str]) -> None:
        """Make jobs due that are parked on keys and have room now, and hand them over.

        Nothing is raised: what the store does not do now is done at the next end of a job, or by a worker's look.
        """
        if self.freeing is None:
            return
        waiting = dict.fromkeys(keys)
        try:
            while waiting:
                key, _ = waiting.popitem()
                waiting |= dict.fromkeys(self._free_slots_of(key, self.freeing))
        except errors.StoreError as error:
            self.freeing.report(error)

    def _free_slots_of(self, key: str, freeing: Freeing) -> frozenset[str]:
        """Hand over the jobs that have room on a key; return the keys on which others are parked instead."""
        moved = frozenset[str]()
        while True:
            freed = self.store.free_slots(key, way=freeing.way(), limit=FREED_LIMIT)
            moved |= freed.moved_to
            if freed.jobs:
                freeing.send(freed.jobs)
            if len(freed.jobs) < FREED_LIMIT:
                return moved

    def free_due_slots(self) -> float | None:
        """Make the jobs due whose rates have tokens for them now; return the seconds to the next look.

        The next look is at once if this one found keys: the store gives each due key to one caller, which frees it.
        """
        keys, seconds = self.store.due_limits()
        self.free_slots(keys)
        return 0.0 if keys else seconds

    def spend(self, job: JobRow, name: str, amount: float) -> None:
        """Correct the weight that a job took from the rate of a limit, by the weight that it really had.

        Raises `InvalidArgumentsError` if the job has no such limit.
        """
        use = next((each for each in read_uses(job.limit_keys) if name_of(each.key) == name), None)
        if use is None:
            raise errors.InvalidArgumentsError(f"job {job.id} has no limit {name!r}")
        self.store.spend(use.key, amount - use.weight)
        if amount < use.weight:
            self.free_slots([use.key])

    def set_limit(self, value: LimitValue) -> None:
        """Write an exception for the name of a limit, or for one of its keys; jobs that have room then are due at once.

        Raises `InvalidLimitError` if no task defines the limit, if it is of the other kind, or if its time is over.
        """
        now, values = self.read_clock(), self.store.limit_values()
        defined = definition_of(values, value.key)
        if defined is None:
            raise unknown_limit(value.key)
        if value.is_over(now):
            raise errors.InvalidLimitError("the exception would be over already: name a later time")
        exceptions = {each.key for each in values if not each.is_default and not each.is_over(now)}
        if len(exceptions - {value.key}) >= EXCEPTION_LIMIT:
            raise errors.InvalidLimitError(f"there are {EXCEPTION_LIMIT} exceptions already: clear one first")
        if value.running != 0 and (value.running is None) != (defined.running is None):
            kind = "a rate, such as 90/minute" if defined.running is None else "a number of running jobs"
            raise errors.InvalidLimitError(f"the limit {defined.key} is {kind}: {value.text!r} is none")
        self.store.put_limits([value])
        self._free_slots_of_names(defined.key)

    def clear_limit(self, key: str) -> None:
        """Delete the exception of a name or a key; jobs that have room then are due at once."""
        self.store.delete_limit(key)
        self._free_slots_of_names(name_of(key))

    def define_limits(self, values: Sequence[LimitValue]) -> None:
        """Write the definitions of limits that differ from those in the store."""
        known = self.store.limit_values()
        changed = [value for value in values if value not in known]
        if changed:
            self.store.put_limits(changed)
            self._free_slots_of_names(*(value.key for value in changed))

    def _free_slots_of_names(self, *names: str) -> None:
        uses = self.store.limit_uses(limit=WAITING_KEYS)
        self.free_slots([use.key for use in uses if name_of(use.key) in names])
