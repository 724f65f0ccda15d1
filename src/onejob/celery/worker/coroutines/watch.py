"""Watches the event loop of a worker: names the code that holds it, so that no other coroutine goes on."""

from __future__ import annotations

import asyncio
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from onejob.celery.slots import members_of
from onejob.celery.worker.coroutines.execution import Execution

BEAT = 0.25
"""Seconds between two signs of life of the loop, and between two looks."""
HELD_SECONDS = 1.0
"""After how many seconds without a sign of life the loop is held."""
_NOT_OF_USERS = tuple(
    str(Path(folder).resolve())
    for folder in {
        *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
        str(Path(__file__).parents[2]),
    }
)


class Hold(NamedTuple):
    """A time in which code has held the loop."""

    seconds: float
    place: str
    """The file and the line, as `shop.py:41`."""
    holder: Execution | None
    """The execution whose body has held it, if that is known."""


class LoopWatch:
    """Calls `report`, in the thread of the loop, with each `Hold` after its end. `running`: what the loop runs."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, running: Collection[Execution], report: Callable[[Hold], object]
    ) -> None:
        self._loop = loop
        self._running = running
        self._report = report
        self._beat_at = 0.0
        self._thread_id = 0
        self._held: tuple[str, Execution | None] | None = None
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin to watch, in the thread of the loop."""
        self._thread_id = threading.get_ident()
        self._beat()
        threading.Thread(target=self._watch, name="onejob-loop-watch", daemon=True).start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()

    def _beat(self) -> None:
        now = time.monotonic()
        held, self._held = self._held, None
        if held is not None and (seconds := now - self._beat_at) > HELD_SECONDS:
            self._report(Hold(seconds, *held))
        self._beat_at = now
        if not self._stopped.is_set():
            self._loop.call_later(BEAT, self._beat)

    def _watch(self) -> None:
        while not self._stopped.wait(BEAT):
            if time.monotonic() - self._beat_at > HELD_SECONDS:
                frame = sys._current_frames().get(self._thread_id)  # noqa: SLF001 - documented
                if frame is not None and self._held is None:
                    self._held = place_of(frame), self._find_holder()

    def _find_holder(self) -> Execution | None:
        task = asyncio.current_task(self._loop)
        return next((each for each in members_of(self._running) if each.is_of(task)), None)


def place_of(frame: FrameType) -> str:
    """Return the innermost line of a user's code in a stack, or else its innermost line."""
    found: FrameType | None = frame
    while found is not None and found.f_code.co_filename.startswith(_NOT_OF_USERS):
        found = found.f_back
    found = found or frame
    return f"{Path(found.f_code.co_filename).name}:{found.f_lineno}"
