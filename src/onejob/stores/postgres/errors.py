"""The errors of PostgreSQL and its drivers, with the meaning of each, by SQLSTATE.

The codes are those of https://www.postgresql.org/docs/current/errcodes-appendix.html. A code without a rule has the
rule of its class, its first two characters. Errors that a driver raises by itself have no code: their class names them.
"""

from __future__ import annotations

import re

from onejob.errors import StoreError
from onejob.stores.verdicts import AWAY, OURS, VALUE, Rule, Verdict, store_error
from onejob.transactions.sessions import sqlstate_of

_CONFLICT = Rule(Verdict.BUSY, "has too many conflicting writes", repeats=True)
_SCHEMA = Rule(
    Verdict.OPERATOR, "has another schema than this onejob expects", "Run `onejob migrate status`, then `migrate up`"
)
_REFUSED_LOGIN = Rule(
    Verdict.OPERATOR, "refused the connection", "Correct the user and the password of its URL, or pg_hba.conf"
)
_DAMAGED = Rule(
    Verdict.OPERATOR, "is damaged", "Look at the server's log and its disk, and restore a backup or rebuild the index"
)
_POOLER = "Its URL needs ?pooler=transaction if a pooler in transaction mode is in front of it"

RULES: dict[str, Rule] = {
    # --- what the server says
    "08": AWAY,
    "0A000": Rule(
        Verdict.STALE, "has changed the schema under the prepared statements of a connection",
        "If it persists, run `onejob migrate status`", repeats=True,
    ),
    "22": VALUE,
    "23": VALUE,
    "23505": _CONFLICT,  # a concurrent insert of the same id, which the repetition finds
    "25": OURS,
    "25006": Rule(
        Verdict.OUTAGE, "accepts no writes now, as in a failover",
        "If it persists, the URL names a standby, or the role's transactions are read-only: list all hosts, with "
        "?target_session_attrs=read-write, or reset default_transaction_read_only", repeats=True,
    ),
    "25P02": Rule(Verdict.OURS, "refused, since an earlier statement of this transaction has failed", "Roll it back"),
    "25P03": Rule(
        Verdict.BUSY, "ended a transaction that was idle for too long",
        "Shorten the pauses of the transaction, or raise idle_in_transaction_session_timeout",
    ),
    "25P04": Rule(
        Verdict.BUSY, "ended a transaction that took too long",
        "Shorten the transaction, or raise transaction_timeout",
    ),
    "26000": Rule(Verdict.STALE, "has lost the prepared statements of a connection", _POOLER, repeats=True),
    "28": _REFUSED_LOGIN,
    "3D000": Rule(Verdict.OPERATOR, "has no such database", "Correct the URL, or create it and run `migrate up`"),
    "3F000": _SCHEMA,
    "40": _CONFLICT,
    "40003": AWAY,
    "42": OURS,
    "42501": Rule(
        Verdict.OPERATOR, "refused, since the role of the URL lacks a right",
        "`onejob migrate roles` prints the SQL that grants what services and migrations need",
    ),
    "42703": _SCHEMA,
    "42704": _SCHEMA,
    "42804": _SCHEMA,
    "42883": _SCHEMA,
    "42P01": _SCHEMA,
    "42P05": Rule(Verdict.OPERATOR, "has another client's prepared statements", _POOLER),
    "42P10": _SCHEMA,
    "53": Rule(Verdict.OPERATOR, "lacks a resource", "Look at the server's log"),
    "53100": Rule(Verdict.OPERATOR, "has a full disk", "Free space on the server, or shorten onejob_retention"),
    "53200": Rule(Verdict.OUTAGE, "is out of memory", repeats=True),
    "53300": Rule(
        Verdict.BUSY, "has no free connection", "Raise max_connections, run fewer processes, or put PgBouncer between",
        repeats=True,
    ),
    "54": VALUE,
    "55006": _CONFLICT,
    "55P03": Rule(
        Verdict.BUSY, "has a row or a table that another transaction has locked for longer than lock_timeout"
    ),
    "57": AWAY,
    "57014": Rule(Verdict.BUSY, "ended a statement that took longer than statement_timeout, or that somebody canceled"),
    "57P04": Rule(Verdict.OPERATOR, "has dropped the database", "Restore it, or correct the URL"),
    "58": Rule(Verdict.OPERATOR, "failed to read or write a file", "Look at the server's log and its disk"),
    "F0": Rule(Verdict.OPERATOR, "has an invalid configuration file", "Look at the server's log"),
    "P0": Rule(
        Verdict.OPERATOR, "has a function or a trigger that refused the write",
        "onejob has none: mend what was added to its schema",
    ),
    "XX": OURS,
    "XX001": _DAMAGED,
    "XX002": _DAMAGED,
    # --- what a driver says by itself
    "OperationalError": AWAY,
    "InterfaceError": AWAY,
    "SilentServer": AWAY,
    "PoolTimeout": Rule(
        Verdict.BUSY, "could not be asked", "Fewer threads, or more processes, can use it at the same time"
    ),
    "DataError": VALUE,
    "UnicodeEncodeError": VALUE,  # of a lone surrogate
}  # fmt: skip
"""The rules for errors, by SQLSTATE, by the class of the SQLSTATE, or without both by the name of the error's class."""

_CONNECTING = (
    ("28P01", "password authentication failed|no password supplied"),
    ("3D000", 'database ".*" does not exist'),
    ("28000", 'authentication failed|no pg_hba.conf entry|role ".*" does not exist|is not permitted to log in'),
    ("28000", "does not support SSL|certificate verify failed|certificate file .* does not exist"),
    ("42501", "permission denied for database"),
    ("53300", "too many clients already|remaining connection slots|too many connections for"),
)
"""The server's English words for a refused connection, by SQLSTATE, which libpq does not pass on then."""


def rule_of(error: BaseException) -> Rule:
    """Return the rule for an error of any driver of PostgreSQL."""
    code = sqlstate_of(error) or _connection_code(error)
    names = (code, code[:2]) if code else tuple(each.__name__ for each in type(error).__mro__)
    return next((RULES[name] for name in names if name in RULES), OURS)


def _connection_code(error: BaseException) -> str:
    message = str(error)
    if "connection" not in message:
        return ""
    return next((code for code, words in _CONNECTING if re.search(words, message)), "")


def translate(error: BaseException, address: str, hint: str = "") -> StoreError:
    """Return the exception for an error of the driver; `address` is the store's, without its password."""
    return store_error(rule_of(error), subject(address), error, hint)


def subject(address: str) -> str:
    """Return the name of a store at an address, for messages."""
    return f"the PostgreSQL store at {address}"
