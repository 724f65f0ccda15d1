"""Errors: a store raises onejob's exceptions only, and works again when the cause is gone."""

import gc
import itertools
import pickle
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import redis

from onejob.errors import ConfigurationError, StoreError, StoreRefusedError, StoreUnavailableError, StoreUnusableError
from onejob.jobs.costs import Label
from onejob.jobs.handover import by_caller
from onejob.jobs.lifecycle import FINAL, State, Transition
from onejob.jobs.metric_buckets import Period
from onejob.jobs.model import JobRow
from onejob.jobs.query import Query
from onejob.stores import open_store
from onejob.stores.protocol import GroupBy, Store
from onejob.stores.redis import RedisStore
from onejob.stores.redis.rows import Keys
from onejob.stores.sqlite import SQLiteStore
from tests.cases import for_each
from tests.services import eventually, free_port, start_redis
from tests.stores.support import (
    LEASE,
    REPLACE,
    RUNNING,
    WAITING,
    StoreAddress,
    change,
    cost_write,
    duplicate,
    end,
    get,
    queue_next,
    read,
    run,
    start,
    submission,
    submit,
    submit_one,
    take_due,
    untouched,
)

OPERATIONS: dict[str, Callable[[Store, JobRow], object]] = {
    "submit": lambda store, job: submit_one(store, submission(), wake_after=LEASE),
    "submit_many": lambda store, job: store.submit_many(
        [submission("job-2"), submission("job-3")], handover_of=by_caller
    ),
    "follow": lambda store, job: store.follow(submission("job-4"), follows_id=job.id),
    "record": lambda store, job: store.record(duplicate(submission_nonce="nonce")),
    "duplicates": lambda store, job: store.duplicates(job.id),
    "duplicate_counts": lambda store, job: store.duplicate_counts(GroupBy.TASK, limit=1),
    "claim": lambda store, job: store.claim(job.id, nonce="n", node="n", sources=WAITING, target=State.RUNNING),
    "renew": lambda store, job: store.renew([(job.id, job.claim)], sources=RUNNING),
    "apply": lambda store, job: store.apply(change(job, Transition.COMPLETE)),
    "report": lambda store, job: store.report(job.id, job.token, "1", sources=RUNNING),
    "keep_step": lambda store, job: store.keep_step(job.id, job.token, "one", "1", sources=RUNNING),
    "add_cost": lambda store, job: store.add_cost(cost_write(job), sources=RUNNING),
    "add_saved": lambda store, job: store.add_saved(dict(cost_write(job).spent)),
    "cost_sums": lambda store, job: store.cost_sums(first=0, last=1, label=Label.TAG),
    "steps": lambda store, job: store.steps(job.id),
    "take_due": lambda store, job: take_due(store, limit=1, hold=1.0),
    "get": lambda store, job: get(store, job.id),
    "find": lambda store, job: store.find(Query()),
    "count_states": lambda store, job: store.count_states(limit=1),
    "edge": lambda store, job: store.edge(Query(), skip=1),
    "backlog": lambda store, job: store.backlog(tasks=frozenset({job.task}), limit=1),
    "followers": lambda store, job: store.followers(job.id, limit=1),
    "history": lambda store, job: store.history(job.id),
    "delete": lambda store, job: store.delete([job.id], sources=FINAL),
    "heartbeat": lambda store, job: store.heartbeat("n", lasts=60.0),
    "workers": lambda store, job: store.workers(),
    "increment": lambda store, job: store.increment({"a": 1.0}, recent={"a": 1.0}),
    "totals": lambda store, job: store.totals(),
    "series": lambda store, job: store.series(Period.MINUTE, since=0.0),
}
READS = frozenset(
    """duplicates duplicate_counts cost_sums steps get find count_states edge backlog followers history workers totals
    series""".split()
)
WRITES = tuple(name for name in OPERATIONS if name not in READS)


@pytest.fixture(scope="module")
def some_job(tmp_path_factory: pytest.TempPathFactory) -> JobRow:
    """Return a job of another store."""
    with closing(SQLiteStore(tmp_path_factory.mktemp("other") / "ledger.db")) as store:
        return run(store)


@pytest.fixture(params=["postgresql", "redis"])
def unreachable(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> StoreAddress:
    """Return the address of a store that does not exist. It is asked once, not for seconds."""
    monkeypatch.setattr("onejob.stores.postgres.connection.RETRY_DELAYS", ())
    monkeypatch.setattr("onejob.stores.redis.client.ATTEMPTS", 1)
    if request.param == "postgresql":
        return StoreAddress(f"postgresql://user:secret@127.0.0.1:{free_port()}/shop", "test")
    return StoreAddress(f"redis://user:secret@127.0.0.1:{free_port()}/0", "test")


@for_each("name", OPERATIONS)
def test_a_store_that_does_not_answer_is_unavailable(unreachable: StoreAddress, some_job: JobRow, name: str) -> None:
    """Each operation on a store out of reach raises an error that names it, without its password, and pickles."""
    with unreachable.opened() as store, pytest.raises(StoreUnavailableError) as caught:
        OPERATIONS[name](store, some_job)
    assert caught.value.__cause__ is not None
    there = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own bytes
    assert str(there) == str(caught.value)
    place = unreachable.url.rpartition("@")[2]
    assert place in str(there)
    assert "secret" not in str(there)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a SQLite file by another connection."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("begin immediate")
        yield
        connection.execute("rollback")


@pytest.mark.parametrize("name", WRITES)
def test_a_locked_sqlite_file_is_unavailable(tmp_path: Path, name: str) -> None:
    """A write that waits too long for another process's lock raises an error, changes nothing, and works afterwards."""
    with closing(SQLiteStore(tmp_path / "ledger.db", busy_timeout=0.01)) as store:
        job = run(store)
        with untouched(store), locked(store.path), pytest.raises(StoreUnavailableError, match="locked"):
            OPERATIONS[name](store, job)
        OPERATIONS[name](store, job)
        assert read(store).id == job.id


def test_a_sqlite_file_of_something_else_is_refused(tmp_path: Path) -> None:
    """A file that is no database raises a `StoreError`, and is not changed."""
    path = tmp_path / "ledger.db"
    path.write_bytes(b"a letter to my aunt, " * 100)
    with closing(SQLiteStore(path)) as store, pytest.raises(StoreError) as caught:
        get(store, "job-1")
    assert not isinstance(caught.value, StoreUnavailableError)
    assert path.read_bytes() == b"a letter to my aunt, " * 100


@pytest.mark.parametrize("last", ["a line of history", "the wake_at of a follower", "the promotion of the next"])
def test_a_failed_sqlite_operation_is_rolled_back(tmp_path: Path, last: str) -> None:
    """If a later statement of an operation fails, the earlier ones are rolled back, and the store continues to work."""
    with closing(SQLiteStore(tmp_path / "ledger.db")) as store:
        followed = run(store, identity="same")
        submit(store, "job-2", identity="same", follows=True)
        queue_next(store, "job-3")
        waiting = submit(store, "other", delay=50.0)
        with untouched(store, "job-1", "job-2", "job-3", "other"), refusing(store.path, last):
            with pytest.raises(StoreError, match="no more"):
                store.apply(change(followed, Transition.FAIL, wake_after=1.0))
            with pytest.raises(StoreError, match="no more"):
                submit(store, "job-4")
            with pytest.raises(StoreError, match="no more"):
                submit(store, "job-5", identity=waiting.identity, key="key-1", **REPLACE)
            with pytest.raises(StoreError, match="no more"):
                store.submit_many([submission("job-6"), submission("job-4")], handover_of=by_caller)
        assert [get(store, job_id) for job_id in ("job-4", "job-5", "job-6")] == [None] * 3
        assert submit(store, "job-7", key="key-1").id == "job-7"
        assert end(store, followed).state is State.COMPLETED


def test_an_interrupted_sqlite_operation_leaves_no_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is acknowledged after an operation that the exception of a signal has ended at its begin is committed."""
    with closing(SQLiteStore(tmp_path / "ledger.db")) as store, closing(SQLiteStore(store.path)) as other:
        submit(store)
        with monkeypatch.context() as patch:
            patch.setattr(store, "_clock", Mock(side_effect=KeyboardInterrupt))  # which is read after the begin
            with pytest.raises(KeyboardInterrupt):
                store.record(duplicate(submission_nonce="nonce"))
        submit(store, "job-2")
        assert read(other, "job-2").state is State.QUEUED


def test_an_interrupted_sqlite_operation_leaves_no_lock(tmp_path: Path) -> None:
    """Wherever the exception of a signal ends a SQLite operation, the store is free for other threads and processes."""
    store = SQLiteStore(tmp_path / "ledger.db")
    submit(store)
    with closing(SQLiteStore(store.path)) as other:
        for moment in itertools.count():
            sys.setprofile(partial(_interrupt, itertools.count(-moment)))
            try:
                store.record(duplicate(submission_nonce=f"nonce-{moment}"))
            except KeyboardInterrupt:
                assert not store._connection.lock.locked()
                submit(other, f"job-of-{moment}")
            else:
                break
            finally:
                sys.setprofile(None)
    assert moment > 20
    store.close()


def _interrupt(numbers: Iterator[int], _frame: object, event: str, _argument: object) -> None:
    """Raise the exception of a signal at one of the moments at which Python calls handlers, as a profiler sees them."""
    if event in {"call", "c_return"} and next(numbers) == 0:
        raise KeyboardInterrupt


def test_who_has_locked_a_sqlite_file_can_read_the_ledger(tmp_path: Path) -> None:
    """A user with an open transaction reads the ledger while another thread waits for the end of the transaction."""
    with closing(SQLiteStore(tmp_path / "ledger.db", busy_timeout=60.0)) as store, ThreadPoolExecutor() as threads:
        submit(store)
        with closing(sqlite3.connect(store.path, isolation_level=None)) as user:
            user.execute("begin immediate")
            waiting = threads.submit(submit, store, "job-2")
            for _ in range(20):
                assert not wait([waiting], 0.01).done
                assert read(store).state is State.QUEUED
            user.execute("commit")
            assert waiting.result().id == "job-2"


LAST_STATEMENTS = {
    "a line of history": "before insert on history",
    "the wake_at of a follower": "before update of wake_at on jobs when new.follows_id is not null",
    "the promotion of the next": "before insert on history when new.event = 'promote'",
}
"""What an end can write last, and the moment before that."""


@contextmanager
def refusing(path: Path, last: str) -> Iterator[None]:
    """Have a SQLite file refuse the last statement of an end, all statistics, and the row of job-4."""
    refusals = {
        "no_more": LAST_STATEMENTS[last],
        "no_statistics": "before insert on duplicate_counts",
        "no_fourth": "after insert on jobs when new.id = 'job-4'",
    }
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for name, timestamp in refusals.items():
            connection.execute(f"create trigger {name} {timestamp} begin select raise(abort, 'no more'); end")
        yield
        for name in refusals:
            connection.execute(f"drop trigger {name}")


def test_a_store_works_again_after_a_restart_of_redis(tmp_path: Path) -> None:
    """A store whose server has died raises errors, and works again with the server, without being opened anew."""
    durable = start_redis(tmp_path, "--appendonly", "yes", "--appendfsync", "always")
    with durable as server, closing(RedisStore.from_url(server.url)) as store:
        job = run(store)
        server.kill()
        for name in ("get", "apply", "submit"):
            with pytest.raises(StoreUnavailableError):
                OPERATIONS[name](store, job)
        server.restart()
        assert read(store) == job
        assert end(store, job).state is State.COMPLETED


@pytest.mark.parametrize("name", WRITES)
def test_scripts_that_redis_has_lost_are_loaded_again(redis_url: str, redis_prefix: str, name: str) -> None:
    """If the server has lost its script cache, an operation makes one more call and raises no error."""
    with (
        closing(RedisStore.from_url(redis_url, prefix=redis_prefix)) as store,
        redis.Redis.from_url(redis_url) as client,
    ):
        job = run(store)
        OPERATIONS[name](store, job)
        client.script_flush()
        OPERATIONS[name](store, job)
        assert read(store).id == job.id


def test_a_part_of_a_batch_whose_script_redis_has_is_not_repeated(redis_url: str, redis_prefix: str) -> None:
    """A batch that needs a script which the server has, and one which it has lost, is answered as at any other time."""
    with (
        closing(RedisStore.from_url(redis_url, prefix=redis_prefix)) as store,
        redis.Redis.from_url(redis_url) as client,
    ):
        for identity in ("one", "two"):
            submit(store, identity, identity=identity)
            submit(store, f"{identity}-again", identity=identity)  # from now on the store knows the holder
        client.script_flush()
        submit(store, "follower", identity="one", follows=True)  # loads the script of the second submission below
        plain = submission("plain", identity="two")
        urgent = submission("urgent", identity="one", follows=True, priority_rank=2)
        answers = store.submit_many([plain, urgent], handover_of=by_caller)
        assert [answer.rescheduled for answer in answers] == [False, True]


@pytest.mark.parametrize("refusal", ["--maxmemory 1 --maxmemory-policy noeviction", "--requirepass other"])
def test_a_redis_that_refuses_is_no_outage(tmp_path: Path, refusal: str) -> None:
    """A server without memory, or that refuses the connection, is the operator's: not of the value, and no outage."""
    with start_redis(tmp_path, *refusal.split()) as server:
        with closing(RedisStore.from_url(server.url)) as store, pytest.raises(StoreUnusableError):
            submit(store)
        with redis.Redis.from_url(server.url, password="other" if "requirepass" in refusal else None) as client:
            assert client.dbsize() == 0


@for_each("place, words", [
    ("host/shop", "database numbers"), ("host/1/2", "database numbers"), (":6379/s3cret@host/0", "percent-encoded"),
    ("host?socket_timeout=-1", "socket_timeout"), ("host?socket_connect_timeout=0", "socket_connect_timeout"),
])  # fmt: skip
def test_a_redis_url_means_what_it_says(place: str, words: str) -> None:
    """A database that is no number, and a timeout that is no time, are refused when the store is opened."""
    with pytest.raises(ConfigurationError, match=words) as caught:
        open_store(f"redis://{place}")
    assert "s3cret" not in str(caught.value)


def test_a_missing_right_is_no_refused_value(tmp_path: Path) -> None:
    """A write that a user has no right to is repeated when the user has it: it is no `StoreRefusedError`."""
    with start_redis(tmp_path) as server, redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "shop", "on", ">pw", "~*", "+@all", "-hsetnx")
        with closing(RedisStore.from_url(server.url.replace("//", "//shop:pw@"))) as store:
            job = run(store)
            keep = partial(store.keep_step, job.id, job.token, "step", "1", sources=RUNNING)
            with pytest.raises(StoreUnusableError, match="lacks a right"):
                keep()
            client.execute_command("ACL", "SETUSER", "shop", "+hsetnx")
            assert keep() == "1"


def test_a_node_without_the_ledger_names_the_one_that_has_it(tmp_path: Path) -> None:
    """In a cluster, a node that does not have the slot of the ledger is an error that names the node that has it."""
    servers = [start_redis(tmp_path, "--cluster-enabled", "yes") for _ in range(2)]
    with servers[0] as other, servers[1] as owner, redis.Redis.from_url(owner.url) as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        client.execute_command("CLUSTER", "MEET", "127.0.0.1", str(other.port))
        with redis.Redis.from_url(other.url) as node:
            eventually(lambda: b"cluster_state:ok" in node.execute_command("CLUSTER", "INFO"))
        words = f"node of a cluster.* 127.0.0.1:{owner.port}"
        with closing(RedisStore.from_url(other.url)) as store, pytest.raises(StoreError, match=words):
            submit(store)


def test_a_value_that_a_store_can_never_hold_is_refused(store: Store, store_address: StoreAddress) -> None:
    """A write that fails for its keys or values, whatever the state of the server, is a `StoreRefusedError`."""
    job = run(store)
    if store_address.kind == "redis":
        with redis.Redis.from_url(store_address.url) as client:
            client.set(Keys(store_address.namespace).steps(job.id), "no hash")
    elif store_address.kind == "sqlite":
        with closing(sqlite3.connect(store_address.url.removeprefix("sqlite:///"))) as connection:
            connection.execute("create trigger no before insert on steps begin select raise(abort, 'no'); end")
    with pytest.raises(StoreRefusedError):
        store.keep_step(job.id, job.token, "step", "no text for PostgreSQL: \0", sources=RUNNING)


def test_a_text_that_is_no_unicode_is_refused(store: Store) -> None:
    """A text with a lone surrogate, as that of an option which is not UTF-8, is refused; the store works afterwards."""
    for operation in (partial(submit, identity="one", nonce="one"), get):
        with pytest.raises(StoreRefusedError, match="surrogates"):
            operation(store, "job-\udcff")
    assert submit(store).id == "job-1"


# --- closing --------------------------------------------------------------------------------------------------------


def test_a_dropped_store_closes_its_connection(tmp_path: Path) -> None:
    """A SQLite store that nobody refers to any more has closed its connection, also after it was part of a cycle."""
    store = SQLiteStore(tmp_path / "ledger.db")
    vars(store)["cycle"] = store
    connection = store._connection.open_locked()
    del store
    gc.collect()
    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        connection.execute("select 1")


def test_a_store_can_be_closed_while_others_use_it(store: Store) -> None:
    """A thread that closes the store does not interrupt other threads' operations."""
    done = threading.Event()

    def use(name: str) -> None:
        for number in range(8):
            submit(store, f"{name}-{number}")
            end(store, start(store, f"{name}-{number}"))

    def close() -> None:
        while not done.is_set():
            store.close()

    with ThreadPoolExecutor() as pool:
        pool.submit(close)
        try:
            assert [*pool.map(use, "abc", timeout=30)] == [None] * 3
        finally:
            done.set()
    assert len(store.find(Query(states=frozenset({State.COMPLETED}), limit=1000))) == 24
