"""How long an ended job answers: within its uniqueness window, by its key, and as the tombstone of a purged job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob.errors import (
    ConfigurationError,
    JobNotFoundError,
    JobPurgedError,
    PartlySubmittedError,
    QuotaExceededError,
    StoreUnavailableError,
)
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Outcome, Retention
from onejob.jobs.policy import DAY, Policy
from onejob.jobs.quota import Charge, Quota
from onejob.jobs.timestamps import format_timestamp
from onejob.jobs.transitions import DST_SHIFT
from onejob.ledger.ledger import Ledger
from onejob.ledger.sweep import SweepResult
from onejob.stores.protocol import BATCH_LIMIT
from tests.conftest import every_store
from tests.contract.ledger.world import publish_nothing
from tests.contract.support import CONFLICT_POLICIES, START, holders, submission, untouched

if TYPE_CHECKING:
    from onejob.jobs.model import Submission
    from tests.contract.ledger.world import World


# --- windows and keys -----------------------------------------------------------------------------------------------


def again(world: World, job_id: str, **values: object) -> tuple[Outcome, str]:
    """Submit an equal job; return the outcome and the id of the job that answers."""
    answer = world.ledger.submit(submission(job_id, **{"identity": "same"} | values))
    return answer.outcome, answer.job.id


@every_store
def test_a_window_ends_exactly_on_time(world: World) -> None:
    """Within its window a completed job answers with its result; at the end, before any sweep, another is admitted."""
    done = world.ledger.complete(world.run(identity="same"), '"done"', keep=Retention(identity_for=60.0))
    assert (done.holds_identity, done.identity_until) == (True, START + 60.0)
    world.clock.advance(59.9)
    answer = world.ledger.submit(submission("job-2", identity="same"))
    assert (answer.outcome, answer.job.id, answer.job.result) == (Outcome.REPLAYED, "job-1", '"done"')
    world.clock.advance(0.1)
    assert again(world, "job-3") == (Outcome.ADMITTED, "job-3")
    assert [job.id for job in holders(world.store, "same")] == ["job-3"]
    assert world.events()[-1] == "release_identity"
    world.assert_legal()


def test_a_window_can_end_at_a_given_time(world: World) -> None:
    """A window with `identity_until` ends then, whenever the job completed; a time in the past keeps no identity."""
    world.ledger.complete(world.run(identity="same"), "1", keep=Retention(identity_until=START + 10.0))
    assert again(world, "job-2") == (Outcome.REPLAYED, "job-1")
    world.clock.advance(10.0)
    assert again(world, "job-3") == (Outcome.ADMITTED, "job-3")
    world.ledger.complete(world.start("job-3"), "2", keep=Retention(identity_until=START))
    assert again(world, "job-4") == (Outcome.ADMITTED, "job-4")


def test_a_purge_ends_a_window(world: World) -> None:
    """A completed job with a window of days is purged an hour after its retention, which releases its identity."""
    world.ledger.complete(world.run(identity="same"), "1", keep=Retention(identity_for=DAY))
    world.clock.advance(DAY)
    assert world.sweep().purged == 0
    world.clock.advance(DST_SHIFT)
    assert world.sweep().purged == 1
    assert again(world, "job-2") == (Outcome.ADMITTED, "job-2")


def test_a_run_can_release_its_identity(world: World) -> None:
    """A run that releases its identity continues; an equal job is admitted, and neither end changes the other job."""
    first = world.ledger.release_identity(world.run(identity="same"))
    assert (first.state, first.holds_identity) == (State.RUNNING, False)
    assert again(world, "job-2") == (Outcome.ADMITTED, "job-2")
    with untouched(world.store, "job-2"):
        done = world.ledger.complete(first, "1", keep=Retention(identity_for=60.0))
    assert (done.holds_identity, [job.id for job in holders(world.store, "same")]) == (False, ["job-2"])


@every_store
@pytest.mark.parametrize("key_for", [DAY + 100.0, DAY - 100.0])
def test_a_purge_waits_for_the_retention_of_the_key(world: World, key_for: float) -> None:
    """An ended job is purged after its retention, but not before the retention of its last key ends."""
    world.ledger.complete(world.run(key="k", key_for=key_for), "1")
    world.clock.advance(DAY)
    if key_for > DAY:
        assert world.sweep(publish_nothing) == SweepResult()
        assert world.read().wake_at == START + key_for
        world.clock.advance(key_for - DAY - 0.5)
        assert again(world, "job-2", key="k") == (Outcome.REPLAYED, "job-1")
        assert world.sweep(publish_nothing) == SweepResult()
        world.clock.advance(0.5)
    assert world.sweep(publish_nothing) == SweepResult(purged=1)
    assert again(world, "job-3", key="k", fingerprint="other") == (Outcome.ADMITTED, "job-3")


# --- tombstones -----------------------------------------------------------------------------------------------------


def test_a_purged_job_differs_from_an_unknown_one(world: World) -> None:
    """For the id of a purged job the ledger raises `JobPurgedError`, which has its end, while the tombstone is kept."""
    ledger = world.ledger
    ledger.complete(world.run(), "1")
    world.clock.advance(DAY)
    assert world.sweep().purged == 1
    for use in (ledger.cancel, ledger.redrive, ledger.drop):
        with pytest.raises(JobPurgedError):
            use("job-1")
    with pytest.raises(JobPurgedError, match="completed at") as caught:
        ledger.get("job-1")
    raised = caught.value
    assert (raised.job_id, raised.state, raised.finished_at, raised.purged_at) == (
        "job-1", "completed", format_timestamp(START), format_timestamp(START + DAY),
    )  # fmt: skip
    world.clock.advance(7 * DAY)
    with pytest.raises(JobNotFoundError) as unknown:
        ledger.get("job-1")
    assert not isinstance(unknown.value, JobPurgedError)


def test_a_dropped_dead_letter_leaves_a_tombstone_and_no_key(world: World) -> None:
    """A dropped dead letter is deleted with its keys, and leaves a tombstone with the state failed."""
    world.ledger.fail(world.run(key="k"), '{"type": "ValueError"}', "ValueError")
    world.ledger.drop("job-1")
    with pytest.raises(JobPurgedError, match="' failed at"):
        world.ledger.get("job-1")
    assert again(world, "job-2", key="k", fingerprint="other") == (Outcome.ADMITTED, "job-2")


def test_tombstones_can_be_disabled(world: World) -> None:
    """With `tombstone_retention=0` a purged job is unknown; a negative value is refused."""
    world.use(Policy(tombstone_retention=0.0)).complete(world.run(), "1")
    world.clock.advance(DAY)
    assert world.sweep().purged == 1
    with pytest.raises(JobNotFoundError) as caught:
        world.ledger.get("job-1")
    assert not isinstance(caught.value, JobPurgedError)
    with pytest.raises(ConfigurationError, match="tombstone_retention"):
        Policy(tombstone_retention=-1.0)


# --- batches --------------------------------------------------------------------------------------------------------


def test_the_ledger_splits_larger_batches(world: World) -> None:
    """The ledger splits a batch larger than the store's limit, and returns all results in order."""
    assert world.ledger.submit_many([]) == []
    count = BATCH_LIMIT * 2 + 5
    news = [submission(f"job-{n}", identity=str(n % (BATCH_LIMIT + 1))) for n in range(count)]
    answers = world.ledger.submit_many(news)
    assert [answer.job.id for answer in answers] == [f"job-{n % (BATCH_LIMIT + 1)}" for n in range(count)]
    assert sum(answer.outcome is Outcome.ADMITTED for answer in answers) == BATCH_LIMIT + 1


def mostly_equal(prefix: str, policy: str) -> list[Submission]:
    """Return submissions of three identities, most of them equal, and for one identity some with other arguments."""
    submissions = []
    for each in range(70):
        other = {"fingerprint": "other", "delay": 3.0} if each % 15 == 5 else {}
        values = {"identity": f"{prefix}{each % 3}", "submitter": prefix} | CONFLICT_POLICIES[policy] | other
        submissions.append(submission(f"{prefix}equal-{each}", nonce=f"{prefix}{each}", **values))
    return submissions


@every_store
@pytest.mark.parametrize("policy", ["attach", "raise", "replace"])
def test_equal_submissions_at_once_equal_one_by_one(world: World, policy: str) -> None:
    """Equal submissions at once, of which one asks the store, leave what they leave one by one."""
    for begun in (False, True):
        left = {}
        for prefix in (f"one-{begun}-", f"all-{begun}-"):
            world.submit(f"{prefix}first", identity=f"{prefix}1", nonce=prefix)
            if begun:
                world.start(f"{prefix}first")
            news = mostly_equal(prefix, policy)
            is_batch = prefix.startswith("all")
            answers = world.ledger.submit_many(news) if is_batch else [world.ledger.submit(new) for new in news]
            jobs = [world.read(job_id) for job_id in sorted({answer.job.id for answer in answers})]
            stored = [(job.payload, job.fingerprint, job.run_at, job.duplicate_count) for job in jobs]
            kept = [len(world.store.duplicates(job.id)) for job in jobs]
            outcomes = [(answer.outcome, answer.job.id.removeprefix(prefix)) for answer in answers]
            left[is_batch] = outcomes, stored, kept
        assert left[True] == left[False]


def test_equal_submissions_are_answered_when_duplicates_cannot_be_recorded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the store cannot record the duplicates of a batch, all its submissions are still answered."""

    def fail_to_record(*_: object, **__: object) -> None:
        raise StoreUnavailableError

    monkeypatch.setattr(world.store, "record", fail_to_record)
    answers = world.ledger.submit_many([submission(f"job-{number}", identity=str(number % 2)) for number in range(4)])
    assert [answer.job.id for answer in answers] == ["job-0", "job-1"] * 2
    assert [answer.outcome for answer in answers] == ["admitted", "admitted", "attached", "attached"]


def test_what_is_charged_equally_is_asked_once(world: World) -> None:
    """Equal submissions of a batch share an answer only if they have the same quotas."""
    quotas = {name: (Charge("quota", Quota(limit, 60), name),) for name, limit in (("a", 1), ("b", 3))}
    identities = {"a-1": "own", "a-2": "same", "b-1": "same", "b-2": "same"}
    batch = [submission(job_id, identity=name, charges=quotas[job_id[0]]) for job_id, name in identities.items()]
    with pytest.raises(PartlySubmittedError) as caught:
        world.ledger.submit_many(batch)
    first, refused, *others = caught.value.results
    assert isinstance(refused, QuotaExceededError)
    assert [each.outcome for each in (first, *others)] == ["admitted", "admitted", "attached"]  # type: ignore[attr-defined]


def test_a_clock_that_is_set_back_loses_nothing(world: World) -> None:
    """What was submitted before a backward jump is published, at the latest when the clock is where it was."""
    world.submit()
    world.clock.advance(-3600.0)
    world.submit("job-2")
    for passed in (30.0, 3600.0):
        world.clock.advance(passed)
        world.sweep()
    assert {*world.sent_ids} == {"job-1", "job-2"}
    assert [Ledger(world.store).complete(world.start(job_id), "1").state for job_id in ("job-1", "job-2")] == [
        State.COMPLETED
    ] * 2
