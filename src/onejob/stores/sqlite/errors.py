"""The errors of SQLite, with the meaning of each, by result code.

The codes are those of https://www.sqlite.org/rescode.html. An extended code without a rule has the rule of its
primary code. Errors that Python's module raises by itself have no code: their class names them.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from onejob.errors import StoreError
from onejob.stores.sqlite.files import rights_of
from onejob.stores.verdicts import OURS, VALUE, Rule, Verdict, store_error

_RIGHTS = "The process needs the right to write the file and its -wal and -shm, and to create files in the folder"
_DAMAGED = "Restore a backup"

RULES: dict[str, Rule] = {
    "SQLITE_ERROR": OURS,
    "SQLITE_INTERNAL": OURS,
    "SQLITE_PERM": Rule(Verdict.OPERATOR, "may not be opened so", _RIGHTS),
    "SQLITE_ABORT": Rule(Verdict.BUSY, "has rolled back the transaction"),
    "SQLITE_BUSY": Rule(Verdict.BUSY, "is locked by another transaction", repeats=True),
    "SQLITE_BUSY_SNAPSHOT": Rule(
        Verdict.BUSY, "was written by another transaction after this one had begun to read",
        "Have a transaction write before it reads", repeats=True,
    ),
    "SQLITE_LOCKED": Rule(
        Verdict.BUSY, "is locked by another connection of this process",
        "It has an open transaction on this database in memory: pass it as session=, or isolate the test with "
        "onejob.testing.JobsMixin",
    ),
    "SQLITE_NOMEM": Rule(Verdict.OUTAGE, "could not be used, since the process is out of memory"),
    "SQLITE_READONLY": Rule(Verdict.OPERATOR, "cannot be written", _RIGHTS),
    "SQLITE_INTERRUPT": Rule(Verdict.BUSY, "was interrupted"),
    "SQLITE_IOERR": Rule(Verdict.OUTAGE, "could not be read or written", "Look at the disk, and at the system's log"),
    "SQLITE_CORRUPT": Rule(Verdict.OPERATOR, "is damaged", _DAMAGED),
    "SQLITE_NOTFOUND": OURS,
    "SQLITE_FULL": Rule(
        Verdict.OPERATOR, "has no more space", "Free space on the disk, raise its quota, or shorten onejob_retention"
    ),
    "SQLITE_CANTOPEN": Rule(Verdict.OPERATOR, "cannot be opened", _RIGHTS),
    "SQLITE_PROTOCOL": Rule(Verdict.BUSY, "is locked by other processes", repeats=True),
    "SQLITE_SCHEMA": Rule(Verdict.STALE, "has changed its schema under a prepared statement", repeats=True),
    "SQLITE_TOOBIG": VALUE,
    "SQLITE_CONSTRAINT": VALUE,
    "SQLITE_MISMATCH": VALUE,
    "SQLITE_MISUSE": OURS,
    "SQLITE_NOLFS": Rule(Verdict.OPERATOR, "is too large for its file system"),
    "SQLITE_AUTH": OURS,
    "SQLITE_FORMAT": OURS,
    "SQLITE_RANGE": OURS,
    "SQLITE_NOTADB": Rule(Verdict.OPERATOR, "is no SQLite database, or an encrypted one", "Name another file"),
    # --- what is told by its words only
    "no such": Rule(
        Verdict.OPERATOR, "has another schema than this onejob expects",
        "Run `onejob migrate status`, then `migrate up`",
    ),
    # --- what Python's module says by itself
    "DataError": VALUE,
    "UnicodeEncodeError": VALUE,  # of a lone surrogate
}  # fmt: skip
"""The rules for errors, by the name of the result code, or without a result code by the name of the error's class."""
_SCHEMA_WORDS = ("no such table", "no such column", "has no column named")
_OF_RIGHTS = frozenset({"SQLITE_PERM", "SQLITE_READONLY", "SQLITE_CANTOPEN"})


_NAMES = {getattr(sqlite3, name): name for name in RULES if name.startswith("SQLITE_")}


def name_of(error: BaseException) -> str:
    """Return the name of the result code of an error that has a rule; "" if it has none."""
    code = getattr(error, "sqlite_errorcode", None)
    return "" if code is None else _NAMES.get(code, _NAMES.get(code & 0xFF, ""))


def rule_of(error: BaseException) -> Rule:
    """Return the rule for an error of SQLite."""
    name = name_of(error)
    if name == "SQLITE_ERROR" and any(words in str(error) for words in _SCHEMA_WORDS):
        return RULES["no such"]
    names = (name, *(each.__name__ for each in type(error).__mro__))
    return next((RULES[each] for each in names if each in RULES), OURS)


def translate(error: BaseException, path: Path) -> StoreError:
    """Return the exception for an error of the driver. An error of missing rights names owners and modes."""
    hint = rights_of(path) if name_of(error) in _OF_RIGHTS else ""
    return store_error(rule_of(error), subject(path), error, hint)


def subject(path: Path) -> str:
    """Return the name of a store in a file, for messages."""
    return f"the SQLite store {path}"
