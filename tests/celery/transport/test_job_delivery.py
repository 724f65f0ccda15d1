"""A worker takes jobs in a thread: one delivery at a time, of which nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from onejob.celery.transport.job_delivery import Delivered, Prefetch
from onejob.errors import StoreUnavailableError
from tests.stores.support import not_none

PATIENCE = 10.0
QUEUES = ["celery"]


class Source:
    """What a prefetch takes from and gives back to; it delivers when the gate is open."""

    def __init__(self) -> None:
        self.gate, self.begun, self.announced = threading.Event(), threading.Event(), threading.Event()
        self.given_back: list[Any] = []
        self.returned = threading.Event()
        self.error: Exception | None = None
        self.prefetch = Prefetch(self._deliver, self._give_back, self._announce)

    def _deliver(self, queues: Sequence[str], limit: int) -> Delivered:
        self.begun.set()
        assert self.gate.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        jobs: list[Any] = [f"{queue} {number}" for queue in queues for number in range(limit)]
        return Delivered(jobs, is_full=False, due_at=None)

    def _announce(self, queues: Sequence[str]) -> None:
        assert [*queues] == QUEUES
        self.announced.set()

    def _give_back(self, jobs: Sequence[Any]) -> None:
        self.given_back += jobs
        self.returned.set()

    def request(self) -> None:
        """Request two jobs, and wait until the delivery has begun."""
        assert self.prefetch.request(QUEUES, 2)
        assert self.begun.wait(PATIENCE)

    def collect(self) -> Delivered:
        """Return the answer once it is announced."""
        self.gate.set()
        assert self.announced.wait(PATIENCE)
        return not_none(self.prefetch.collect())


@pytest.fixture
def source() -> Iterator[Source]:
    """Return a source with its gate closed."""
    made = Source()
    yield made
    made.gate.set()
    made.prefetch.close()


def test_an_answer_is_collected_once(source: Source) -> None:
    """A delivery blocks nobody; until its jobs are collected, which is once, another request loses nothing of it."""
    source.request()
    assert source.prefetch.collect() is None
    assert [*source.prefetch.queues] == QUEUES
    assert not source.prefetch.request(["other"], 5)
    source.gate.set()
    assert source.announced.wait(PATIENCE)
    assert not source.prefetch.request(["other"], 5)
    assert [f"{job}" for job in source.collect().jobs] == ["celery 0", "celery 1"]
    assert not source.prefetch.queues
    assert source.prefetch.collect() is None


def test_a_job_that_comes_meanwhile_is_looked_for(source: Source) -> None:
    """A signal during a delivery has the consumer look once more; one before it does not."""
    source.prefetch.note_arrival()
    source.request()
    assert not source.collect().is_full
    source.announced.clear()
    source.request()
    source.prefetch.note_arrival()
    assert source.collect().is_full


@pytest.mark.parametrize("is_answered", [False, True])
def test_what_nobody_collects_is_given_back(source: Source, is_answered: bool) -> None:
    """A delivery that is canceled, before its end or after it, gives all of its jobs back once."""
    source.request()
    if is_answered:
        source.gate.set()
        assert source.announced.wait(PATIENCE)
    source.prefetch.cancel()
    source.gate.set()
    assert source.returned.wait(PATIENCE)
    source.prefetch.close()
    assert source.given_back == ["celery 0", "celery 1"]
    assert source.prefetch.collect() is None


@pytest.mark.parametrize("error", [StoreUnavailableError("away"), ValueError("away")])
def test_an_error_is_raised_where_the_answer_is_collected(source: Source, error: Exception) -> None:
    """Whatever a delivery raises reaches the consumer, and the next request is tried."""
    source.error = error
    source.request()
    with pytest.raises(type(error), match="away"):
        source.collect()
    source.error = None
    source.announced.clear()
    source.request()
    source.collect()
