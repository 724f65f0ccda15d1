"""Each error of SQLite has a verdict: what a store, and a user's transaction, make of it."""

import os
import pickle
import pwd
import resource
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from onejob.errors import (
    StoreBusyError,
    StoreError,
    StoreRefusedError,
    StoreUnavailableError,
    StoreUnusableError,
)
from onejob.jobs.lifecycle import State
from onejob.stores.migrate import upgrade
from onejob.stores.sqlite import SQLiteStore
from onejob.stores.sqlite.errors import RULES, rule_of
from onejob.transactions.sessions import transaction_of
from tests.cases import for_each
from tests.stores.support import get, read, submit


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    """Return an empty store in a file, which waits for no lock."""
    with closing(SQLiteStore(tmp_path / "ledger.db", busy_timeout=0.0)) as store:
        yield store


@contextmanager
def _locked(store: SQLiteStore) -> Iterator[None]:
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("begin immediate")
        yield


@contextmanager
def _full(store: SQLiteStore) -> Iterator[None]:
    connection = store._connection.open_locked()
    (pages,) = connection.execute("pragma page_count").fetchone()
    connection.execute(f"pragma max_page_count = {pages}")
    yield
    connection.execute("pragma max_page_count = 1000000")


@contextmanager
def _interrupted(store: SQLiteStore) -> Iterator[None]:
    connection = store._connection.open_locked()
    connection.set_progress_handler(lambda: 1, 1)
    yield
    connection.set_progress_handler(None, 1)


@contextmanager
def _unauthorized(store: SQLiteStore) -> Iterator[None]:
    connection = store._connection.open_locked()
    connection.set_authorizer(lambda *_: sqlite3.SQLITE_DENY)
    yield
    connection.set_authorizer(None)


@contextmanager
def _read_only(store: SQLiteStore) -> Iterator[None]:
    connection = store._connection.open_locked()
    connection.execute("pragma query_only = on")
    yield
    connection.execute("pragma query_only = off")


@contextmanager
def _limited(store: SQLiteStore) -> Iterator[None]:
    connection = store._connection.open_locked()
    before = connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10_000)
    yield
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, before)


@contextmanager
def _unwritable(_: SQLiteStore) -> Iterator[None]:
    """Have the system refuse to write beyond the first bytes of a file, as a quota does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def _without_a_table(store: SQLiteStore) -> Iterator[None]:
    with closing(sqlite3.connect(store.path)) as other:
        other.execute("alter table jobs rename to other")
    yield
    with closing(sqlite3.connect(store.path)) as other:
        other.execute("alter table other rename to jobs")


CAUSES: dict[str, tuple[Callable[[SQLiteStore], Any], type[StoreError], str]] = {
    "SQLITE_BUSY": (_locked, StoreBusyError, "is locked by another transaction"),
    "SQLITE_FULL": (_full, StoreUnusableError, "Free space on the disk"),
    "SQLITE_INTERRUPT": (_interrupted, StoreBusyError, "was interrupted"),
    "SQLITE_AUTH": (_unauthorized, StoreError, "refused"),
    "SQLITE_READONLY": (_read_only, StoreUnusableError, "right to write"),
    "SQLITE_TOOBIG": (_limited, StoreRefusedError, "too big"),
    "SQLITE_IOERR": (_unwritable, StoreUnavailableError, "disk I/O error"),
    "no such": (_without_a_table, StoreUnusableError, "migrate status"),
}
"""By row of the table: what brings the error about, the exception, and words of its message."""


@for_each("name", CAUSES)
def test_each_error_has_its_verdict(store: SQLiteStore, name: str) -> None:
    """An error of SQLite is the exception of its verdict, says what to do, and the store works afterwards."""
    cause, expected, words = CAUSES[name]
    submit(store, f"before {name}")
    with cause(store), pytest.raises(StoreError, match=words) as caught:
        submit(store, f"refused {name}", payload="x" * 100_000)
    assert type(caught.value) is expected
    assert str(store.path) in str(pickle.loads(pickle.dumps(caught.value)))  # noqa: S301 - our own bytes
    assert submit(store, f"after {name}").state is State.QUEUED


def _damage(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(100)  # behind the header of the file, in its schema
        file.write(b"\xff" * 3000)


def _overwrite(path: Path) -> None:
    path.write_bytes(b"a letter to my aunt, " * 100)


@for_each("damage, words", [(_damage, "is damaged.*backup"), (_overwrite, "is no SQLite database.*another file")])
def test_a_damaged_file_is_the_operators(tmp_path: Path, damage: Callable[[Path], None], words: str) -> None:
    """A file that is damaged, or that is no database, is no outage, and the error says what to do."""
    path = tmp_path / f"{damage.__name__}.db"
    with closing(SQLiteStore(path)) as store:
        submit(store)
    damage(path)
    with closing(SQLiteStore(path)) as store, pytest.raises(StoreUnusableError, match=words):
        read(store)


def test_a_database_in_memory_that_another_connection_uses_is_busy(tmp_path: Path) -> None:
    """A database in memory with an open transaction of another connection is busy, and the error says what to do."""
    name = f"file:{tmp_path.name}?mode=memory&cache=shared"
    with closing(SQLiteStore(name)) as store, closing(sqlite3.connect(name, uri=True)) as other:
        submit(store)
        other.execute("update jobs set payload = ''")
        with pytest.raises(StoreBusyError, match=r"table is locked.*onejob\.testing\.JobsMixin"):
            read(store)
        other.rollback()
        assert read(store).state is State.QUEUED


def test_a_transaction_that_has_read_an_older_state_is_to_be_repeated(store: SQLiteStore) -> None:
    """A user's transaction that read before another one wrote cannot write: the driver's error says what to do."""
    submit(store)
    with closing(sqlite3.connect(store.path, isolation_level=None)) as user:
        user.execute("begin")
        user.execute("select * from jobs").fetchall()
        submit(store, "job-2")
        with pytest.raises(sqlite3.OperationalError, match="locked") as caught:
            store.in_transaction(transaction_of(user))
        assert rule_of(caught.value) is RULES["SQLITE_BUSY_SNAPSHOT"]
        assert "write before it reads. Roll back, and repeat the transaction" in "".join(caught.value.__notes__)
        user.rollback()
        user.execute("begin")
        submit(store.in_transaction(transaction_of(user)), "job-3")
        user.execute("commit")
    assert read(store, "job-3").state is State.QUEUED


# --- rights -----------------------------------------------------------------------------------------------------------

USE = """
import os, sys
from onejob.errors import StoreError
from onejob.stores.sqlite import SQLiteStore
from tests.stores.support import submit

def use(path):
    try:
        submit(SQLiteStore(path), "of-another-user")
    except StoreError as error:
        return f"{type(error).__name__} {error}"
    return ""

use("file:ledger?mode=memory"), use("/nowhere/ledger.db")  # now all modules are loaded, which that user may not read
os.setgroups([])
os.setuid(int(sys.argv[2]))
print(use(sys.argv[1]), end="")
"""
NOBODY = pwd.getpwnam("nobody")


def _use_as_nobody(path: Path) -> str:
    """Submit a job as a user without rights; return the error."""
    command = [sys.executable, "-c", USE, str(path), str(NOBODY.pw_uid)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    return ended.stdout + ended.stderr


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder with a ledger, which every user may enter, unlike those below the directory of the tests."""
    with tempfile.TemporaryDirectory(prefix="onejob-rights-", dir="/tmp") as name:
        upgrade(f"sqlite:///{name}/ledger.db")
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(
    ("file", "folder_mode", "words"),
    [
        (0o600, 0o777, "cannot be opened"),
        (0o444, 0o777, "cannot be written"),
        (0o666, 0o755, "cannot be written"),
        (0o666, 0o700, "cannot be examined (Permission denied)"),
    ],
)
def test_rights_that_are_missing_are_the_operators(folder: Path, file: int, folder_mode: int, words: str) -> None:
    """Without the right to write a file, or its folder, the error names the user, and owner and mode of both."""
    path = folder / "ledger.db"
    path.chmod(file)
    folder.chmod(folder_mode)
    said = _use_as_nobody(path)
    assert said.startswith("StoreUnusableError")
    assert words in said
    assert "runs as nobody" in said
    owner = pwd.getpwuid(os.geteuid()).pw_name
    for each in (folder, path) if folder_mode & 1 else (folder,):
        (mode,) = [line for line in said.split("; ") if line.startswith(f"{each} is ")]
        assert mode.strip().endswith(f" of {owner}")
    folder.chmod(0o777)
    path.chmod(0o666)
    assert _use_as_nobody(path) == ""


def test_a_folder_that_does_not_exist_is_the_operators(tmp_path: Path) -> None:
    """A file in a folder that does not exist is no outage, and the error names the folder."""
    path = tmp_path / "missing" / "ledger.db"
    with closing(SQLiteStore(path)) as store:
        with pytest.raises(StoreUnusableError, match=f"{path.parent} does not exist"):
            get(store, "job-1")
        path.parent.mkdir()
        assert submit(store).state is State.QUEUED


def test_a_migration_of_a_file_without_rights_is_the_operators(tmp_path: Path) -> None:
    """A migration tells as much about missing rights as an operation does."""
    with pytest.raises(StoreUnusableError, match=r"cannot be opened.*runs as"):
        upgrade(f"sqlite:///{tmp_path / 'missing' / 'ledger.db'}")


CODES = """ERROR INTERNAL PERM ABORT BUSY LOCKED NOMEM READONLY INTERRUPT IOERR CORRUPT NOTFOUND FULL CANTOPEN PROTOCOL
SCHEMA TOOBIG CONSTRAINT MISMATCH MISUSE NOLFS AUTH FORMAT RANGE NOTADB""".split()
"""The primary result codes of SQLite that are errors, but for EMPTY, which it does not use."""


@for_each("code", CODES)
def test_every_result_code_has_a_verdict(code: str) -> None:
    """Each primary result code of SQLite, and an extended one without a row, has the verdict of the row of its name."""
    error = sqlite3.OperationalError()
    for number in (value := getattr(sqlite3, f"SQLITE_{code}"), value | 99 << 8):
        error.sqlite_errorcode = number
        assert rule_of(error) is RULES[f"SQLITE_{code}"]
