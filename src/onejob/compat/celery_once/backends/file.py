# ruff: noqa: PTH103, PTH107, PTH118, PTH204 - programs' tests replace these functions of os here
"""The locks of celery-once as files."""

import hashlib
import os
import tempfile
import time
from contextlib import suppress
from typing import Any

from onejob.compat.celery_once.helpers import AlreadyQueued

MAX_LENGTH = 50


def key_to_lock_name(key: str) -> str:
    """Return the name of a lock's file: the beginning of its key, and the key's MD5."""
    digest = hashlib.md5(key.encode(), usedforsecurity=False).hexdigest()
    return f"{key[: MAX_LENGTH - len(digest) - 1]}_{digest}"


class File:
    """Keeps an empty file per lock; its modification time is the time at which the lock was taken."""

    def __init__(self, settings: Any) -> None:
        """Make the directory `location`; default: `celery_once` in the system's directory for temporary files."""
        location = settings.get("location")
        self.location = os.path.join(tempfile.gettempdir(), "celery_once") if location is None else location
        with suppress(FileExistsError):
            os.makedirs(self.location)

    def raise_or_lock(self, key: str, timeout: float) -> None:
        """Take a lock for `timeout` seconds. Raises `AlreadyQueued` if it is held."""
        path = self._path(key)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            left = os.path.getmtime(path) + timeout - time.time()
            if left > 0:
                raise AlreadyQueued(left) from None
            os.utime(path, None)

    def clear_lock(self, key: str) -> None:
        """Remove a lock. Raises `FileNotFoundError` if there is none."""
        os.remove(self._path(key))

    def _path(self, key: str) -> str:
        return os.path.join(self.location, key_to_lock_name(key))
