"""Methods as coroutines: the ledger is read and written in a thread, so that no event loop waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

C = TypeVar("C")
P = ParamSpec("P")
T = TypeVar("T")


def in_thread(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[C, P], Coroutine[Any, Any, T]]:
    """Return a method that calls another one in a thread, in the context of the coroutine that awaits it."""

    @wraps(method)
    async def call(client: C, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(method, client, *args, **kwargs)

    call.__name__ = f"a{method.__name__}"
    call.__qualname__ = f"{method.__qualname__.removesuffix(method.__name__)}{call.__name__}"
    call.__doc__ = f"Do what `{method.__name__}` does, in a thread."
    return call
