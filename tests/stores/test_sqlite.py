"""What SQLite costs, and how its file is opened: a submission, a claim and a completion are one statement each."""

import multiprocessing
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from onejob.errors import ConfigurationError, StoreUnavailableError
from onejob.jobs.history import COMPLETED
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.metric_buckets import Period
from onejob.jobs.model import Cancel, Outcome
from onejob.jobs.query import Query
from onejob.stores import open_store
from onejob.stores.migrate import upgrade
from onejob.stores.sqlite import SQLiteStore, connection
from tests.conftest import on_stores
from tests.stores.races import together
from tests.stores.support import admission, apply, change, claim, not_none, read, run, start, submit

fresh_address = on_stores("sqlite")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    store = SQLiteStore(tmp_path / "ledger.db")
    submit(store, "job-0")
    yield store
    store.close()


def executed(store: SQLiteStore, operation: Callable[[], object]) -> list[str]:
    """Return the first words of the statements that an operation executes."""
    statements: list[str] = []
    connection = not_none(store._connection.connection)
    connection.set_trace_callback(statements.append)
    operation()
    connection.set_trace_callback(None)
    return [" ".join(statement.split()[:3]) for statement in statements]


def stored_entries(store: SQLiteStore) -> list[tuple[str, int]]:
    """Return event and attempt of the stored entries of all histories."""
    connection = not_none(store._connection.connection)
    return connection.execute("select event, attempt from history order by job_id, seq").fetchall()


def test_a_run_is_three_statements(store: SQLiteStore) -> None:
    """A submission, claim, completion, count and deletion are a statement each: none holds the lock longer."""
    assert executed(store, lambda: submit(store, "job-1", identity="one")) == ["insert into jobs"]
    assert executed(store, lambda: claim(store, "job-1")) == ["update jobs set"]
    done = change(read(store, "job-1"), Transition.COMPLETE, result="1", detail=COMPLETED)
    assert executed(store, lambda: store.apply(done)) == ["update jobs set"]
    assert read(store, "job-1").state is State.COMPLETED
    store.increment({"a": 1.0})
    counted = executed(store, lambda: store.increment({"a": 2.0}, recent={"a": 2.0}))
    assert counted == ["insert into metric_buckets", *["delete from metric_buckets"] * len(Period)]
    assert store.totals() == {"a": 3.0}


def test_a_run_stores_no_history(store: SQLiteStore) -> None:
    """The history stores nothing of a job that ran once, and of one that ran again what its row no longer tells."""
    job = run(store, "job-1", identity="one")
    apply(store, job, Transition.COMPLETE, detail=COMPLETED)
    assert stored_entries(store) == []
    job = run(store, "job-2", identity="two")
    apply(store, job, Transition.RETRY)
    apply(store, start(store, "job-2"), Transition.COMPLETE, detail=COMPLETED)
    assert stored_entries(store) == [("retry", 1), ("claim", 1)]
    assert [entry.event for entry in store.history("job-2")] == ["submit", "claim", "retry", "claim", "complete"]


def test_a_burst_of_duplicates_attempts_no_insertion(store: SQLiteStore) -> None:
    """After a duplicate, a process expects more of that identity; after its next job, a new one."""
    job = run(store, "job-1", identity="same")
    assert executed(store, lambda: admission(store, "job-2", identity="same"))[0] == "insert into jobs"
    assert "insert into jobs" not in executed(store, lambda: admission(store, "job-3", identity="same"))
    assert read(store, "job-1").duplicate_count == 2
    apply(store, job, Transition.COMPLETE, detail=COMPLETED)
    assert admission(store, "job-4", identity="same").outcome is Outcome.ADMITTED
    assert executed(store, lambda: admission(store, "job-5", identity="same"))[0] == "insert into jobs"


OPENERS = 8


def test_many_open_a_new_file_at_once(tmp_path: Path) -> None:
    """Opening a ledger file never fails because another thread is creating or closing it."""
    for number in range(30):

        def use(path: Path = tmp_path / f"ledger{number}.db") -> list[object]:
            store = SQLiteStore(path)
            found: list[object] = []
            for _round in range(5):
                found += store.find(Query())
                store.close()
            return found

        assert together(*[use] * OPENERS) == [[]] * OPENERS


@pytest.mark.parametrize("name", ["ledger.db", "file:ledger"])
def test_a_new_file_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Only its owner can read a file that onejob creates, and what belongs to it, also if its name is like a URI."""
    monkeypatch.chdir(tmp_path)
    before = os.umask(0)
    try:
        upgrade(f"sqlite:///{name}")
        store = open_store(f"sqlite:///{name}")
        store.increment({"a": 1.0})
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
        store.close()
    finally:
        os.umask(before)
    assert modes == dict.fromkeys((name, f"{name}-wal", f"{name}-shm"), 0o600)


def test_a_file_stays_the_same_in_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store at a relative path goes on with its file after the process has changed its directory."""
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///ledger.db")
    submit(store, "job-1")
    monkeypatch.chdir(tmp_path / "other")
    store.close()
    assert read(store, "job-1").id == "job-1"
    store.close()
    assert not [*Path().iterdir()]


def test_a_fork_that_a_signal_interrupts_keeps_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a fork has locked before an exception of a signal handler is released after it, and nothing else."""
    paths = [tmp_path / "one.db", tmp_path / "two.db"]
    with closing(SQLiteStore(paths[0])) as first, closing(SQLiteStore(paths[1])) as second:
        with monkeypatch.context() as patch:
            patch.setattr(connection.ForkSafeConnection, "close_locked", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                connection._fork_handler.before()
        connection._fork_handler.after_in_parent()
        assert {first.get_many(["job"]).get("job"), second.get_many(["job"]).get("job")} == {None}
        connection._fork_handler.before()
        connection._fork_handler.after_in_parent()


@pytest.mark.parametrize("rest", ["", "/", "/:memory:", "host/jobs.db", "/jobs#1.db", "/jobs.db?mode=ro"])
def test_a_url_that_is_more_than_a_file_is_refused(rest: str) -> None:
    """A URL whose rest would be ignored is refused: jobs#1.db and jobs#2.db are no names of one file, jobs."""
    with pytest.raises(ConfigurationError, match="names no file"):
        open_store(f"sqlite://{rest}")


def test_the_mode_of_an_existing_file_stays(tmp_path: Path) -> None:
    """An existing ledger file keeps its mode, and its write-ahead log gets the same one."""
    path = tmp_path / "ledger.db"
    path.touch()
    path.chmod(0o660)
    store = SQLiteStore(path)
    store.increment({"a": 1.0})
    assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o660}
    store.close()


def test_values_of_a_row_have_the_types_of_a_job(store: SQLiteStore) -> None:
    """Truth values, of which SQLite has none, states and cancellations are those of a job of any other store."""
    job = read(store, "job-0")
    assert job.holds_identity
    assert not job.queued_next
    assert not job.canvas_pending
    kinds = {type(each) for each in (job.holds_identity, job.queued_next, job.canvas_pending)}
    assert (kinds, type(job.state), type(job.cancel)) == ({bool}, State, Cancel)


# --- a file that is deleted or replaced -------------------------------------------------------------------------------


def back_up(path: Path, name: str) -> Path:
    """Return a copy of a ledger, made as docs/operations/backup.md says."""
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(path.parent / name)) as copy:
        source.backup(copy)
    return path.parent / name


def delete(path: Path) -> None:
    """Delete a ledger under those who use it."""
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()


def test_a_deleted_file_gets_no_job(store: SQLiteStore) -> None:
    """After a file was deleted no operation succeeds in any thread or child, none makes a new file, and all say why."""
    backup = back_up(store.path, "backup.db")
    delete(store.path)
    for use in (lambda: submit(store, "job-1"), lambda: read(store, "job-0"), lambda: store.increment({"a": 1.0})):
        for run_it in (lambda use=use: use(), lambda use=use: together(use), lambda use=use: in_child(use)):
            with pytest.raises(StoreUnavailableError, match=f"{store.path} was deleted or moved .* restore a backup"):
                run_it()
    assert not store.path.exists()
    backup.replace(store.path)
    assert submit(store, "job-1", identity="one").id == "job-1"
    assert read(store, "job-0").id == "job-0"


def in_child(operation: Callable[[], object]) -> None:
    """Run an operation in a forked child. Raises what it raises."""
    context = multiprocessing.get_context("fork")
    ends: Any = context.SimpleQueue()

    def report() -> None:
        try:
            operation()
        except BaseException as error:  # noqa: BLE001 - it is raised in the parent
            ends.put(error)
        else:
            ends.put(None)

    child = context.Process(target=report)
    child.start()
    error = ends.get()
    child.join()
    if error is not None:
        raise error


def test_a_replaced_file_is_used_from_the_next_operation_on(store: SQLiteStore) -> None:
    """After a backup was restored as another file, all who had the former one open read and write the restored one."""
    other = SQLiteStore(store.path)
    backup = back_up(store.path, "backup.db")
    submit(other, "job-1", identity="lost")
    delete(store.path)
    backup.replace(store.path)
    submit(store, "job-2", identity="new")
    for each in (other, store, SQLiteStore(store.path)):
        assert set(each.get_many(["job-0", "job-1", "job-2"])) == {"job-0", "job-2"}
        each.close()
    with closing(sqlite3.connect(store.path)) as plain:
        assert plain.execute("pragma integrity_check").fetchone() == ("ok",)


def test_a_new_file_beside_an_old_log_is_refused(store: SQLiteStore) -> None:
    """A file that was replaced beside the write-ahead log of the former one is refused until the log is gone."""
    backup = back_up(store.path, "backup.db")
    submit(store, "job-1", identity="lost")
    backup.replace(store.path)
    with pytest.raises(StoreUnavailableError, match=f"delete it and {store.path}-shm, and restore the backup again"):
        submit(store, "job-2", identity="new")
    for end in ("-wal", "-shm"):
        Path(f"{store.path}{end}").unlink()
    assert set(store.get_many(["job-0", "job-1"])) == {"job-0"}


def test_a_file_that_was_moved_back_is_used_again(store: SQLiteStore) -> None:
    """A file that is moved away and back is the same ledger, with what was written last."""
    submit(store, "job-1", identity="one")
    away = store.path.with_name("away.db")
    store.path.rename(away)
    with pytest.raises(StoreUnavailableError, match="put it back"):
        read(store, "job-1")
    away.rename(store.path)
    assert read(store, "job-1").id == "job-1"


def test_a_replaced_file_is_a_signal(store: SQLiteStore) -> None:
    """Who waits for a change of a file looks again when it is replaced by one of the same size and time."""
    backup = back_up(store.path, "backup.db")
    store.close()
    times = (store.path.stat().st_mtime_ns,) * 2
    backup.write_bytes(store.path.read_bytes())
    os.utime(backup, ns=times)
    before = connection._stat(store.path)
    backup.replace(store.path)
    after = connection._stat(store.path)
    assert (before or ())[:2] == (after or ())[:2]
    assert before != after


SEARCHES: list[tuple[str, Callable[[SQLiteStore], object]]] = [
    ("find", lambda store: store.find(Query(arguments="none"))),
    ("counts", lambda store: store.counts(Query(reason="none"))),
    ("newest", lambda store: store.counts(Query(tag="none"), limit=5)),
]


@pytest.mark.parametrize("search", [search for _, search in SEARCHES], ids=[name for name, _ in SEARCHES])
def test_a_search_keeps_nobody_waiting(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, search: Callable[[SQLiteStore], object]
) -> None:
    """In the middle of a search, jobs are submitted, claimed, read, listed and ended before the search goes on."""
    begun, go, connect = threading.Event(), threading.Event(), connection.connect

    def instr(text: str, part: str) -> int:
        if threading.current_thread().name.startswith("search"):
            begun.set()
            assert go.wait(20)
        return (text or "").find(part) + 1

    def connect_slowly(*args: Any, **options: Any) -> Any:
        opened = connect(*args, **options)
        opened.create_function("instr", 2, instr)
        return opened

    monkeypatch.setattr(connection, "connect", connect_slowly)
    store.close()
    submit(store, "job-0")
    with ThreadPoolExecutor(1, "search") as searching, ThreadPoolExecutor(1) as others:
        searched = searching.submit(search, store)
        assert begun.wait(20)
        try:
            assert others.submit(lambda: [run(store, "job-1").id, *(job.id for job in store.find(Query()))]).result(20)
            assert not searched.done()
        finally:
            go.set()
        assert searched.result(20) in ([], {})
