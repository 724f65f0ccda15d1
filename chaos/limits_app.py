"""The app of the storms of limits: one body, with a limit of running jobs, with a rate, and without a limit."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import onejob
from chaos.app import chaos_app

app = chaos_app("limits")
RUNNING = 3
"""How many jobs of one key run at once."""
RATE = os.environ.get("CHAOS_RATE", "600/minute")
BURST = float(os.environ.get("CHAOS_BURST", "10"))
BODY_SECONDS = float(os.environ.get("CHAOS_BODY", "0.02"))
"""Seconds that a body takes."""


def block(number: int, key: str) -> int:  # noqa: ARG001 - the limits count by it
    """Take a while."""
    time.sleep(BODY_SECONDS)
    return number


async def wait(number: int, key: str) -> int:  # noqa: ARG001
    """Take a while."""
    await asyncio.sleep(BODY_SECONDS)
    return number


work: Any = wait if os.environ.get("CHAOS_POOL") == "onejob" else block
free = app.task(name="free", base=onejob.Task)(work)
limited = app.task(name="limited", base=onejob.Task, limits=[onejob.Limit("key", running=RUNNING)])(work)
rated = app.task(name="rated", base=onejob.Task, limits=[onejob.Limit("key", rate=RATE, burst=BURST, name="provider")])(
    work
)
