"""Random operations on jobs with limits, in lock-step on the model and on every store; and faults that they notice."""

import os
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from random import Random
from typing import Any, ClassVar, cast

import pytest

from onejob.jobs.handover import Way
from onejob.jobs.lifecycle import Transition
from onejob.jobs.limits import KeyUse, LimitValue, first_park, name_of, parked_on_key, rate_value, write_uses
from onejob.jobs.model import Applied, Change, JobRow, Submission
from onejob.stores.protocol import Store
from tests.cases import for_each, further
from tests.stores.lockstep import TICK, LockStep
from tests.stores.model import ModelStore
from tests.stores.model_limits import Reservation
from tests.stores.support import WAITING, ManualClock, change, holding
from tests.stores.test_model import (
    EVENTS,
    PAUSES,
    ROUTES,
    SEED,
    DeliveryPlayer,
    JobPlayer,
    Step,
    Values,
    play_all,
    steps_of,
)
from tests.tiers import deep

OTHER = 'customer="ž😀 {2}'
DEFINED = [
    LimitValue(key="gpu", running=2, is_default=True), LimitValue(key="customer", running=1, is_default=True),
    rate_value("api", "120/minute", 2, is_default=True), rate_value("model", "2/minute", 4, is_default=True),
]  # fmt: skip
"""The definitions. Intervals and weights are such that no sum of times is rounded."""
KEYS = ("gpu", "customer=1", OTHER, "api", "model=x")
RATES = {"api": ("60/minute", "240/minute"), "model": ("1/minute", "4/minute")}
USES = (("gpu",), ("customer=1",), ("api",), ("gpu", "customer=1"), ("api", "gpu"), ("model=x", OTHER),
    ("api", "model=x"), ("model=x",))  # fmt: skip
"""The keys that a job may have."""
WEIGHTS = (0.5, 1.0, 1.0, 2.0, 8.0)
"""What a job may count for a rate; the largest is more than any burst."""
NUMBER = 12
"""How many sequences a case plays."""
LENGTH = 50


class LimitPlayer(JobPlayer):
    """All that changes jobs with limits, and all that is kept of limits. What is kept is compared after each step."""

    WEIGHTS: ClassVar = {
        "submit": 18, "submit_many": 4, "follow": 2, "repeat": 5, "claim": 22, "renew": 4, "change": 16, "pass_time": 8,
        "take_due": 3, "postpone": 1, "delete": 2, "unpark": 2, "free": 20, "exception": 5, "spend": 2, "alarms": 4,
        "interrupt": 5,
    }  # fmt: skip

    def play(self, steps: Sequence[Step]) -> None:
        """Play steps with limits that are defined."""
        self.run("put_limits", DEFINED)
        super().play(steps)

    def step(self, name: str, dice: Random) -> None:
        """Play a step, and compare the uses of all keys."""
        super().step(name, dice)
        self.run.read("limit_uses", limit=100)
        for key in KEYS:
            self.run.read("limit_use", key)
        for job in self.jobs()[-3:]:
            self.run.read("parked_before", job)

    def submission(self, dice: Random, values: Values, name: str = "") -> Submission:
        """Return a submission, mostly with limits; many are equal to no other, so that several wait at once."""
        given: dict[str, tuple[Any, ...]] = {"route": ("slow", "fast", ROUTES[0], ""), "priority_rank": (0, 0, 1)}
        uses = [KeyUse(key, dice.choice(WEIGHTS) if name_of(key) in RATES else 1.0) for key in dice.choice(USES)]
        limit_keys = write_uses(uses) if dice.random() < 0.9 else None
        given["parked_on"] = (first_park(limit_keys), first_park(limit_keys), None)
        values = {each: dice.choice(given[each]) for each in given} | {"limit_keys": limit_keys} | values
        new = super().submission(dice, values, name)
        return replace(new, identity=f"identity-of-{new.id}") if dice.random() < 0.7 else new

    def write(self, operation: str, *args: Any, **values: Any) -> None:
        """Run an operation that can be repeated. Jobs that wait for room are held."""
        if operation == "submit_many":
            values["handover_of"] = holding(values["handover_of"])
        super().write(operation, *args, **values)

    def pick(self, dice: Random, *states: Any) -> JobRow | None:
        """Return one of the jobs in these states; of those that wait mostly one that is about to run."""
        ready = self.about_to_run()
        if ready and frozenset(states) == WAITING and dice.random() < 0.6:
            return dice.choice(ready)
        return super().pick(dice, *states)

    def about_to_run(self) -> list[JobRow]:
        """Return the jobs that have room on a key, and have not run yet."""
        model = self.run.model
        return [job for job in self.jobs() if any(model.is_reserved(key, job.id) for key in KEYS)]

    def interrupt(self, dice: Random) -> None:
        """Pause or cancel a job that is about to run, or wait until its room is over; then others may have it."""
        model, ready = self.run.model, self.about_to_run()
        if not ready:
            return
        job, event = dice.choice(ready), dice.choice((Transition.PARK, Transition.CANCEL, None))
        keys = [key for key in KEYS if model.is_reserved(key, job.id)]
        if event is not None:
            values = {"request_id": self.request(job, "")} | EVENTS[event][0]
            self.write("apply", change(job, event, **values))
        else:
            self.run.clock.now = model.reservations[keys[0], job.id].until - TICK
        for key in keys if dice.random() < 0.7 else ():
            self.run("free_slots", key, way=Way.CALLER, limit=9)
        if dice.random() < 0.5:
            self.run("unpark", PAUSES[0], limit=9, reason="it has ended")

    def free(self, dice: Random) -> None:
        """Make jobs due that have room now, mostly of a key that jobs wait for."""
        waited = [use.key for use in self.run.model.limit_uses(limit=100)]
        key = dice.choice(waited if waited and dice.random() < 0.9 else KEYS)
        self.run.clock.advance(dice.choice((0.0, 0.0, 0.5, 4.0)))
        self.run("free_slots", key, way=dice.choice([*Way]), limit=dice.choice((1, 2, 100)))
        if name_of(key) in RATES:
            self.run("due_limits")  # the alarm of a key says how many tokens it has

    def exception(self, dice: Random) -> None:
        """Write or delete an exception of a name or a key; a rate may be stopped, too."""
        key = dice.choice((*KEYS, "customer", "model"))
        until = dice.choice((None, self.run.clock.now + 10.0))
        if dice.random() < 0.4:
            self.run("delete_limit", key)
        elif name_of(key) in RATES and dice.random() < 0.7:
            value = rate_value(key, dice.choice(RATES[name_of(key)]), dice.choice((None, 4)), until=until)
            self.run("put_limits", [value])
        else:
            running = 0 if name_of(key) in RATES else dice.choice((0, 1, 3))
            self.run("put_limits", [LimitValue(key=key, running=running, until=until)])
        self.run.read("limit_values")

    def spend(self, dice: Random) -> None:
        """Take further tokens, or give some back; a limit of running jobs has none."""
        self.run("spend", dice.choice(("api", "model=x", "gpu")), dice.choice((2.0, 0.5, -1.0, -8.0)))

    def alarms(self, dice: Random) -> None:
        """Ask for the alarms that are due, mostly at the time of the next one."""
        ahead = [at for at in self.run.model.alarms.values() if at > self.run.clock.now]
        if ahead and dice.random() < 0.7:
            self.run.clock.now = min(ahead) - TICK
        self.run("due_limits")

    def pass_time(self, dice: Random) -> None:
        """Advance the clock, also to the end of a reservation, of an exception, or of what a rate has given."""
        model, now = self.run.model, self.run.clock.now
        ends = [found.until for found in model.reservations.values()]
        ends += [*model.full_at.values(), *(value.until for value in model.limit_values() if value.until is not None)]
        ahead = [at for at in ends if at > now + 1]
        if ahead and dice.random() < 0.5:
            self.run.clock.now = dice.choice(ahead) - TICK * dice.choice((1, 1, 2))
        else:
            super().pass_time(dice)


@pytest.mark.parametrize("part", [0, *further(1, 2, 3)])
def test_every_store_limits_jobs_as_the_model_does(lockstep: Callable[[], LockStep], part: int) -> None:
    """Whatever happens to jobs with limits, every store has the same slots, tokens, alarms and parked jobs."""
    play_all(LimitPlayer, lockstep, range(part * 1000, part * 1000 + NUMBER), LENGTH)


@deep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(4))
def test_every_store_limits_jobs_as_the_model_does_with_new_seeds(lockstep: Callable[[], LockStep], part: int) -> None:
    """The same law holds for sequences that no run has played before."""
    first = int(os.environ.get(SEED) or secrets.randbits(32)) + part * NUMBER
    play_all(LimitPlayer, lockstep, range(first, first + NUMBER), LENGTH)


class OfferPlayer(DeliveryPlayer, LimitPlayer):
    """The same, and workers that take the jobs of their queues."""

    WEIGHTS: ClassVar = LimitPlayer.WEIGHTS | {"deliver": 14}


def test_workers_take_the_jobs_that_have_room(
    fresh_stores: Callable[..., dict[str, Store]], clock: ManualClock
) -> None:
    """Whatever happens to jobs with limits, the stores that deliver offer each to workers when the model does."""

    def fresh() -> LockStep:
        stores = fresh_stores("sqlite", "postgresql")
        return LockStep(clock, {kind: stores[kind] for kind in ("sqlite", "postgresql")})

    play_all(OfferPlayer, fresh, range(NUMBER // 2), LENGTH)


class SteadyPlayer(LimitPlayer):
    """What happens to jobs with limits that no operator changes, and without late workers that renew a lost lease."""

    WEIGHTS: ClassVar = {name: LimitPlayer.WEIGHTS[name] for name in LimitPlayer.WEIGHTS if name != "exception"}

    def step(self, name: str, dice: Random) -> None:
        """Play a step; then no key has more holders than its limit permits."""
        late = any(job.lease_until is not None and job.lease_until <= self.run.clock.now + TICK for job in self.jobs())
        if name == "renew" and late:
            return
        super().step(name, dice)
        for key, most in (("gpu", 2), ("customer=1", 1), (OTHER, 1)):
            assert len(self.run.model.holders(key)) <= most, key


def test_no_key_has_more_jobs_than_its_limit(clock: ManualClock) -> None:
    """Whatever happens to jobs, no more of them run, or are about to run, at once than each of their keys permits."""
    play_all(SteadyPlayer, lambda: LockStep(clock, {}), range(NUMBER), LENGTH)


# --- broken twins -----------------------------------------------------------------------------------------------------


class UnfencedRelease(ModelStore):
    """A late run's end, which is refused, frees the slots of the run after it."""

    def apply(self, change: Change) -> Applied:
        applied = super().apply(change)
        if change.token is not None and not applied.applied:
            self.run_slots = {found: token for found, token in self.run_slots.items() if found[1] != change.job_id}
        return applied


class Counter(ModelStore):
    """A slot is free when its run ends, and so a lost run's slot is not."""

    def has_slot(self, key: str, job_id: str) -> bool:
        token, row = self.run_slots.get((key, job_id)), self.rows.get(job_id)
        return row is not None and row.job.token == token and row.job.lease_until is not None


class WakesAll(ModelStore):
    """All jobs that are parked on a key are made due, however much room it has."""

    def _has_room_on(self, key: str, job: JobRow) -> bool:
        return True

    def find_full(self, job: JobRow) -> str | None:
        return None if job.parked_on is not None else super().find_full(job)


class NewestFirst(ModelStore):
    """The youngest of the jobs that are parked on a key are made due first."""

    def parked(self, parked_on: str | None) -> list[JobRow]:
        found = super().parked(parked_on)
        return found if parked_on_key(parked_on) is None else found[::-1]


class KeepsTokens(ModelStore):
    """The tokens of a job that has not run within its lease are lost."""

    def look_at(self, key: str) -> None:
        for found in [each for each in self.reservations if each[0] == key]:
            if not self.is_reserved(*found):
                self.reservations[found] = Reservation(0.0, 0.0)


class Overtakes(ModelStore):
    """A claim gets the room that comes free before the jobs that have waited for it."""

    def is_preceded(self, job: JobRow, key: str) -> bool:
        return False


class KeepsRoom(ModelStore):
    """A job keeps its room when it is parked, or ends."""

    def end_room(self, job_id: str, *, kept: Collection[str] = ()) -> None:
        pass


class TakesTwice(ModelStore):
    """A run takes the tokens which its job has got before."""

    def move_full_at(self, key: str, weight: float) -> None:
        super().move_full_at(key, weight)
        self.reservations = {
            found: replace(each, weight=0.0) if found[0] == key and weight > 0 else each
            for found, each in self.reservations.items()
        }


class ForgetsExceptions(ModelStore):
    """The exception of a name has precedence over that of a key."""

    def value_of(self, key: str) -> LimitValue | None:
        return super().value_of(name_of(key))


TWINS = (
    UnfencedRelease, Counter, WakesAll, NewestFirst, KeepsTokens, Overtakes, KeepsRoom, TakesTwice, ForgetsExceptions,
)  # fmt: skip


@for_each("twin", TWINS)
def test_the_sequences_notice_a_broken_limit(clock: ManualClock, twin: type[ModelStore]) -> None:
    """A store that breaks one law of limits differs from the model in one of the sequences that each run plays."""
    noticed = 0
    for seed in range(NUMBER):
        run = LockStep(clock, {"twin": cast("Store", twin(clock))})
        try:
            LimitPlayer(run).play(steps_of(LimitPlayer, seed, LENGTH))
        except AssertionError as error:
            noticed += str(error).startswith("twin ")
    assert noticed > 0
