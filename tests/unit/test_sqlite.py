"""What SQLite costs, and how its file is opened: a submission, a claim and a completion are one statement each."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest

from onejob.errors import ConfigurationError
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Cancel, Outcome
from onejob.jobs.records import COMPLETED, Period, Query
from onejob.stores import open_store
from onejob.stores.migrate import upgrade
from onejob.stores.sqlite import SQLiteStore, connection
from tests.contract.races import together
from tests.contract.support import admission, apply, change, claim, not_none, read, run, start, submit


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
    assert (job.holds_identity, job.queued_next, job.canvas_pending) == (True, False, False)
    kinds = {type(each) for each in (job.holds_identity, job.queued_next, job.canvas_pending)}
    assert (kinds, type(job.state), type(job.cancel)) == ({bool}, State, Cancel)
