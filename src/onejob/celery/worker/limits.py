"""Looks at the limits in a worker's parent: at the moments at which rates have tokens again, and at lost ends of jobs.

The end of a job makes those due that wait for its slot, in the process where it ends. No job ends when the next token
comes, so a worker makes the waiting jobs due then. Workers without limits have no such thread.
"""

from __future__ import annotations

import time

from onejob.celery.app_state import AppState
from onejob.concurrency.loops import Loop
from onejob.ledger.limits import LISTED_KEYS

LATEST, SOONEST = 0.5, 0.01
"""The most and the least seconds between two looks at the alarms of rates."""
LOOK_INTERVAL = 15.0
"""Seconds between two looks at all keys that jobs wait for: a process may have died after the end of a job."""


class LimitLoop(Loop):
    """The thread of a worker that makes jobs due which have waited for tokens."""

    def __init__(self, app_state: AppState) -> None:
        super().__init__("onejob-limits", LATEST, self.look, pause=0.0)
        self._app_state = app_state
        self._looks_at = time.monotonic() + LOOK_INTERVAL

    def look(self) -> None:
        """Make the jobs due that have room now, and choose the time of the next look."""
        ledger = self._app_state.ledger
        if time.monotonic() >= self._looks_at:
            self._looks_at = time.monotonic() + LOOK_INTERVAL
            ledger.free_slots([use.key for use in ledger.store.limit_uses(limit=LISTED_KEYS)])
        has_rate = any(limit.rate is not None for limit, _ in self._app_state.limits.values())
        seconds = ledger.free_due_slots() if has_rate else None
        self.interval = LATEST if seconds is None else min(max(seconds, SOONEST), LATEST)
