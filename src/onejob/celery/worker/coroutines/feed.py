"""Feeds the pool of coroutines with many jobs at once, where Celery's consumer receives one message after the other.

A feed takes what is due for as many places as are free, and makes the requests of the jobs as Celery does for received
messages: so remote control, events, rate limits and time limits know them. Where the ledger delivers, the feed takes
all jobs. Where the ledger's Redis is the broker, Celery's consumer waits for messages, as always; while there are more,
the feed takes those of jobs, and leaves others to the consumer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from base64 import b64decode
from collections.abc import Callable, Iterable, Sequence
from json import loads
from typing import Any, Protocol, TypeAlias, cast

from celery.worker import state as worker_state
from kombu.serialization import loads as decoded
from kombu.serialization import prepare_accept_content

from onejob.celery.app_state import AppState, app_state_of
from onejob.celery.messages.payload import MARK
from onejob.celery.run import draining
from onejob.celery.slots import MAX_LIMITED, capacity_of
from onejob.celery.transport.connection import Waker
from onejob.celery.transport.job_delivery import JobMessages
from onejob.celery.worker.request import LedgerMessage
from onejob.concurrency.loops import FailureLog
from onejob.errors import StoreError
from onejob.stores.protocol import LOOK_INTERVAL, MessagePushingStore

logger = logging.getLogger("onejob")
Payload: TypeAlias = "dict[str, Any]"
"""A message as kombu's virtual transports have it."""
MOST = 500
"""How many jobs one statement takes at most."""
FAILURE_PAUSE = 1.0
"""Seconds after a failure of the store."""


class FedPool(Protocol):
    """The part of a pool that its feed knows."""

    limit: int
    """How many tasks run at once."""

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function in the thread of the event loop. Any thread may call this method."""


class Feed(ABC):
    """Feeds a worker's pool. `consumed` returns the names of the queues of the worker."""

    def __init__(self, worker: Any, consumed: Callable[[], Iterable[str]]) -> None:
        self._worker = worker
        self._pool: FedPool = worker.pool
        self._consumed = consumed
        self._app_state: AppState = app_state_of(worker.app)
        self._woken = asyncio.Event()
        self._failures = FailureLog("the delivery of jobs")
        self._accept = prepare_accept_content(worker.app.conf.accept_content)

    # --- what kinds of feeds differ in ------------------------------------------------------------------------------

    @abstractmethod
    def take(self, queues: Sequence[str], limit: int) -> tuple[list[Payload], float | None]:
        """Take messages of jobs, as kombu has them, and return the seconds to the next look; 0: there may be more."""

    # --- what is the same -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Feed the pool until the worker shuts down."""
        loop = asyncio.get_running_loop()
        while not draining.is_set():
            self._woken.clear()
            pause: float | None = LOOK_INTERVAL
            if (free := self._free()) > 0 and (queues := self._queues()):
                try:
                    payloads, pause = await loop.run_in_executor(None, self.take, queues, min(free, MOST))
                    self._failures.record_success()
                except StoreError as error:
                    self._failures.record_failure(error)
                    payloads, pause = [], FAILURE_PAUSE
                for payload in payloads:
                    self._receive(payload)
            if pause is None or pause > 0 or self._free() <= 0:
                await self._wait(pause)

    def wake(self) -> None:
        """Look for jobs now: in the thread of the event loop."""
        self._woken.set()

    def wake_soon(self) -> None:
        """Look for jobs now: in any thread."""
        self._pool.call_soon(self.wake)

    async def _wait(self, pause: float | None) -> None:
        try:
            async with asyncio.timeout(LOOK_INTERVAL if pause is None else min(pause, LOOK_INTERVAL)):
                await self._woken.wait()
        except TimeoutError:
            pass

    def _free(self) -> int:
        """Return how many more jobs this worker can begin; an autoscaler adds places for those that wait in it.

        Some jobs that wait for their rate limits take no place, as in every pool.
        """
        capacity, received = capacity_of(self._worker), len(worker_state.reserved_requests)
        buckets = getattr(self._worker.consumer, "task_buckets", {})
        limited = sum(len(each.contents) for each in [*buckets.values()] if each)
        return capacity - received - (limited if limited > MAX_LIMITED * capacity else 0)

    def _queues(self) -> Sequence[str]:
        """Return the queues that the worker consumes; none while it is not connected."""
        consumer = self._worker.consumer
        ready = getattr(consumer, "task_consumer", None) is not None and consumer.strategies
        return [*self._consumed()] if ready else []

    def _receive(self, payload: Payload) -> None:
        """Let Celery make the request of a message, and run it."""
        consumer = self._worker.consumer
        try:
            message = self._message(payload)
            strategy = consumer.strategies.get(message.headers["task"])
            if strategy is None:
                consumer.on_unknown_task(None, message, KeyError(message.headers["task"]))
            else:
                strategy(message, None, _ignore, _ignore, consumer.on_task_message)
        except Exception:  # as of Celery's consumer: what cannot be received must not end the feed
            logger.exception("job %s: its worker could not receive it", payload["headers"].get("id"))

    def _message(self, payload: Payload) -> LedgerMessage:
        """Return a message in the form in which a consumer gets it from a broker."""
        properties, body = payload["properties"], payload["body"]
        if properties.get("body_encoding") == "base64":
            body = b64decode(body)
        content = decoded(body, payload["content-type"], payload["content-encoding"], accept=self._accept)
        return LedgerMessage(
            content,
            delivery_tag=properties.get("delivery_tag"),
            delivery_info=properties["delivery_info"],
            properties=properties,
            headers=payload["headers"],
        )


def _ignore(*_: object) -> None:
    """Do nothing: no broker has the message."""


def feed_of(worker: Any, consumed: Callable[[], Iterable[str]]) -> Feed | None:
    """Return the feed of a worker; None if its broker keeps the messages, and gives them to Celery's consumer only."""
    app_state = app_state_of(worker.app)
    handover = app_state.publisher.handover
    if handover.takes_jobs:
        return LedgerFeed(worker, consumed)
    if handover.shares_broker and not app_state.settings.broker_acks:
        return BrokerFeed(worker, consumed)
    return None


class LedgerFeed(Feed):
    """The feed of `broker_url = "onejob://"`, which takes all jobs from the ledger."""

    def __init__(self, worker: Any, consumed: Callable[[], Iterable[str]]) -> None:
        super().__init__(worker, consumed)
        self._app_state.is_fed = True
        self._jobs = JobMessages(worker.app, lambda *_: None, takes_for_pool=True)
        self._app_state.wake_feed = self.wake_soon  # the worker's consumers hear the signals of their queues

    def take(self, queues: Sequence[str], limit: int) -> tuple[list[Payload], float | None]:
        """Take jobs that are due, and find out when the next one is."""
        taken, has_more = self._jobs.take(queues, limit, no_ack=False)
        self._jobs.ack([each.tag for each in taken])
        due_at = self._jobs.due_at()
        pause = None if due_at is None else max(0.001, due_at - time.monotonic())
        return [each.payload for each in taken], 0.0 if has_more else pause


class BrokerFeed(Feed):
    """The feed of a ledger whose Redis is the broker, too."""

    def __init__(self, worker: Any, consumed: Callable[[], Iterable[str]]) -> None:
        super().__init__(worker, consumed)
        self._store = cast("MessagePushingStore", self._app_state.ledger.store)
        self._hub_waker = Waker()
        self._turn = 0
        """How many looks there were: each begins with another queue, as Celery's consumer does."""
        self._watch_hub(worker.hub)

    def take(self, queues: Sequence[str], limit: int) -> tuple[list[Payload], float | None]:
        """Take the messages of jobs from the lists of the broker."""
        channel = self._worker.consumer.task_consumer.channel
        self._turn += 1
        first = self._turn % len(queues)
        lists = [
            f"{channel.global_keyprefix}{channel._q_for_pri(queue, priority)}"  # noqa: SLF001 - kombu's
            for priority in channel.priority_steps
            for queue in (*queues[first:], *queues[:first])
        ]
        found = self._store.pop_messages(lists, containing=f'"{MARK}": "', limit=limit)
        was_fed, self._app_state.is_fed = self._app_state.is_fed, bool(found)
        if was_fed and not found:
            self._wake_consumer()
        return [loads(text) for text in found], 0.0 if found else None

    def _wake_consumer(self) -> None:
        """Let the event loop of Celery's consumer wait for messages again."""
        hub = self._worker.consumer.hub
        if hub is not None and self._hub_waker.reader.fileno() not in hub.readers:  # a lost connection has reset it
            hub.call_soon(self._watch_hub, hub)
        self._hub_waker.wake()

    def _watch_hub(self, hub: Any) -> None:
        if hub is not None:
            hub.add_reader(self._hub_waker.reader, self._hub_waker.clear)
