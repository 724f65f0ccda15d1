"""Loops in the background, whose outages are logged less and less."""

import threading

import pytest

from onejob.concurrency.loops import FailureLog, Loop
from onejob.errors import BrokerUnavailableError, StoreError
from tests.stores.support import ManualClock


def test_an_outage_is_logged_at_once_and_then_less_and_less(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that is away is logged at once, then after pauses that double up to a minute, and when it is back."""
    log = FailureLog("the-loop", clock=clock)
    for _ in range(2):
        log.record_success()
        begin = clock()
        for second in range(300):
            log.record_failure(StoreError(f"at {second}"))
            clock.advance(1.0)
        log.record_success()
        assert clock() - begin == 300.0
        assert [each.getMessage().partition(": ")[2] or each.getMessage() for each in caplog.records] == [
            *(f"at {second}" for second in (0, 2, 6, 14, 30, 62, 122, 182, 242)), "the-loop works again, after 300 s",
        ]  # fmt: skip
        caplog.clear()


def test_an_outage_of_the_broker_is_logged_without_a_stack(caplog: pytest.LogCaptureFixture) -> None:
    """While a loop fails since the broker is away, it logs that as it does for the store: in lines without a stack."""
    failed = threading.Event()

    def tick() -> None:
        failed.set()
        raise BrokerUnavailableError("nobody listens")

    loop = Loop("the-loop", 0.0, tick)
    loop.start()
    assert failed.wait(40.0)
    loop.stop()
    assert caplog.records
    for record in caplog.records:
        assert (record.getMessage(), record.exc_info) == ("the-loop failed, and goes on: nobody listens", None)
