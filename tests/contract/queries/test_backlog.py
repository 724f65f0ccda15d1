"""The backlog: how many jobs wait for a run, by task, queue and state, and since when; and the followers of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onejob.jobs.lifecycle import FINAL, State, Transition
from onejob.jobs.records import Backlog, Query
from onejob.jobs.route import Route
from onejob.jobs.visibility import Visibility
from onejob.ledger.reader import JobReader
from tests.contract.support import (
    START,
    UNKNOWN,
    ManualClock,
    apply,
    end,
    queue_next,
    read,
    run,
    start,
    submission,
    submit,
    submit_one,
)

if TYPE_CHECKING:
    from onejob.jobs.model import Job
    from onejob.stores.protocol import Store

BOTH = frozenset({"a", "b"})


def test_waiting_jobs_are_counted_by_task_queue_and_state(store: Store, clock: ManualClock) -> None:
    """The backlog has a number for each task, queue and state of waiting jobs, and their earliest `run_at`."""
    submit(store, "first", task="a", route="fast", delay=5.0)
    clock.advance(1.0)
    submit(store, "second", task="a", route=Route("shop", "key", "fast").encode())
    submit(store, "other-queue", task="a", route="slow")
    submit(store, "other-task", task="b")
    submit(store, "unknown-task", task="c")
    run(store, "running", task="a", route="fast")
    end(store, run(store, "ended", task="a", route="fast"))
    apply(store, run(store, "again", task="a", route="fast"), Transition.RETRY, run_in=60.0, wake_in=60.0)
    queued, now = State.QUEUED, START + 1.0
    assert store.backlog(tasks=BOTH, limit=100) == [
        Backlog("a", "fast", queued, 2, now),
        Backlog("a", "fast", State.RETRYING, 1, now + 60.0),
        Backlog("a", "slow", queued, 1, now),
        Backlog("b", "", queued, 1, now),
    ]
    assert store.backlog(tasks=frozenset(), limit=100) == []


def test_jobs_that_wait_for_another_job_are_no_backlog(store: Store) -> None:
    """Followers and the job that is queued next are left out, and so is an ended job whose canvas is to be notified."""
    job = run(store, "running", identity="same", task="a", canvas=True)
    submit_one(store, submission("follower", identity="same", task="a", follows=True), wake_in=1.0)
    queue_next(store, "next", task="a")
    store.follow(submission("webhook", task="onejob.webhook", wake_task="a"), follows_id=job.id)
    assert store.backlog(tasks=BOTH, limit=100) == []
    apply(store, job, Transition.COMPLETE, wake_in=0.0)
    assert [(each.task, each.count) for each in store.backlog(tasks=BOTH, limit=100)] == [("a", 1)]
    assert read(store, "next").holds_identity


def test_the_backlog_is_bounded(store: Store, clock: ManualClock) -> None:
    """So many jobs of each task are looked at, those that are due first."""
    for number in range(300):
        submit(store, f"a-{number}", task="a", wake_in=100.0 - number / 10)
        if number % 10 == 0:
            submit(store, f"b-{number}", task="b")
        clock.advance(0.5)
    for limit in (1, 10, 299, 1000):
        found = store.backlog(tasks=BOTH, limit=limit)
        assert [(each.task, each.count) for each in found] == [("a", min(limit, 300)), ("b", min(limit, 30))]
    (first, _) = store.backlog(tasks=BOTH, limit=1)
    assert first.oldest_run_at == START


def test_a_reader_sees_its_backlog(store: Store) -> None:
    """A reader sees the backlog of its submitter and its tasks only."""
    for number, (task, name) in enumerate([("a", "ada"), ("a", "bob"), ("b", "ada")]):
        submit(store, f"job-{number}", task=task, submitter=name)

    def seen(**values: Any) -> list[tuple[str, int]]:
        reader = JobReader(store, Visibility(**values))
        return [(each.task, each.count) for each in reader.backlog(tasks=BOTH, limit=10)]

    assert seen() == [("a", 2), ("b", 1)]
    assert seen(submitter="ada") == [("a", 1), ("b", 1)]
    assert seen(submitter="ada", tasks=frozenset("ac")) == [("a", 1)]
    assert seen(submitter="eve") == seen(tasks=frozenset("c")) == []


# --- followers ------------------------------------------------------------------------------------------------------


def follow(store: Store, job_id: str, followed: Job, **values: Any) -> None:
    """Write a follower, as a webhook is."""
    assert store.follow(submission(job_id, **values), follows_id=followed.id) is not None


def test_followers_are_listed_until_they_are_deleted(store: Store, clock: ManualClock) -> None:
    """The followers of a job are listed, oldest first, whole, before and after its end and theirs."""
    job, other = run(store, "followed"), run(store, "other")
    for number in range(4):
        follow(store, f"webhook-{3 - number}", job)
        clock.advance(1.0 if number else 0.0)
    follow(store, "another", other)
    names = ["webhook-2", "webhook-3", "webhook-1", "webhook-0"]
    assert store.followers(job.id, limit=10) == [read(store, name) for name in names]
    end(store, job)
    end(store, start(store, "webhook-2"))
    end(store, start(store, "webhook-1"), Transition.FAIL)
    assert store.followers(job.id, limit=10) == [read(store, name) for name in names]
    assert [each.id for each in store.followers(job.id, limit=2)] == names[:2]
    assert store.delete(["webhook-2"], sources=FINAL) == ["webhook-2"]
    assert [each.id for each in store.followers(job.id, limit=2)] == names[1:3]
    assert store.followers(UNKNOWN, limit=10) == []


def test_a_job_that_follows_no_more_is_not_listed(store: Store) -> None:
    """A job that is queued next follows until it is promoted, and a redriven follower follows no more."""
    job = run(store, "first", identity="same")
    queue_next(store, "next")
    follow(store, "webhook", job)
    assert {each.id for each in store.followers("first", limit=10)} == {"next", "webhook"}
    end(store, job)
    failed = end(store, start(store, "webhook"), Transition.FAIL)
    assert [each.id for each in store.followers("first", limit=10)] == ["webhook"]
    apply(store, failed, Transition.REDRIVE, reopens=True, wake_in=1.0)
    assert store.followers("first", limit=10) == []


def test_a_job_with_ended_followers_can_be_purged(store: Store) -> None:
    """A purge spares a job that an unfinished follower points to, however many have ended, and no other."""
    job = run(store, "followed")
    for name in ("one", "two"):
        follow(store, name, job)
    end(store, job)
    end(store, start(store, "one"))
    assert store.delete([job.id], sources=FINAL, skip_referenced=True) == []
    end(store, start(store, "two"))
    assert store.delete([job.id], sources=FINAL, skip_referenced=True) == [job.id]
    assert {each.id for each in store.find(Query())} == {"one", "two"}


def test_a_reader_sees_the_followers_that_it_may_see(store: Store) -> None:
    """The followers of a job that a reader does not see are left out."""
    job = run(store, "followed")
    follow(store, "mine", job, submitter="ada")
    follow(store, "other", job, submitter="bob")
    reader = JobReader(store, Visibility(submitter="ada"))
    assert [each.id for each in reader.followers(job.id, limit=10)] == ["mine"]
