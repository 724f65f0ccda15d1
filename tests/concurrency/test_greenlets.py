"""The bridge from synchronous code to an event loop."""

import asyncio
from traceback import extract_tb

import pytest

from onejob.concurrency.greenlets import call_in_bridge, is_bridged, wait_for


def test_an_exception_has_its_frames_across_the_bridge() -> None:
    """An exception that a coroutine raises is raised in the code that waits for it, with the coroutine's frames."""

    async def fail() -> None:
        await asyncio.sleep(0)
        raise LookupError("here")

    def wait() -> None:
        assert is_bridged()
        wait_for(fail())

    with pytest.raises(LookupError, match="here") as caught:
        asyncio.run(call_in_bridge(wait))
    assert {"wait", "fail"} <= {frame.name for frame in extract_tb(caught.value.__traceback__)}
