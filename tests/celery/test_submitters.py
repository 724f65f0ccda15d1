"""Submitters in Python: own jobs, also through a canvas, and quotas."""

from __future__ import annotations

import pickle
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from celery import chain, chord, group

import onejob
from onejob import QuotaExceededError
from onejob.errors import ConfigurationError, InvalidArgumentsError, StoreError, StoreUnavailableError
from onejob.jobs.records import Query
from tests.cases import for_each
from tests.celery.harness import PATIENCE, on_every_store
from tests.contract.races import together

if TYPE_CHECKING:
    from tests.celery.harness import House


def tenant(name: str, **options: Any) -> Any:
    """Set a submitter with own jobs."""
    return onejob.submitter(name, own_jobs=True, **options)


@on_every_store("house")
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


@on_every_store("shared")
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
    jobs = [job for job in shared.ledger.find(Query(limit=200)) if job.task != "celery.backend_cleanup"]
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
    assert len({shared.ledger.get(result.id).identity for result in results}) == 2


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
    assert len(house.ledger.find(Query())) == 3
    error = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - ours
    assert (error.option, error.limit, error.reset_at[:2], str(error)) == ("quota", "2/hour", "20", str(caught.value))
    assert 3000 < error.retry_after <= 3600


@on_every_store("house")
def test_many_are_reserved_as_a_whole(house: House) -> None:
    """`submit_many` stores nothing unless the quota suffices for all, and consumes it for new jobs only."""
    with onejob.submitter("a", quota="4/hour", identity_quota="3/hour"):
        house.play.submit_many([("1", ["return"]), ("1", ["return"]), ("2", ["return"])])
        with pytest.raises(QuotaExceededError):
            house.play.submit_many([(str(number), ["return"]) for number in (3, 4, 5)])
        assert len(house.ledger.find(Query())) == 2
        house.play.submit_many([(str(number), ["return"]) for number in (3, 4)])
        with pytest.raises(QuotaExceededError):
            house.play.delay("6", ["return"])


def test_concurrent_calls_respect_the_quota(house: House) -> None:
    """Concurrent calls of one submitter create as many jobs as its quota allows."""

    def submit(number: int) -> bool:
        with onejob.submitter("a", quota="3/hour"):
            try:
                house.play.delay(str(number), ["return"])
            except QuotaExceededError:
                return False
            return True

    assert sum(together(*[partial(submit, number) for number in range(12)])) == 3
    assert len(house.ledger.find(Query())) == 3


@for_each("error refunded", [(StoreError("no"), True), (StoreUnavailableError("lost"), False)])
def test_a_failed_submission_is_refunded_unless_it_may_exist(
    house: House, monkeypatch: pytest.MonkeyPatch, error: Exception, *, refunded: bool
) -> None:
    """A submission that the store refuses consumes no quota; one whose outcome is unknown does."""

    def fail(*_args: Any, **_more: Any) -> Any:
        raise error

    with onejob.submitter(str(error), quota="1/hour"):
        with monkeypatch.context() as patched:
            patched.setattr(house.ledger.store, "submit_many", fail)
            with pytest.raises(type(error)):
                house.play.delay("1", ["return"])
        if refunded:
            assert house.play.delay(str(error), ["return"]).outcome == "admitted"
        else:
            with pytest.raises(QuotaExceededError):
                house.play.delay("1", ["return"])


def test_the_settings_limit_each_named_submitter(house: House) -> None:
    """`onejob_quota` applies to each submitter with a name, and to no submission without one."""
    house.app.conf.onejob_quota = "1/hour"
    for name in ("a", "b"):
        with onejob.submitter(name):
            house.play.delay(f"{name}-1", ["return"])
            with pytest.raises(QuotaExceededError):
                house.play.delay(f"{name}-2", ["return"])
    assert [house.play.delay(str(number), ["return"]).outcome for number in range(3)] == ["admitted"] * 3
