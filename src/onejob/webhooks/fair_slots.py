"""A limited number of slots, shared fairly between submitters and hosts."""

from __future__ import annotations

import threading
from collections import Counter


class FairSlots:
    """At most `total` slots, `per_host` for one host, and for one submitter no more than are free.

    So one submitter gets half of the slots, and of n submitters that take all they get, each has 1/(n + 1) of them:
    the rest is always free for another one. Safe to use from many threads.
    """

    def __init__(self, total: int, per_host: int) -> None:
        self._total = total
        self._per_host = per_host
        self._submitters: Counter[str] = Counter()
        self._hosts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def acquire(self, submitter: str, host: str) -> bool:
        """Take a slot; False if a limit is reached. Never waits."""
        with self._lock:
            free = self._total - self._submitters.total()
            if self._submitters[submitter] >= free or self._hosts[host] >= self._per_host:
                return False
            self._submitters[submitter] += 1
            self._hosts[host] += 1
            return True

    def release(self, submitter: str, host: str) -> None:
        """Return a slot that `acquire` has taken with these arguments."""
        with self._lock:
            for counter, name in ((self._submitters, submitter), (self._hosts, host)):
                counter[name] -= 1
                if not counter[name]:
                    del counter[name]

    def used_by(self, submitter: str) -> int:
        """Return how many slots a submitter has."""
        return self._submitters[submitter]
