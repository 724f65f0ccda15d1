"""Crash: a process that dies at any moment takes nothing with it that was acknowledged, and blocks nothing."""

from __future__ import annotations

import random
import sqlite3
from typing import TYPE_CHECKING

from onejob.jobs.lifecycle import State
from onejob.jobs.model import Outcome
from onejob.jobs.records import Query
from onejob.stores.protocol import DUPLICATE_LIMIT, GroupBy
from tests.contract.processes import CONTEXT, work_until_killed
from tests.contract.support import StoreAddress, assert_legal, counted, end, get, holders, read, start, submit
from tests.services import eventually
from tests.tiers import rounds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from onejob.stores.protocol import Store


def kill_at_some_moment(address: StoreAddress, log: Path, name: str, after: int) -> None:
    """Start a working process and kill it once it has had so many acknowledgements."""
    process = CONTEXT.Process(target=work_until_killed, args=(address, log, name))
    process.start()
    eventually(lambda: len(acknowledged(log)) >= after, 30.0)
    process.kill()
    process.join(10.0)


def acknowledged(log: Path) -> list[tuple[str, str]]:
    """Return what was acknowledged: whole lines only, for the last one may have been cut."""
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return [(line.split()[0], line.split()[1]) for line in lines]


def crash_again_and_again(address: StoreAddress, tmp_path: Path, kills: int) -> Iterator[tuple[str, str]]:
    """Kill working processes at random moments, and yield all that was acknowledged to them."""
    chance = random.Random()
    for number in range(kills):
        log = tmp_path / f"{number}.log"
        kill_at_some_moment(address, log, f"worker-{number}", chance.randrange(1, 120))
        yield from acknowledged(log)


@rounds(2, 8)
def test_what_was_acknowledged_is_there(store: Store, store_address: StoreAddress, tmp_path: Path, rounds: int) -> None:
    """After a kill at any moment, every acknowledged submission, result and retry is in the store."""
    acknowledgements = list(crash_again_and_again(store_address, tmp_path, rounds))
    assert len(acknowledgements) >= rounds
    for what, job_id in acknowledgements:
        job = get(store, job_id)
        if what in set(Outcome):
            follows = int(job_id.rpartition("-")[2]) % 3 == 0 and what != Outcome.REJECTED
            assert (job is not None) is (follows or what in {Outcome.ADMITTED, Outcome.QUEUED_NEXT})
        else:
            assert job is not None
            state = State.COMPLETED if what == "complete" else State.RETRYING
            assert (job.state, job.result) == (state, job_id)
    assert rounds < 8 or {what for what, _ in acknowledgements} >= {
        Outcome.ADMITTED, Outcome.REPLACED, Outcome.QUEUED_NEXT,
    }  # fmt: skip


@rounds(2, 8)
def test_a_kill_leaves_no_half_operation(
    store: Store, store_address: StoreAddress, tmp_path: Path, rounds: int
) -> None:
    """After kills at any moment rows agree with histories, duplicates and statistics, and nobody is forgotten."""
    for _ in crash_again_and_again(store_address, tmp_path, rounds):
        pass
    found = store.find(Query(limit=100_000))
    assert found
    assert len({job.identity for job in found if job.holds_identity}) == sum(job.holds_identity for job in found)
    alive = {job.id for job in found if not job.state.final}
    for job in found:
        assert job == get(store, job.id)
        assert job.wake_at is not None or not job.holds_identity
        assert not job.queued_next or job.follows_id in alive or job.wake_at is not None
        assert len(store.duplicates(job.id)) == min(job.duplicate_count, DUPLICATE_LIMIT)
        assert_legal(store.history(job.id), job)
    assert sum(counted(store, GroupBy.IDENTITY).values()) == sum(job.duplicate_count for job in found)


def test_an_identity_is_not_blocked_by_a_kill(store: Store, store_address: StoreAddress, tmp_path: Path) -> None:
    """After a kill every held identity can be run to its end, as can who is queued next, and is free after it."""
    kill_at_some_moment(store_address, tmp_path / "log", "worker", 60)
    for identity in {job.identity for job in store.find(Query(limit=100_000))}:
        while held := holders(store, identity):
            (job,) = held
            end(store, job if job.state is State.RUNNING else start(store, job.id))
        assert not any(job.queued_next for job in store.find(Query(identity=identity, limit=1000)))
    assert submit(store, "next", identity="worker-0").id == "next"
    assert read(store, "next").holds_identity


def test_a_sqlite_file_is_whole_after_kills(tmp_path: Path) -> None:
    """SQLite finds no fault in a file whose users were killed at random moments."""
    path = tmp_path / "ledger.db"
    assert list(crash_again_and_again(StoreAddress(f"sqlite:///{path}", "unused"), tmp_path, 4))
    connection = sqlite3.connect(path)
    assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
    assert connection.execute("pragma foreign_key_check").fetchall() == []
    connection.close()
