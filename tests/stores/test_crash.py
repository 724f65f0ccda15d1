"""Killed and forked processes: nothing acknowledged is lost, none blocks another, and a child has its own store."""

import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from onejob.jobs.handover import Way
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Outcome
from onejob.jobs.query import Query
from onejob.stores.protocol import DUPLICATE_LIMIT, GroupBy, Store
from tests.services import eventually
from tests.stores.processes import (
    CONTEXT,
    LIMITED_BY,
    SPAWN,
    close_after_fork,
    fork_in_two_threads,
    race,
    use_after_fork,
    use_slots_until_killed,
    work_until_killed,
)
from tests.stores.support import (
    LEASE,
    StoreAddress,
    accepted,
    assert_legal,
    change,
    claim,
    counted,
    end,
    get,
    holders,
    not_none,
    read,
    start,
    submit,
)
from tests.tiers import rounds


def kill_after_acknowledgements(
    address: StoreAddress, log: Path, name: str, after: int,
    work: Callable[[StoreAddress, Path, str], None] = work_until_killed,
) -> None:  # fmt: skip
    """Start a working process and kill it after this many acknowledgements."""
    process = CONTEXT.Process(target=work, args=(address, log, name))
    process.start()
    eventually(lambda: len(read_acknowledged(log)) >= after, 100.0)
    process.kill()
    process.join(10.0)
    if address.kind == "postgresql":  # whose server goes on with the operation of a client that is gone
        query = "select from pg_stat_activity where pid <> pg_backend_pid() and state <> 'idle' and query like %s"
        with psycopg.connect(address.url, autocommit=True) as session:
            eventually(lambda: session.execute(query, [f"%{address.namespace}%"]).fetchone() is None, 100.0)


def read_acknowledged(log: Path) -> list[tuple[str, str]]:
    """Return the acknowledged operations: complete lines only, because a kill can cut the last one."""
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return [(line.split()[0], line.split()[1]) for line in lines]


def crash_repeatedly(address: StoreAddress, tmp_path: Path, kills: int) -> Iterator[tuple[str, str]]:
    """Kill working processes at random moments, and yield everything that was acknowledged to them."""
    chance = random.Random()
    for number in range(kills):
        log = tmp_path / f"{number}.log"
        kill_after_acknowledgements(address, log, f"worker-{number}", chance.randrange(1, 120))
        yield from read_acknowledged(log)


@rounds(2, 10)
def test_kills_lose_nothing_and_leave_no_partial_operation(
    store: Store, store_address: StoreAddress, tmp_path: Path, rounds: int
) -> None:
    """After kills at any moment, what was acknowledged is stored, and rows agree with histories and statistics."""
    acknowledgements = list(crash_repeatedly(store_address, tmp_path, rounds))
    assert len(acknowledgements) >= rounds
    for event, job_id in acknowledgements:
        job = get(store, job_id)
        if event in set(Outcome):
            follows = int(job_id.rpartition("-")[2]) % 3 == 0 and event != Outcome.REJECTED
            assert (job is not None) is (follows or event in {Outcome.ADMITTED, Outcome.QUEUED_NEXT})
        else:
            assert job is not None
            state = State.COMPLETED if event == "complete" else State.RETRYING
            assert (job.state, job.result) == (state, job_id)
    assert rounds < 8 or {event for event, _ in acknowledgements} >= {
        Outcome.ADMITTED, Outcome.REPLACED, Outcome.QUEUED_NEXT,
    }  # fmt: skip
    assert_consistent(store)
    if store_address.kind == "sqlite":
        with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
            assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
            assert connection.execute("pragma foreign_key_check").fetchall() == []


def assert_consistent(store: Store) -> None:
    """Assert that rows agree with histories, duplicates and statistics, and that a sweep looks at each holder."""
    found = store.find(Query(limit=100_000))
    assert found
    assert len({job.identity for job in found if job.holds_identity}) == sum(job.holds_identity for job in found)
    live_ids = {job.id for job in found if not job.state.final}
    for job in found:
        assert job == get(store, job.id)
        assert job.wake_at is not None or not job.holds_identity
        assert not job.queued_next or job.follows_id in live_ids or job.wake_at is not None
        assert len(store.duplicates(job.id)) == min(job.duplicate_count, DUPLICATE_LIMIT)
        assert_legal(store.history(job.id), job)
    assert sum(counted(store, GroupBy.IDENTITY).values()) == sum(job.duplicate_count for job in found)


def test_an_identity_is_not_blocked_by_a_kill(store: Store, store_address: StoreAddress, tmp_path: Path) -> None:
    """After a kill every held identity is released by running its holder, and then the job that is queued next."""
    kill_after_acknowledgements(store_address, tmp_path / "log", "worker", 60)
    for identity in {job.identity for job in store.find(Query(limit=100_000))}:
        while current := holders(store, identity):
            (job,) = current
            end(store, job if job.state is State.RUNNING else start(store, job.id))
        assert not any(job.queued_next for job in store.find(Query(identity=identity, limit=1000)))
    assert submit(store, "next", identity="worker-0").id == "next"
    assert read(store, "next").holds_identity


@rounds(1, 6)
def test_a_kill_leaves_no_slot_behind(store_address: StoreAddress, tmp_path: Path, rounds: int) -> None:
    """After kills at any moment no key has more holders than its limit, and all jobs run when the leases have ended."""
    acknowledged: list[tuple[str, str]] = []
    for number in range(rounds):
        log = tmp_path / f"{number}.log"
        kill_after_acknowledgements(store_address, log, f"worker-{number}", 30 + number, use_slots_until_killed)
        acknowledged += read_acknowledged(log)
        with store_address.opened() as now:
            taken = {key: len(now.limit_use(key).holders) for key in ("gpu", "customer=1", "customer=2")}
        assert all(taken[key] <= most for key, most in {"gpu": 2, "customer=1": 1, "customer=2": 1}.items()), taken
    with store_address.opened(lambda: time.time() + 3 * LEASE) as after_all:
        run_all_limited(after_all)
        assert {get(after_all, job_id).state for _, job_id in acknowledged} == {State.COMPLETED}  # type: ignore[union-attr]
        assert after_all.limit_uses(limit=100) == []
        assert [key for keys in LIMITED_BY for key in keys if after_all.limit_use(key).holders] == []


def run_all_limited(store: Store) -> None:
    """Recover the lost runs, and run all jobs with limits as they have room."""
    for job in store.find(Query(states=frozenset({State.RUNNING}), limit=1000)):
        accepted(store.apply(change(job, Transition.CRASH, lapsed=True, wake_after=0.0)))
    waiting = Query(states=frozenset({State.QUEUED}), limit=100_000)
    while jobs := store.find(waiting):
        for job in jobs:
            answer = claim(store, job.id)
            if answer.applied:
                end(store, not_none(answer.job))
        for key in {key for keys in LIMITED_BY for key in keys}:
            store.free_slots(key, way=Way.CALLER, limit=1000)


# --- forks ----------------------------------------------------------------------------------------------------------

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


@forks
@rounds(4, 50)
def test_every_child_can_use_the_store(store_address: StoreAddress, store: Store, rounds: int) -> None:
    """A process that forks repeatedly while a thread uses the store has children that can all use it at once."""
    ((codes, used),) = race(store_address, 1, use_after_fork, rounds, context=SPAWN)
    assert codes == [0] * rounds
    assert {read(store, f"child-{number}").result for number in range(rounds)} == {f"child-{n}" for n in range(rounds)}
    assert {read(store, f"thread-{number}").result for number in range(used)} == {f"thread-{n}" for n in range(used)}
    assert read(store, "parent").result == "parent"


@forks
@rounds(3, 25)
def test_two_threads_can_fork_at_once(store_address: StoreAddress, store: Store, rounds: int) -> None:
    """Concurrent forks in several threads leave the store usable in the parent and in every child."""
    (codes,) = race(store_address, 1, fork_in_two_threads, rounds, context=SPAWN)
    assert codes == [0] * (rounds * 2)
    assert all(read(store, f"{name}-{n}").result for name in ("a", "b") for n in range(rounds))


@forks
def test_closing_in_the_parent_keeps_the_commits_of_the_child(store_address: StoreAddress, store: Store) -> None:
    """The commits of a forked child stay visible after the parent closes its store and other processes open it."""
    (seen,) = race(store_address, 1, close_after_fork, context=SPAWN)
    assert sorted(seen) == ["child-0", "child-1", "child-2", "parent"]
    assert read(store, "child-2").result == "child-2"
