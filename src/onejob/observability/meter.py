"""Counting what happens: in this process for a moment, then in the ledger's store, where all processes meet."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from typing import TYPE_CHECKING
from weakref import WeakSet

from onejob.observability.metrics import OTHER, counted, name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from onejob.observability.events import JobEvent
    from onejob.observability.metrics import Key

logger = logging.getLogger("onejob")
GOODBYE_SECONDS = 2.0
"""How long a process that ends, or a ledger that is closed, waits for its last amounts to be written."""


class Meter:
    """Counts facts, and every `interval` seconds gives what it has counted, if there is any, to `add`.

    `knows` tells the tasks that have a label of their own. Counting costs no round trip and raises nothing; a store
    that does not answer costs the amounts of that time. A thread lives only while there is something to write. After a
    fork the child begins with nothing.
    """

    def __init__(
        self, add: Callable[[Mapping[str, float]], None], interval: float, knows: Callable[[str], bool]
    ) -> None:
        self._add = add
        self._interval = interval
        self._knows = knows
        self.forget()
        _meters.add(self)

    def forget(self) -> None:
        """Begin with nothing, as the child of a fork must: the amounts, the lock and the timer are its parent's."""
        # It may be taken again by a signal's handler that counts, too.
        self._lock = threading.RLock()
        self._amounts: dict[Key, float] = {}
        self._timer: threading.Timer | None = None

    def count(self, event: JobEvent) -> None:
        """Count a fact."""
        grown = counted(event, event.task if self._knows(event.task) else OTHER)
        with self._lock:
            for key, amount in grown:
                self._amounts[key] = self._amounts.get(key, 0.0) + amount
            if self._timer is None and self._amounts:
                self._start()

    def write(self) -> None:
        """Add what was counted, now."""
        with self._lock:
            amounts, self._amounts = self._amounts, {}
        if not amounts:
            return
        try:
            self._add({name_of(key): amount for key, amount in amounts.items()})
        except Exception as error:  # noqa: BLE001 - whatever a driver raises, no job is harmed
            logger.debug("what was counted for the metrics is lost: %s", error)

    def close(self) -> None:
        """Write what was counted, and leave no timer behind."""
        with self._lock:
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            write_all([self])
            timer.join(GOODBYE_SECONDS)

    def _tick(self) -> None:
        self.write()
        with self._lock:
            if self._timer is threading.current_thread():
                self._timer = None
                if self._amounts:
                    self._start()

    def _start(self) -> None:
        timer = threading.Timer(self._interval, self._tick)
        timer.name, timer.daemon = "onejob-metrics", True
        try:
            timer.start()
        except RuntimeError:  # the interpreter is about to end, and writes what there is then
            return
        self._timer = timer


def write_all(meters: Iterable[Meter] | None = None) -> None:
    """Write what was counted in this process (by some meters only), but wait no longer than is fit for an end."""
    found = list(_meters if meters is None else meters)
    writer = threading.Thread(target=_write_each, args=(found,), name="onejob-metrics", daemon=True)
    try:
        writer.start()
    except RuntimeError:  # too late for a thread
        _write_each(found)
    else:
        writer.join(GOODBYE_SECONDS)


def _write_each(meters: Iterable[Meter]) -> None:
    for meter in meters:
        meter.write()


def _after_fork_in_child() -> None:
    for meter in list(_meters):
        meter.forget()


_meters: WeakSet[Meter] = WeakSet()
os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(write_all)
