"""Operations that a carrier takes to a store together: each has its own answer, and its own error."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onejob.concurrency.greenlets import call_in_bridge
from onejob.concurrency.loop_carrier import LoopCarrier
from onejob.errors import StoreBusyError, StoreError, StoreRefusedError, StoreUnavailableError
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.limits import KeyUse, LimitValue, write_uses
from onejob.jobs.model import Applied, JobRow
from onejob.stores.carrier import carried, set_carrier
from onejob.stores.postgres import PostgresStore, connection, statements
from onejob.stores.protocol import Store
from onejob.stores.sqlite import SQLiteStore, transaction
from tests.services import PostgresServer, eventually
from tests.stores.carriers import Gathering
from tests.stores.races import together
from tests.stores.support import (
    ManualClock,
    accepted,
    apply,
    change,
    claim,
    end,
    events,
    get,
    read,
    run,
    start,
    submission,
    submit,
    submit_one,
    untouched,
)

IDS = tuple(f"job-{number}" for number in range(8))
NO_TEXT = "\udcff"
"""A lone surrogate, which no store takes."""


def ends_of(store: Store, jobs: list[JobRow], **values: Any) -> list[Callable[[], Applied]]:
    return [partial(store.apply, change(job, Transition.COMPLETE, wake_after=100.0, **values)) for job in jobs]


def claims_of(store: Store, ids: tuple[str, ...] = IDS) -> list[Callable[[], Applied]]:
    return [partial(claim, store, job_id, nonce=f"nonce-{job_id}") for job_id in ids]


# --- the same answers -------------------------------------------------------------------------------------------------


def play(store: Store, name: str, call_all: Callable[..., list[Any]]) -> list[object]:
    """Play claims, reads and ends of jobs by a function that calls those of a step; return all answers and rows."""
    first, again, followed, canceled, missing = (f"{name}-{number}" for number in range(5))
    submit(store, first)
    apply(store, run(store, again), Transition.RETRY)
    submit(store, followed)
    submit(store, f"{name}-follower", identity=f"identity-of-{followed}", follows=True)
    apply(store, submit(store, canceled), Transition.CANCEL)
    ids = first, again, followed, canceled, missing
    claimed: list[Applied] = call_all(*claims_of(store, ids))
    runs = [accepted(each) for each in claimed[:3]]
    late = change(runs[0], Transition.COMPLETE, token=1)
    kept = call_all(
        partial(store.keep_step, first, runs[0].token, "step", '"kept"', sources=frozenset({State.RUNNING})),
        partial(store.report, again, runs[1].token, "0.5", sources=frozenset({State.RUNNING})),
        partial(get, store, canceled),
        partial(store.apply, late),
        partial(store.history, again),
    )
    ended: list[Applied] = call_all(
        partial(store.apply, change(runs[0], Transition.COMPLETE, result="1", wake_after=100.0)),
        partial(store.apply, change(runs[1], Transition.FAIL, error="no", wake_after=100.0)),
        partial(store.apply, change(runs[2], Transition.COMPLETE, wake_after=100.0)),
        partial(store.steps, first),
    )
    ids = (*ids[:-1], f"{name}-follower")
    left = [(read(store, job_id), store.history(job_id), store.steps(job_id)) for job_id in ids]
    return [claimed, kept, ended, left]


def test_what_is_carried_together_has_the_same_answers(store: Store, clock: ManualClock) -> None:
    """Claims, reads, ends and refusals that go to the store together are answered as one by one, and leave the same."""
    clock.advance(0.0)
    gathering = Gathering()
    one_by_one = play(store, "alone", lambda *calls: [call() for call in calls])
    together = play(store, "along", gathering.gather)
    assert repr(together).replace("along", "alone") == repr(one_by_one)
    assert max(gathering.sizes) > 1


def test_a_claim_sees_another_of_the_same_moment(store: Store) -> None:
    """Of two claims of one job that go to the store together, one is granted; both ends are answered as one request."""
    submit(store)
    claims = [partial(claim, store, nonce=nonce) for nonce in ("one", "two")]
    granted = [each for each in Gathering().gather(*claims) if isinstance(each, Applied) and each.applied]
    (job,) = [accepted(each) for each in granted]
    same = change(job, Transition.COMPLETE, wake_after=100.0)
    answers = Gathering().gather(*[partial(store.apply, same)] * 2)
    assert [accepted(each).state for each in answers if isinstance(each, Applied)] == [State.COMPLETED] * 2
    assert events(store) == ["submit", "claim", "complete"]


def test_runs_of_an_event_loop_share_a_carrier(store: Store) -> None:
    """Runs in bridges of an event loop claim and complete their jobs, each once."""
    for job_id in IDS:
        submit(store, job_id)

    def run_one(job_id: str) -> None:
        job = carried(partial(start, store, job_id))
        carried(partial(end, store, job))

    async def run_in_bridge(carrier: LoopCarrier, job_id: str) -> None:
        set_carrier(carrier)
        await call_in_bridge(partial(run_one, job_id))

    async def run_all() -> None:
        carrier = LoopCarrier(asyncio.get_running_loop())
        await asyncio.gather(*map(partial(run_in_bridge, carrier), IDS))

    asyncio.run(run_all())
    assert [events(store, job_id) for job_id in IDS] == [["submit", "claim", "complete"]] * len(IDS)


# --- errors -----------------------------------------------------------------------------------------------------------


def test_a_refused_value_is_the_error_of_its_caller_only(store: Store) -> None:
    """Of claims and ends that go to the store together, one with a value that no store takes is refused alone."""
    for job_id in IDS:
        submit(store, job_id)
    gathering = Gathering()
    claimed = gathering.gather(partial(claim, store, "job-0", node=NO_TEXT), *claims_of(store, IDS[1:]))
    assert isinstance(claimed[0], StoreRefusedError)
    runs = [start(store, "job-0"), *(accepted(each) for each in claimed[1:] if isinstance(each, Applied))]
    ended = gathering.gather(*ends_of(store, runs[:-1]), *ends_of(store, runs[-1:], reason=NO_TEXT))
    assert isinstance(ended[-1], StoreRefusedError)
    assert len(IDS) in gathering.sizes
    assert [each.applied for each in ended[:-1] if isinstance(each, Applied)] == [True] * (len(IDS) - 1)
    assert [events(store, job_id) for job_id in IDS[:-1]] == [["submit", "claim", "complete"]] * (len(IDS) - 1)
    assert events(store, IDS[-1]) == ["submit", "claim"]


@contextmanager
def refusing(path: Path, how: str, moment: str) -> Iterator[None]:
    """Have a SQLite file refuse a write."""
    with closing(sqlite3.connect(path, isolation_level=None)) as user:
        user.execute(f"create trigger no_more {moment} begin select raise({how}, 'no more'); end")
        yield
        user.execute("drop trigger no_more")


@pytest.mark.parametrize("how", ["abort", "rollback"])
def test_a_failed_sqlite_operation_undoes_its_own_writes(tmp_path: Path, how: str) -> None:
    """If the last statement of an end fails, that end is undone and no other, even if it ends the transaction."""
    with closing(SQLiteStore(tmp_path / "ledger.db")) as store:
        runs = [run(store, job_id) for job_id in IDS]
        submit(store, "follower", identity=runs[3].identity, follows=True)
        with untouched(store, "job-3", "follower"), refusing(store.path, how, "before update of wake_at on jobs "
            "when new.follows_id is not null"):  # fmt: skip
            gathering = Gathering()
            answers = gathering.gather(*ends_of(store, runs))
        assert [isinstance(each, StoreError) for each in answers] == [job_id == "job-3" for job_id in IDS]
        assert {read(store, job_id).state for job_id in IDS if job_id != "job-3"} == {State.COMPLETED}
        assert accepted(store.apply(change(runs[3], Transition.COMPLETE, wake_after=1.0))).state is State.COMPLETED


def test_a_locked_sqlite_file_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations that go together to a file which another process has locked are refused together, and work later."""
    monkeypatch.setattr(transaction, "SHARED_LIMIT", 3)
    with closing(SQLiteStore(tmp_path / "ledger.db", busy_timeout=0.01)) as store:
        for job_id in IDS:
            submit(store, job_id)
        with closing(sqlite3.connect(store.path, isolation_level=None)) as user:
            user.execute("begin immediate")
            answers = Gathering().gather(*claims_of(store))
            assert len({id(each) for each in answers if isinstance(each, StoreBusyError)}) == 1
            user.execute("rollback")
        answers = Gathering().gather(*claims_of(store))
        assert [accepted(each).id for each in answers if isinstance(each, Applied)] == [*IDS]


# --- PostgreSQL -------------------------------------------------------------------------------------------------------


@pytest.fixture
def postgres(postgres_server: PostgresServer, postgres_schema: str) -> Iterator[PostgresStore]:
    """Return an empty store in PostgreSQL."""
    with closing(PostgresStore(postgres_server.url, schema=postgres_schema)) as store:
        for job_id in IDS:
            submit(store, job_id)
        yield store


def test_a_locked_row_delays_its_caller_only(postgres: PostgresStore, postgres_server: PostgresServer) -> None:
    """While a user has locked a job's row, the claims that went to the server with its claim are granted."""
    schema = postgres._sql.schema
    granted: list[str] = []

    def claim_one(job_id: str) -> None:
        granted.append(accepted(claim(postgres, job_id)).id)

    with psycopg.connect(postgres_server.url) as user:
        user.execute(f"select from {schema}.jobs where id = 'job-3' for update".encode())

        def unlock() -> None:
            eventually(lambda: len(granted) == len(IDS) - 1)
            user.rollback()

        claims = [partial(claim_one, job_id) for job_id in IDS]
        together(partial(Gathering().gather, *claims), unlock)
    assert granted[-1] == "job-3"
    assert sorted(granted) == sorted(IDS)


def test_a_lost_acknowledgement_repeats_nothing(postgres: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the connection is lost after the commit of several callers' operations, all are repeated without effect."""
    execute, lost = connection._execute, [1, 2]

    def lose(*given: Any) -> Any:
        found = execute(*given)
        if lost:
            lost.pop()
            given[0].close()
            raise psycopg.OperationalError("the connection is lost")
        return found

    monkeypatch.setattr(connection, "_execute", lose)
    runs = [accepted(each) for each in Gathering().gather(*claims_of(postgres)) if isinstance(each, Applied)]
    lost.append(3)
    ended = Gathering().gather(*ends_of(postgres, runs))
    assert not lost
    assert all(isinstance(each, Applied) and each.applied for each in ended)
    assert [events(postgres, job_id) for job_id in IDS] == [["submit", "claim", "complete"]] * len(IDS)


def test_a_pooled_session_is_shared_too(postgres: PostgresStore, postgres_server: PostgresServer) -> None:
    """With `?pooler=transaction`, whose settings precede each transaction, what goes together has its own answers."""
    url = f"{postgres_server.url}?pooler=transaction"
    with closing(PostgresStore(url, schema=postgres._sql.schema)) as pooled:
        gathering = Gathering()
        runs = [accepted(each) for each in gathering.gather(*claims_of(pooled)) if isinstance(each, Applied)]
        assert [job.id for job in runs] == [*IDS]
        assert [
            accepted(each).id for each in gathering.gather(*ends_of(pooled, runs)) if isinstance(each, Applied)
        ] == [*IDS]
        assert gathering.sizes == [len(IDS)] * 2


def test_a_killed_session_is_replaced(postgres: PostgresStore, postgres_server: PostgresServer) -> None:
    """Operations of several callers that find their session ended are run in another one."""
    with psycopg.connect(postgres_server.url, autocommit=True) as admin:
        admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'onejob'")
    gathering = Gathering()
    assert all(isinstance(each, Applied) and each.applied for each in gathering.gather(*claims_of(postgres)))
    assert gathering.sizes == [len(IDS)]


def test_a_server_that_is_away_is_asked_once_for_all(monkeypatch: pytest.MonkeyPatch, postgres: PostgresStore) -> None:
    """If no connection can be opened, one attempt of all callers fails, and each gets the error."""
    attempts: list[int] = []

    def refuse(*_: object) -> None:
        attempts.append(1)
        raise psycopg.OperationalError("connection refused")

    with monkeypatch.context() as patched:  # which other stores of this process use, too
        patched.setattr(connection, "RETRY_DELAYS", ())
        patched.setattr(connection.Pool, "_take", refuse)
        answers = Gathering().gather(*claims_of(postgres))
    assert all(isinstance(each, StoreUnavailableError) for each in answers)
    assert len(attempts) == 1


def test_a_claim_with_limits_shares_no_transaction(postgres: PostgresStore) -> None:
    """Claims of jobs with limits, which wait for the locks of their keys, run apart from others, and are granted."""
    postgres.put_limits([LimitValue(key="customer", running=1000, is_default=True)])
    keys = write_uses([KeyUse("customer=1")])
    for number in range(3):
        submit_one(postgres, submission(f"limited-{number}", limit_keys=keys))
    answers = Gathering().gather(*claims_of(postgres, (*IDS, "limited-0", "limited-1", "limited-2")))
    assert all(isinstance(each, Applied) and each.applied for each in answers)


def test_only_what_need_not_wait_for_the_disk_commits_without_it() -> None:
    """No end shares a transaction with a statement that turns the wait for the disk off, and none that limits waits."""
    for name in statements._SHARING:
        text = statements.SQL[name]
        assert "'lock_timeout'" not in text, name
        if name in statements._SYNCHRONIZED:
            assert "'synchronous_commit'" not in text, name
        else:
            writes = any(word in text for word in ("update ", "insert ", "delete "))
            assert writes == ("'synchronous_commit'" in text), name
