"""The sessions of people who log in with an API key: signed by the server, and ended by logout, time or the key.

A session is a text in a cookie: the beginning of the key's hash, the time at which the session began, a random id, and
a MAC over them and over the key's row in the file. So no process stores sessions, and all processes of a ledger accept
the same sessions.
"""

import hmac
import secrets
import time
from collections.abc import Callable

from onejob.api.api_keys import Key, KeyFile
from onejob.api.auth import check_expiry, find_key
from onejob.api.problems import Problem
from onejob.concurrency.batching import KeyedCache
from onejob.ledger.ledger import Ledger
from onejob.pages.signing import Signer

SESSION_SECONDS = 12 * 3600
"""How long a session lasts, in seconds."""
ENDED_SECONDS = 2.0
"""Seconds for which a process may still accept a session that another process has ended."""
CACHED_SESSIONS = 1000
SECRET_ID = "dashboard-sessions"  # noqa: S105 - the name of the secret
HASH_CHARACTERS = 16
FIELDS = 4
LOGIN_AGAIN = "the session is over, or its key was revoked or rotated: log in again"


class Sessions:
    """Begins, recognizes and ends the sessions of one dashboard."""

    def __init__(self, keys: KeyFile, ledger: Callable[[], Ledger], clock: Callable[[], float] = time.time) -> None:
        self._keys = keys
        self._sign = Signer(ledger, SECRET_ID).sign
        self._ledger = ledger
        self._clock = clock
        self._ended: KeyedCache[bool] = KeyedCache(ENDED_SECONDS, entries=CACHED_SESSIONS)

    def begin(self, key_text: str) -> tuple[Key, str]:
        """Return a key by its text, and a new session of it. Raises `Problem`, and `StoreError`."""
        hint = "there is no such API key, or it was revoked: log in with another one"
        key = find_key(self._keys.find, key_text, hint)
        check_session_key(key)
        return key, self.issue(key)

    def issue(self, key: Key) -> str:
        """Return a new session of a key that may have one. Raises `StoreError`."""
        issued, name = str(int(self._clock())), secrets.token_urlsafe(16)
        return ".".join((key.sha256[:HASH_CHARACTERS], issued, name, self._mac(key, issued, name)))

    def key_of(self, session: str) -> Key:
        """Return the key of a session. Raises `Problem` for a session that has ended or is forged, and `StoreError`."""
        prefix, issued, name, mac = _fields_of(session)
        key = find_key(lambda _: self._find(prefix, issued, name, mac), session, LOGIN_AGAIN)
        check_session_key(key)
        if not 0 <= self._clock() - int(issued) + 1 <= SESSION_SECONDS or self._has_ended(name):
            raise Problem("unauthorized", LOGIN_AGAIN)
        return key

    def end(self, session: str) -> None:
        """End a session in all processes; the ledger remembers the end for as long as the session could last."""
        name = _fields_of(session)[2]
        self._ledger().keep_event(_event_of(name), "ended", keep_for=SESSION_SECONDS)
        self._ended.clear()

    def _find(self, prefix: str, issued: str, name: str, mac: str) -> Key | None:
        matching = (key for key in self._keys.read() if key.sha256.startswith(prefix))
        return next((key for key in matching if hmac.compare_digest(self._mac(key, issued, name), mac)), None)

    def _mac(self, key: Key, issued: str, name: str) -> str:
        return self._sign(key.sha256, str(key.sessions_ended), issued, name)

    def _has_ended(self, name: str) -> bool:
        return self._ended.get(name, lambda: bool(self._ledger().keep_event(_event_of(name), None, keep_for=0.0)))


def check_session_key(key: Key) -> None:
    """Raise `Problem` for a key that opens no session: it has expired, or is limited to some jobs."""
    check_expiry(key)
    if key.own_jobs or key.tasks is not None:
        raise Problem("forbidden", f"the API key {key.name!r} is limited to some jobs, and the dashboard shows all")


def _fields_of(session: str) -> list[str]:
    fields = session.split(".")
    well_formed = len(fields) == FIELDS and session.isascii() and fields[1].isdecimal()
    if not well_formed or len(fields[0]) != HASH_CHARACTERS or len(fields[1]) > HASH_CHARACTERS:
        raise Problem("unauthorized", LOGIN_AGAIN)
    return fields


def _event_of(name: str) -> str:
    return f"dashboard-session:{name}"
