"""Calls synchronous code of onejob for a coroutine, while the event loop goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import cache, partial
from os import getpid
from typing import TypeVar

from onejob.stores.carrier import carrier_of_coroutine

T = TypeVar("T")
MAX_THREADS = 32
"""How many calls at once have a thread."""


async def run_async(operation: Callable[[], T]) -> T:
    """Return the result of an operation on the store, or raise its exception, without blocking the event loop.

    In the pool onejob the store gets the requests of all coroutines of a moment together. Elsewhere the operation has a
    thread, and the context of the coroutine.
    """
    carrier = carrier_of_coroutine()
    return await (run_in_thread(operation) if carrier is None else carrier.call(operation))


async def run_in_thread(operation: Callable[[], T]) -> T:
    """Return the result of an operation, or raise its exception; it has a thread, and the context of the coroutine.

    A coroutine that is canceled waits for the end of the operation, which so never overtakes what comes after it.
    """
    call = partial(_outcome, partial(copy_context().run, operation))
    future = asyncio.get_running_loop().run_in_executor(_threads(getpid()), call)
    try:
        outcome = await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise
    if isinstance(outcome, _Raised):
        raise outcome.error
    return outcome


class _Raised:
    """The exception of an operation: a future of asyncio refuses some exceptions."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _outcome(call: Callable[[], T]) -> T | _Raised:
    try:
        return call()
    except BaseException as error:  # noqa: BLE001 - it is raised in the coroutine
        return _Raised(error)


@cache
def _threads(_pid: int) -> ThreadPoolExecutor:
    """Return the threads of this process."""
    return ThreadPoolExecutor(MAX_THREADS, "onejob-call")
