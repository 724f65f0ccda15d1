"""A bridge from synchronous code to an event loop: code in a greenlet of a coroutine waits, and the loop goes on.

It needs the package greenlet, which `onejob[coroutines]` installs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from greenlet import getcurrent, greenlet

T = TypeVar("T")


class Bridge(greenlet):  # type: ignore[misc] # ships no types
    """A greenlet that runs synchronous code for a coroutine, in the coroutine's own context."""

    def __init__(self, function: Callable[[], object], driver: greenlet) -> None:
        super().__init__(function, driver)
        self.driver = driver
        self.gr_context = driver.gr_context


async def call_in_bridge(function: Callable[[], T]) -> T:
    """Call a synchronous function, in which `wait_for` lets the event loop go on; return its value."""
    bridge = Bridge(function, getcurrent())
    found: Any = bridge.switch()
    while not bridge.dead:
        try:
            value = await found
        except BaseException as error:  # noqa: BLE001 - it is raised where the function waits
            found = bridge.throw(type(error), error, error.__traceback__)
        else:
            found = bridge.switch(value)
    return cast("T", found)


def is_bridged() -> bool:
    """Return whether this code can call `wait_for`."""
    return isinstance(getcurrent(), Bridge)


def wait_for(awaitable: Awaitable[T]) -> T:
    """Return the value of an awaitable, or raise its exception, while the event loop goes on."""
    return cast("T", cast("Bridge", getcurrent()).driver.switch(awaitable))
