"""Submitters in Python: own jobs, also through a canvas, and quotas."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import redis
from celery import chain, chord, group

import onejob
from onejob import Outcome, QuotaExceededError, State
from onejob.errors import (
    ConfigurationError,
    InvalidArgumentsError,
    PartlySubmittedError,
)
from onejob.jobs.lifecycle import Transition
from onejob.jobs.model import Admission
from onejob.jobs.records import Query
from tests.celery.harness import DATABASES, PATIENCE, House, on_every_store
from tests.quiet import provokes
from tests.services import start_redis

if TYPE_CHECKING:
    from pathlib import Path


def tenant(name: str, **options: Any) -> Any:
    """Set a submitter with own jobs."""
    return onejob.submitter(name, own_jobs=True, **options)


def test_own_jobs_are_separate(house: House) -> None:
    """Equal calls of submitters with own jobs, and of others, are a job for each; each attaches to its own."""
    found = []
    for name in ("one", "two", "one"):
        with tenant(name):
            found.append(house.play.delay("same", ["return"]))
    found += [house.play.delay("same", ["return"]) for _ in range(2)]
    assert [each.outcome for each in found] == ["admitted", "admitted", "attached", "admitted", "attached"]
    assert found[0].id == found[2].id
    assert [each.job.submitter for each in found] == ["one", "two", "one", "", ""]


def test_own_jobs_need_a_name() -> None:
    """A submitter with own jobs has a name, which is printable."""
    for name in ("", "a\x00b", None):
        with pytest.raises(InvalidArgumentsError, match="printable"), tenant(name):  # type: ignore[arg-type]
            pass
    with pytest.raises(ConfigurationError, match="20/day"), tenant("a", quota="many"):
        pass


def test_a_canvas_belongs_to_its_submitter(shared: House) -> None:
    """The members of a chain and a chord that workers submit belong to the submitter of the canvas, and are its own."""

    def canvas() -> Any:
        members = group(shared.play.si(f"member-{number}", ["return"]) for number in range(2))
        return chain(shared.play.si("head", ["return"]), shared.note.s("tail")), chord(members, shared.note.s("all"))

    results = []
    for name in ("canvas-1", "canvas-2"):
        with tenant(name, quota="9/day"):
            results += [each.delay() for each in canvas()]
    for result in results:
        result.get(timeout=PATIENCE)
    jobs = shared.jobs()
    for name in ("canvas-1", "canvas-2"):
        own = [job for job in jobs if job.submitter == name]
        assert len({job.identity for job in own}) == 5, [(job.task, job.submitter, job.payload) for job in jobs]
    assert shared.runs("head") == shared.runs("tail") == shared.runs("all") == 2


def test_a_retried_job_passes_its_submitter_on(shared: House) -> None:
    """The job that follows in a chain belongs to the submitter of the canvas, also after a retry."""
    with tenant("one"):
        results = [
            (shared.play.si("again", ["retry:0", "return"]) | shared.note.s("after a retry")).delay(),
            (shared.play_auto.si("auto", ["raise:ValueError", "return"]) | shared.note.s("after an error")).delay(),
        ]
    for result in results:
        result.get(timeout=PATIENCE)
    assert [shared.ledger.get(result.id).submitter for result in results] == ["one"] * 2


def test_the_id_of_a_foreign_job_is_refused(house: House) -> None:
    """A submitter with own jobs cannot attach to the job of another one by giving its id, and changes nothing there."""
    foreign = house.play.delay("foreign", ["return"])
    before = house.ledger.get(foreign.id)
    with tenant("one"):
        with pytest.raises(InvalidArgumentsError, match="omit it"):
            house.play.apply_async(("own", ["return"]), task_id=foreign.id)
        own = house.play.apply_async(("own", ["return"]), task_id="chosen")
        assert house.play.apply_async(("own", ["return"]), task_id="chosen").id == own.id == "chosen"
    assert house.ledger.get(foreign.id) == before


@on_every_store("house")
def test_a_quota_limits_new_jobs(house: House) -> None:
    """New jobs are accepted up to the quota; above it nothing is stored, and a duplicate is still answered."""
    with onejob.submitter("a", quota="2/hour", identity_quota="1/hour"):
        first = house.play.delay("1", ["return"])
        assert house.play.delay("1", ["return"]).outcome == "attached"
        house.play.delay("2", ["return"])
        with pytest.raises(QuotaExceededError) as caught:
            house.play.delay("3", ["return"])
        assert house.play.delay("1", ["return"]).id == first.id
        house.ledger.cancel(first.id)
        with pytest.raises(QuotaExceededError, match="same identity"):
            house.play.delay("1", ["return"])
    with onejob.submitter("b", quota="1/hour"):
        house.play.delay("3", ["return"])
    assert len(house.jobs()) == 3
    error = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - ours
    assert (error.option, error.limit, error.reset_at[:2], str(error)) == ("quota", "2/hour", "20", str(caught.value))
    assert 3000 < error.retry_after <= 3600


def test_many_are_admitted_as_far_as_the_quota_has_left(house: House) -> None:
    """`submit_many` admits the first new jobs, raises the error of the others, and is charged for new jobs only."""
    with onejob.submitter("a", quota="4/hour", identity_quota="3/hour"):
        house.play.submit_many([("1", ["return"]), ("1", ["return"]), ("2", ["return"])])
        with pytest.raises(PartlySubmittedError, match=r"1 of 4 .*\(4/hour") as caught:
            house.play.submit_many([(str(number), ["return"]) for number in (3, 1, 4, 5)])
        assert [isinstance(each, Exception) for each in caught.value.results] == [False, False, False, True]
        with pytest.raises(QuotaExceededError):
            house.play.submit_many([(str(number), ["return"]) for number in (5, 6)])
        assert len(house.play.submit_many([(str(number), ["return"]) for number in (1, 4)])) == 2
    assert len(house.jobs()) == 4


def test_coroutines_are_charged_in_one_batch(house: House) -> None:
    """Concurrent calls of `asubmit` under a quota are admitted up to it, and each other one gets its error."""

    async def submit() -> list[Any]:
        calls = [house.play.asubmit(str(number), ["return"]) for number in (1, 2, 1, 3, 4)]
        return await asyncio.gather(*calls, return_exceptions=True)

    with onejob.submitter("a", quota="2/hour"):
        results = asyncio.run(submit())
    assert [isinstance(each, QuotaExceededError) for each in results] == [False, False, False, True, True]
    assert len(house.jobs()) == 2


def test_a_duplicate_over_the_quota_is_a_full_duplicate(house: House) -> None:
    """Over the quota a duplicate keeps its job from expiring, and its idempotency key gets that job's answer later."""
    with onejob.submitter("a", quota="1/hour"):
        first = house.play.apply_async(("1", ["return"]), expires=600)
        keyed = house.play.apply_async(("1", ["return"]), idempotency_key="k")
        assert house.ledger.get(first.id).expires_at is None
        house.ledger.cancel(first.id)
        again = house.play.apply_async(("1", ["return"]), idempotency_key="k")
    assert (keyed.id, again.id, again.outcome) == (first.id, first.id, "replayed")


def test_the_settings_limit_each_named_submitter(house: House) -> None:
    """`onejob_quota` applies to each submitter with a name, and to no submission without one."""
    house.app.conf.onejob_quota = "1/hour"
    for name in ("a", "b"):
        with onejob.submitter(name):
            house.play.delay(f"{name}-1", ["return"])
            with pytest.raises(QuotaExceededError):
                house.play.delay(f"{name}-2", ["return"])
    assert [house.play.delay(str(number), ["return"]).outcome for number in range(3)] == ["admitted"] * 3


@provokes(Transition.PUBLISH, because="Redis has no memory for messages")
def test_a_batch_that_fills_the_store_is_admitted_in_part(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """A batch during which Redis runs out of memory says which items were admitted, and only these use the quota."""
    server = start_redis(tmp_path, "--databases", str(DATABASES), "--maxmemory-policy", "noeviction")
    request.addfinalizer(server.stop)
    house = House(tmp_path, server, "redis")
    request.addfinalizer(house.close)
    client = redis.Redis.from_url(server.url)
    items = [(f"item-{number}", ["return"]) for number in range(1000)]
    with onejob.submitter("a", quota="1000/hour"):
        house.play.delay("first", ["return"])
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 600_000)
        with pytest.raises(PartlySubmittedError, match=r"of 999 .* not written: .* maxmemory") as caught:
            house.play.submit_many(items[1:])
        client.config_set("maxmemory", 0)
        refused = [item for item, each in zip(items[1:], caught.value.results, strict=True) if not is_admitted(each)]
        assert 0 < len(refused) < 999
        assert house.ledger.counts(Query())[State.QUEUED] == 1000 - len(refused)
        assert len(house.play.submit_many(refused)) == len(refused)
        with pytest.raises(QuotaExceededError):
            house.play.delay("last", ["return"])
    client.close()


def is_admitted(result: object) -> bool:
    """Return whether a submission of a batch was admitted."""
    return isinstance(result, Admission) and result.outcome is Outcome.ADMITTED
