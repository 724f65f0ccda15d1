"""Pauses park jobs until they end, and strikes make jobs dead letters, on every store."""

import pytest

from onejob.errors import BlockNotFoundError
from onejob.jobs.blocks import PARKED_SECONDS, Block, BlockKind
from onejob.jobs.lifecycle import State
from onejob.jobs.query import Query
from onejob.ledger.blocks import BlockCache
from onejob.ledger.explain import explain
from onejob.ledger.stuck import Snapshot, find_stuck
from onejob.ledger.sweep import note_publication
from tests.conftest import every_store
from tests.ledger.harness import LedgerHarness
from tests.stores.support import LEASE

PAUSE = Block(id="p-1", kind=BlockKind.PAUSE, task="app.add", where={}, note="maintenance")
STRIKE = Block(id="s-1", kind=BlockKind.STRIKE, task="app.add", where={"order": "42"})


def park(harness: LedgerHarness, *job_ids: str, pause: Block = PAUSE) -> Block:
    """Submit jobs, and park them on a pause as a worker does."""
    made = harness.ledger.add_block(pause)
    for job_id in job_ids:
        harness.due(job_id, wake_after=LEASE)
        assert harness.ledger.park(harness.read(job_id), made).applied
    return made


@every_store
def test_a_parked_job_waits_for_the_end_of_its_pause(harness: LedgerHarness) -> None:
    """A parked job is published by no sweep, keeps its identity, and is due at once when its pause ends."""
    park(harness, "job-1")
    job = harness.read()
    assert (job.state, job.parked_on) == (State.QUEUED, "p-1")
    assert job.holds_identity
    assert job.reason == "paused by p-1 (maintenance)"
    for _ in range(3):
        harness.clock.advance(PARKED_SECONDS)
        assert harness.sweep().published == 0
    harness.ledger.end_block("p-1", BlockKind.PAUSE)
    job = harness.read()
    assert (job.parked_on, job.published_at, job.reason) == (None, None, "pause p-1 has ended")
    assert harness.sweep().published == 1
    assert harness.sent_ids == ["job-1"]
    harness.start()
    assert harness.read().parked_on is None


@every_store
def test_a_job_that_is_parked_while_its_message_is_sent_stays_parked(harness: LedgerHarness) -> None:
    """A sweep that has sent the message of a job records that, and leaves the job where a claim has parked it since."""
    harness.due("job-1", wake_after=LEASE)
    seen, made = harness.read("job-1"), harness.ledger.add_block(PAUSE)
    assert harness.ledger.park(seen, made).applied
    assert note_publication(harness.ledger, seen, "").applied
    assert harness.read("job-1").parked_on == made.id
    harness.ledger.end_block(made.id, BlockKind.PAUSE)
    assert (harness.read("job-1").parked_on, harness.sweep().published) == (None, 1)


@every_store
def test_the_end_of_a_pause_wakes_its_own_jobs_alone(harness: LedgerHarness) -> None:
    """Jobs of another pause stay parked, and so do jobs that have ended or run meanwhile unchanged."""
    park(harness, "one", "two", "gone", "started")
    park(harness, "other", pause=Block(id="p-2", kind=BlockKind.PAUSE, queue="slow", where={}))
    harness.ledger.cancel("gone")
    harness.start("started")
    before = [harness.read(job_id) for job_id in ("gone", "started", "other")]
    harness.ledger.end_block("p-1", BlockKind.PAUSE)
    assert [harness.read(job_id) for job_id in ("gone", "started", "other")] == before
    harness.sweep()
    assert sorted(harness.sent_ids) == ["one", "two"]


@every_store
def test_a_pause_ends_by_itself(harness: LedgerHarness) -> None:
    """When its time is over, a pause is not listed, and a sweep wakes all of its jobs, however many there are."""
    until = harness.clock.now + 100.0
    park(harness, *(f"job-{number}" for number in range(5)), pause=PAUSE.__class__(
        id="p-1", kind=BlockKind.PAUSE, task="app.add", where={}, until=until,
    ))  # fmt: skip
    harness.clock.advance(99.0)
    assert (harness.sweep(limit=2).published, len(harness.ledger.list_blocks(BlockKind.PAUSE))) == (0, 1)
    harness.clock.advance(2.0)
    assert harness.ledger.list_blocks(BlockKind.PAUSE) == []
    harness.sweep(limit=2)
    assert (harness.store.blocks(), harness.ledger.find(Query(parked_on="p-1"))) == ([], [])
    harness.sweep()
    assert len(harness.sent) == 5


def test_two_sweeps_may_end_one_pause(harness: LedgerHarness) -> None:
    """A sweep that finds a pause over which another sweep has just ended goes on, and its jobs are due once."""
    until = harness.clock.now + 100.0
    park(harness, "job-1", pause=Block(id="p-1", kind=BlockKind.PAUSE, task="app.add", where={}, until=until))
    harness.clock.advance(200.0)
    other = harness.ledger
    harness.meanwhile("blocks", lambda: other.end_block("p-1", BlockKind.PAUSE))
    harness.sweep()
    harness.sweep()
    assert harness.sent_ids == ["job-1"]


@every_store
def test_a_job_that_is_parked_after_the_end_of_its_pause_is_due(harness: LedgerHarness) -> None:
    """A worker that parks a job on a pause that has ended meanwhile wakes it; after a crash there, a sweep does."""
    harness.due("job-1", "job-2", wake_after=LEASE)
    made = harness.ledger.add_block(PAUSE)
    harness.ledger.end_block(made.id, BlockKind.PAUSE)
    harness.ledger.park(harness.read("job-1"), made)
    assert harness.read("job-1").parked_on is None
    harness.meanwhile("apply", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        harness.ledger.park(harness.read("job-2"), made)
    assert harness.read("job-2").parked_on == made.id
    harness.clock.advance(PARKED_SECONDS)
    harness.sweep()
    assert (sorted(harness.sent_ids), harness.read("job-2").parked_on) == (["job-1", "job-2"], None)


@every_store
def test_a_parked_job_is_neither_late_nor_stuck_nor_lost(harness: LedgerHarness) -> None:
    """A parked job is in no backlog, is not stuck, and no evidence about its message makes it due."""
    park(harness, "job-1")
    harness.due("job-2", wake_after=LEASE)
    harness.clock.advance(100 * LEASE)
    (backlog,) = harness.ledger.backlog(tasks=frozenset({"app.add"}), limit=10)
    assert (backlog.count, backlog.due) == (1, 1)
    assert find_stuck(harness.read(), Snapshot.of(harness.ledger), harness.read().created_at) is None
    harness.ledger.mark_lost(["job-1"])
    assert harness.sweep().published == 1
    assert harness.sent_ids == ["job-2"]
    assert (
        "It is paused by p-1 (maintenance), and due when the pause ends." in explain(harness.ledger, "job-1").sentences
    )


@every_store
def test_a_struck_job_is_a_dead_letter_without_a_run(harness: LedgerHarness) -> None:
    """A strike fails a waiting job without an attempt; a redrive after the end of the strike sends it again."""
    harness.due("job-1", wake_after=LEASE)
    made = harness.ledger.add_block(STRIKE)
    assert harness.ledger.strike(harness.read(), made).applied
    job = harness.read()
    assert (job.state, job.attempt) == (State.FAILED, 0)
    assert not job.holds_identity
    assert job.reason == "struck by s-1"
    harness.ledger.end_block("s-1", BlockKind.STRIKE)
    harness.ledger.redrive("job-1")
    harness.sweep()
    assert harness.sent_ids == ["job-1"]


@every_store
def test_a_running_job_is_neither_parked_nor_struck(harness: LedgerHarness) -> None:
    """A job that was claimed meanwhile keeps its run."""
    harness.due("job-1", wake_after=LEASE)
    waiting = harness.read()
    running = harness.start()
    for made, keep in ((PAUSE, harness.ledger.park), (STRIKE, harness.ledger.strike)):
        assert not keep(waiting, harness.ledger.add_block(made)).applied
    assert harness.read() == running


@every_store
def test_a_block_is_ended_once_and_by_its_kind(harness: LedgerHarness) -> None:
    """Ending a block that does not exist, or one of the other kind, is an error that names it."""
    harness.ledger.add_block(PAUSE)
    with pytest.raises(BlockNotFoundError, match="no strike has the id 'p-1'"):
        harness.ledger.end_block("p-1", BlockKind.STRIKE)
    harness.ledger.end_block("p-1", BlockKind.PAUSE)
    with pytest.raises(BlockNotFoundError, match="no pause has the id 'p-1'"):
        harness.ledger.end_block("p-1", BlockKind.PAUSE)


def test_claims_know_a_block_within_half_a_second(harness: LedgerHarness) -> None:
    """The blocks are read again after half a second; during an outage of the store those read before stay."""
    now = [0.0]
    cache = BlockCache(lambda: harness.ledger, lambda: now[0])
    assert cache.current() == ()
    made = harness.ledger.add_block(PAUSE)
    now[0] = 0.4
    assert cache.current() == ()
    now[0] = 0.5
    assert cache.current() == (made,)
    harness.ledger.end_block("p-1", BlockKind.PAUSE)
    now[0] = 1.0
    assert cache.current() == ()
