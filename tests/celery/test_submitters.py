"""Submitters in Python: own jobs and quotas, also of coroutines and through a canvas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from celery import chain, chord, group

import onejob
from onejob import Outcome, QuotaExceededError, State
from onejob.errors import ConfigurationError, InvalidArgumentsError, PartlySubmittedError
from onejob.jobs.lifecycle import Transition
from onejob.jobs.model import Admission
from onejob.jobs.records import Query
from tests.celery.harness import PATIENCE, House
from tests.quiet import provokes


def tenant(name: str, **options: Any) -> Any:
    """Set a submitter with own jobs."""
    return onejob.submitter(name, own_jobs=True, **options)


def test_own_jobs_are_separate(house: House) -> None:
    """Equal calls of submitters with own jobs, and of others, are a job for each; none reaches another's by its id."""
    found = []
    for name in ("one", "two", "one"):
        with tenant(name):
            found.append(house.play.delay("same", ["return"]))
    found += [house.play.delay("same", ["return"]) for _ in range(2)]
    assert [each.outcome for each in found] == ["admitted", "admitted", "attached", "admitted", "attached"]
    assert found[0].id == found[2].id
    assert [each.job.submitter for each in found] == ["one", "two", "one", "", ""]
    foreign, before = found[-1].id, house.job(found[-1])
    with tenant("one"):
        with pytest.raises(InvalidArgumentsError, match="omit it"):
            house.play.apply_async(("own", ["return"]), task_id=foreign)
        own = house.play.apply_async(("own", ["return"]), task_id="chosen")
        assert house.play.apply_async(("own", ["return"]), task_id="chosen").id == own.id == "chosen"
    assert house.job(foreign) == before


def test_a_submitter_has_a_printable_name(house: House) -> None:
    """The name of a submitter is a short printable text, and a duplicate is recorded with it; its quota is a limit."""
    for name in ("", 7, "a\nb", "a\x00b", "x" * 256, None):
        for options in ({}, {"own_jobs": True}):
            with pytest.raises(InvalidArgumentsError, match="printable"), onejob.submitter(name, **options):  # type: ignore[arg-type]
                pass
    with pytest.raises(ConfigurationError, match="20/day"), tenant("a", quota="many"):
        pass
    first = house.play.delay("duplicate", ["hold"])
    with onejob.submitter("user:42"):
        house.play.delay("duplicate", ["other"])
    (named,) = house.ledger.duplicates(first.id)
    assert (named.submitter, named.source, named.outcome, named.arguments_differ) == (
        "user:42", "apply_async", Outcome.ATTACHED, True,
    )  # fmt: skip


def test_a_canvas_belongs_to_its_submitter(shared: House) -> None:
    """The members of a canvas that workers submit belong to its submitter, and are its own, also after a retry."""

    def canvas() -> list[Any]:
        members = group(shared.play.si(f"member-{number}", ["return"]) for number in range(2))
        head, auto = shared.play.si("head", ["retry:0", "return"]), shared.play_auto.si("auto", ["raise:no", "return"])
        tails = [shared.note.s(key) for key in ("tail", "auto's tail", "all")]
        return [chain(head, tails[0]), chain(auto, tails[1]), chord(members, tails[2])]

    results = []
    for name in ("canvas-1", "canvas-2"):
        with tenant(name, quota="9/day"):
            results += [each.delay() for each in canvas()]
    for result in results:
        result.get(timeout=PATIENCE)
    jobs = shared.jobs()
    for name in ("canvas-1", "canvas-2"):
        assert len({job.identity for job in jobs if job.submitter == name}) == 7
    assert shared.runs("tail") == shared.runs("auto's tail") == shared.runs("all") == 2


# --- quotas ---------------------------------------------------------------------------------------------------------


def test_a_quota_limits_new_jobs(house: House) -> None:
    """Above a quota, also one of the settings or of an identity, nothing is stored; a duplicate is still answered."""
    with onejob.submitter("a", quota="2/hour", identity_quota="1/hour"):
        first = house.play.apply_async(("1", ["return"]), expires=600)
        house.play.delay("2", ["return"])
        with pytest.raises(QuotaExceededError) as caught:
            house.play.delay("3", ["return"])
        with pytest.raises(QuotaExceededError):
            house.play.submit_many([("3", ["return"]), ("4", ["return"])])
        with pytest.raises(PartlySubmittedError, match=r"1 of 2 .*\(2/hour"):
            house.play.submit_many([("1", ["return"]), ("3", ["return"])])
        keyed = house.play.apply_async(("1", ["return"]), idempotency_key="k")
        assert (keyed.id, house.job(first).expires_at) == (first.id, None)
        house.ledger.cancel(first.id)
        with pytest.raises(QuotaExceededError, match="same identity"):
            house.play.delay("1", ["return"])
        assert house.play.apply_async(("1", ["return"]), idempotency_key="k").outcome == "replayed"
    assert (caught.value.option, caught.value.limit, caught.value.reset_at[:2]) == ("quota", "2/hour", "20")
    assert 3000 < caught.value.retry_after <= 3600
    limited: Any = house.another_app(onejob_quota="1/hour").tasks["play"]
    with onejob.submitter("b"):
        limited.delay("3", ["return"])
        with pytest.raises(QuotaExceededError):
            limited.delay("4", ["return"])
    assert limited.delay("4", ["return"]).outcome == "admitted"
    assert len(house.jobs()) == 4


def test_coroutines_are_admitted_as_far_as_the_quota_has_left(house: House) -> None:
    """Of coroutines that submit at once the first new jobs are admitted, and the others get the error."""

    async def submit() -> list[Any]:
        calls = [house.play.asubmit(str(number), ["return"]) for number in (7, 8, 7, 9)]
        return await asyncio.gather(*calls, return_exceptions=True)

    with onejob.submitter("b", quota="2/hour"):
        results = asyncio.run(submit())
    assert [isinstance(each, QuotaExceededError) for each in results] == [False, False, False, True]
    assert len(house.jobs()) == 2


@provokes(Transition.PUBLISH, because="Redis has no memory for messages")
def test_a_batch_that_fills_the_store_is_admitted_in_part(own_house: Callable[..., House]) -> None:
    """A batch during which Redis runs out of memory says which items were admitted, and only these use the quota."""
    house = own_house("redis")
    items = [(f"item-{number}", ["return"]) for number in range(1000)]
    with onejob.submitter("a", quota="1000/hour"):
        house.play.delay("first", ["return"])
        house.broker.config_set("maxmemory", house.broker.info("memory")["used_memory"] + 600_000)
        with pytest.raises(PartlySubmittedError, match=r"of 999 .* not written: .* maxmemory") as caught:
            house.play.submit_many(items[1:])
        house.broker.config_set("maxmemory", 0)
        refused = [item for item, each in zip(items[1:], caught.value.results, strict=True) if not is_admitted(each)]
        assert 0 < len(refused) < 999
        assert house.ledger.counts(Query())[State.QUEUED] == 1000 - len(refused)
        assert len(house.play.submit_many(refused)) == len(refused)
        with pytest.raises(QuotaExceededError):
            house.play.delay("last", ["return"])


def is_admitted(result: object) -> bool:
    """Return whether a submission of a batch was admitted."""
    return isinstance(result, Admission) and result.outcome is Outcome.ADMITTED
