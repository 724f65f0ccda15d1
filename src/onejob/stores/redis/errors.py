"""The errors of Redis and redis-py, with the meaning of each, by the code of the reply or the name of the exception.

The code is the first word of an error reply; for some of them redis-py has an exception. Other replies begin with
`ERR`, or come from a script: words in them decide.
"""

from __future__ import annotations

import re

from redis import exceptions

from onejob.errors import StoreError
from onejob.stores.verdicts import AWAY, OURS, VALUE, Rule, Verdict, store_error

_LOGIN = Rule(
    Verdict.OPERATOR, "refused the connection", "Correct the user and the password of its URL, or the server's ACL"
)
_RIGHT = Rule(
    Verdict.OPERATOR, "refused, since the user of the URL lacks a right", "`onejob doctor` names what it needs"
)
_ELSEWHERE = Rule(Verdict.OPERATOR, "is a node of a cluster, and does not have the keys of the ledger")

RULES: dict[str, Rule] = {
    # --- what redis-py names by an exception
    "ConnectionError": AWAY,
    "TimeoutError": AWAY,
    "OSError": AWAY,
    "BusyLoadingError": Rule(Verdict.OUTAGE, "is loading its data", repeats=True),
    "ReadOnlyError": Rule(
        Verdict.OUTAGE, "accepts no writes now, as in a failover", "If it persists, the URL names a replica",
        repeats=True,
    ),
    "MasterDownError": Rule(Verdict.OUTAGE, "is a replica that has lost its primary"),
    "ClusterDownError": Rule(Verdict.OUTAGE, "is a node of a cluster that is down"),
    "TryAgainError": Rule(Verdict.BUSY, "is moving the keys of the ledger to another node"),
    "AskError": _ELSEWHERE,
    "MovedError": _ELSEWHERE,
    "ClusterCrossSlotError": OURS,
    "AuthenticationError": _LOGIN,
    "AuthenticationWrongNumberOfArgsError": _LOGIN,
    "AuthorizationError": _LOGIN,
    "ExternalAuthProviderError": _LOGIN,
    "NoPermissionError": _RIGHT,
    "OutOfMemoryError": Rule(
        Verdict.OPERATOR, "is over its maxmemory, and did not store this write",
        "A ledger needs maxmemory-policy noeviction, and more memory or a shorter retention",
    ),
    "NoScriptError": Rule(Verdict.STALE, "has lost its scripts"),
    "InvalidResponse": OURS,
    "DataError": VALUE,
    "UnicodeEncodeError": VALUE,  # of a lone surrogate
    # --- what has a code only
    "BUSY": Rule(Verdict.BUSY, "is busy with a script", "`SCRIPT KILL` ends a script of somebody else that hangs"),
    "UNKILLABLE": Rule(Verdict.BUSY, "is busy with a script"),
    "MISCONF": Rule(
        Verdict.OPERATOR, "cannot write to its disk, and refuses writes", "Free space on the server, and see its log"
    ),
    "NOREPLICAS": Rule(
        Verdict.OUTAGE, "has fewer replicas than min-replicas-to-write", "Start them, or lower that setting"
    ),
    "DENIED": Rule(
        Verdict.OPERATOR, "is in protected mode", "Set a password and a `bind` address on the server"
    ),
    "WRONGTYPE": VALUE,
    # --- what is told by its words
    "max number of clients": Rule(
        Verdict.BUSY, "has no free connection", "Raise maxclients, or run fewer processes", repeats=True
    ),
    "unauthenticated": _LOGIN,
    "user executing the script": _RIGHT,
    "DB index is out of range": Rule(
        Verdict.OPERATOR, "has no database of this number", "Correct the URL, or raise `databases`"
    ),
    "compiling script": Rule(Verdict.OPERATOR, "is too old", "onejob needs Redis 7.0 or later"),
    "killed by user": Rule(Verdict.BUSY, "has ended the script, since somebody has killed it"),
    "Protocol error": VALUE,  # it is larger than proto-max-bulk-len
    "user_script": VALUE,  # an error inside a script of ours, for the values that it was called with
}  # fmt: skip
"""The rules for errors, by the name of the exception, by its code, or by words in it."""
_WORDS = (
    "unauthenticated", "user executing the script", "max number of clients", "DB index is out of range",
    "compiling script", "killed by user", "Protocol error",
)  # fmt: skip
_IN_SCRIPT = re.compile(r"(?![A-Z]+ ).*user_script")


def rule_of(error: BaseException) -> Rule:
    """Return the rule for an error of Redis."""
    message = str(error)
    name = next((words for words in _WORDS if words in message), None)
    if name is None:
        names = (*(each.__name__ for each in type(error).__mro__), message.partition(" ")[0])
        name = next((each for each in names if each in RULES), None)
    if name is None and _IN_SCRIPT.match(message):
        name = "user_script"
    return OURS if name is None else RULES[name]


def translate(error: Exception, location: str) -> StoreError:
    """Return the exception for an error of the driver; `location` is the server's."""
    hint = ""
    if isinstance(error, exceptions.AskError):  # or its subclass, MovedError
        hint = f"Name the node that has them, {error.host}:{error.port}"
    return store_error(rule_of(error), f"the Redis store at {location}", error, hint)
