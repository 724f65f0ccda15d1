"""The connection of the kombu transport `broker_url = "onejob://"`, whose queues are in the ledger's database.

A channel takes as many messages as its consumers have free places for, in one statement. Signals of the store wake the
consumers, which also look by themselves after `LOOK_INTERVAL` in a worker, and after a second elsewhere: so a lost
signal delays a message, and loses none.
"""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import count
from typing import Any, ClassVar
from weakref import WeakKeyDictionary, WeakValueDictionary

import kombu
from celery import Celery, current_app
from celery.app.amqp import AMQP
from kombu.transport import TRANSPORT_ALIASES, virtual

from onejob.celery.app_state import app_state_of
from onejob.celery.messages.broker import SCHEME
from onejob.celery.transport.channel import Channel, PlainMessages, Source, take_from
from onejob.celery.transport.job_delivery import JobMessages, Taken
from onejob.concurrency.loops import FailureLog, Loop
from onejob.config import NO_BROKER
from onejob.errors import ConfigurationError, StoreError, StoreUnavailableError
from onejob.jobs.broker_messages import NewMessage
from onejob.stores.protocol import BACKSTOP, LOOK_INTERVAL, MessageStore
from onejob.stores.protocol import Channel as Signal

HOLD = 30.0
"""Seconds after which a dead consumer's messages are delivered again: the transport option `visibility_timeout`."""
HEARTBEAT = "worker.heartbeat"
"""The routing key of the events that each worker of Celery sends every two seconds."""
UNHEARD_FOR = 5.0
"""For how many seconds a worker sends no heartbeat event after an event that no queue has got."""
SHORTEST_PAUSE = 0.001
"""Seconds between two looks at least, when another consumer has locked the due rows."""
PLACE_INTERVAL = 0.01
"""Seconds between two looks for a free place in a worker whose pool tells no event loop of the ends of its runs."""
APP = "onejob_app"
"""The transport option with the name of a connection's app, as a text, by which pools distinguish connections."""


class Waker(threading.Event):
    """Ends the wait of a consumers' thread, in an event loop or not. Any thread may call it."""

    def __init__(self) -> None:
        super().__init__()
        self.reader, self._writer = socket.socketpair()
        self.reader.settimeout(0)
        self._writer.settimeout(0)

    def wake(self) -> None:
        """End the current wait, or the next wait."""
        if not self.is_set():
            self.set()
            with suppress(OSError):  # it is closed, or full
                self._writer.send(b"x")

    def clear(self) -> None:
        """Begin to look for messages: later calls of `wake` end the next wait."""
        with suppress(OSError):  # there is nothing, or it is closed
            self.reader.recv(4096)
        super().clear()

    def close(self) -> None:
        """Close the sockets."""
        self.reader.close()
        self._writer.close()


VirtualTransport: Any = virtual.Transport  # the published types know a part of the class only


class Transport(VirtualTransport):  # type: ignore[misc]
    """One connection of kombu to the ledger's store."""

    Channel = Channel
    driver_type = driver_name = SCHEME
    can_parse_url = True  # it has no host
    default_connection_params: ClassVar[dict[str, Any]] = {}
    # Also those that an operator has to mend: a consumer goes on when they are, and must not end meanwhile.
    connection_errors = (*VirtualTransport.connection_errors, StoreError)
    recoverable_connection_errors = (StoreError,)
    recoverable_channel_errors = ()
    implements = VirtualTransport.implements.extend(
        asynchronous=True, exchange_type=frozenset({"direct", "topic", "fanout"})
    )

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self.hold = float(client.transport_options.get("visibility_timeout", HOLD))
        """For how many seconds the taken messages and the temporary queues of this connection survive it."""
        self._process = os.getpid()
        self.deleted_at_end: set[str] = set()
        """The queues that are deleted when their consumer on this connection ends."""
        self._waker: Waker | None = None
        self._renewal: Any = None
        self._renewal_lock = threading.Lock()
        self._acks: deque[str] = deque()
        self._loop: Any = None
        self._loop_thread: int | None = None
        self._timer: Any = None
        self._timer_at = 0.0
        self._looked_at = -math.inf
        """When the consumers last looked in all sources."""
        self._look_at = 0.0
        """When the consumers look next without a signal."""
        self._unheard_until = 0.0
        self._failures = FailureLog("the delivery of jobs")

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:  # noqa: ARG002, FBT001, FBT002 - kombu's signature
        """Return the URL, which has no secrets."""
        return uri

    @cached_property
    def store(self) -> Any:
        """The store of the app's ledger. Raises `ConfigurationError` if it is no broker."""
        store = app_state_of(_app_of(self.client)).ledger.store
        if not isinstance(store, MessageStore):
            raise ConfigurationError(NO_BROKER)
        return store

    @cached_property
    def plain(self) -> PlainMessages:
        """The source of the messages that are no jobs."""
        return PlainMessages(self.store, self.hold)

    @cached_property
    def jobs(self) -> JobMessages:
        """The source of the messages that are jobs."""
        return JobMessages(_app_of(self.client), self.announce)

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources of the messages, in the order in which consumers take from them."""
        return self.plain, self.jobs

    def establish_connection(self) -> Any:
        """Return the connection. Raises `StoreUnavailableError`."""
        self.store.read_clock()
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        """Return the taken messages, and end all consumers; not in a forked child, whose parent goes on with them."""
        if self._process != os.getpid():
            return
        self._leave_loop()
        with suppress(StoreError):
            self.flush()
        super().close_connection(connection)
        with suppress(StoreError):
            self.jobs.prefetch.close()
        if self._renewal is not None:
            self._renewal.stop()
        if self._waker is not None:
            self._waker.close()
        self._renewal = self._waker = None

    def take(
        self, sources: Sequence[Source], queues: Sequence[str], limit: int, *, no_ack: bool
    ) -> tuple[list[Taken], list[Source]]:
        """Take messages for consumers by `take_from`; an error that is no outage is logged, and another look is later.

        Raises `StoreUnavailableError`, after which a consumer connects anew.
        """
        try:
            found = take_from(sources, queues, limit, no_ack=no_ack)
        except StoreUnavailableError:
            raise
        except StoreError as error:
            self._failures.record_failure(error)
            return [], []
        self._failures.record_success()
        return found

    # --- messages ---------------------------------------------------------------------------------------------------

    def publish(self, message: NewMessage, *, durable: bool, wake: bool) -> None:
        """Write a message to its queues. Most heartbeats of workers that nobody receives cost no statement."""
        is_heartbeat = message.routing_key == HEARTBEAT
        if is_heartbeat and time.monotonic() < self._unheard_until:
            return
        if not self.store.put_messages([message], durable=durable, wake=wake) and is_heartbeat:
            self._unheard_until = time.monotonic() + UNHEARD_FOR

    def ack(self, tag: str) -> None:
        """Acknowledge a message; all acknowledgements of one round of the event loop are written together."""
        self._acks.append(tag)
        if self._loop_thread != threading.get_ident():
            self.flush()

    def flush(self) -> None:
        """Write the acknowledgements."""
        tags = []
        with suppress(IndexError):
            while True:
                tags.append(self._acks.popleft())
        try:
            for source in self.sources if tags else ():
                source.ack(tags)
        except StoreError:
            self._acks.extendleft(reversed(tags))
            raise

    def requeue(self, tags: Sequence[str]) -> None:
        """Return messages to their queues."""
        for source in self.sources if tags else ():
            source.requeue(tags)

    def announce(self, source: Source, queues: Sequence[str]) -> None:
        """Let the consumers of queues take from a source that has found messages; any thread may call this method."""
        for channel in [*self.channels]:
            if not {*queues}.isdisjoint(channel.consumed()):
                channel.look_in(source)
        self.wake()

    def subscribe(self, look: Callable[[str], object], queue: str) -> Callable[[], None]:
        """Call a function when a queue may have got messages; return the function that ends the subscription."""
        self._new_waker()
        unsubscribe: Callable[[], None] = self.store.signals.subscribe(Signal.DUE, queue, look)
        return unsubscribe

    def keep(self) -> None:
        """Renew from now on the taken messages, and the queues that have consumers."""
        with self._renewal_lock:
            if self._renewal is None:
                self._renewal = Loop("onejob-messages", self.hold / 3, self._renew)
                self._renewal.start()

    def _renew(self) -> None:
        """Renew, in a thread, since tasks may keep an event loop busy; end it without consumers and messages."""
        holds = [source.renew(self.consumed()) for source in self.sources]
        with self._renewal_lock:
            if not any(holds) and not self.consumed() and self._renewal is not None:
                self._renewal.stop()
                self._renewal = None

    def consumed(self) -> list[str]:
        """Return the queues from which the channels consume."""
        return [queue for channel in [*self.channels] for queue in channel.consumed()]

    # --- waiting ----------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Let the consumers' thread deliver messages."""
        if (waker := self._waker) is not None:
            waker.wake()

    def drain_events(self, connection: Any, timeout: float | None = None, **_: Any) -> None:  # noqa: ARG002 - kombu's signature
        """Deliver one message. Raises `TimeoutError`."""
        deadline, waker = math.inf if timeout is None else time.monotonic() + timeout, self._new_waker()
        waker.clear()
        while not self._deliver_one():
            left = min(deadline - time.monotonic(), self._pause())
            if time.monotonic() >= deadline:
                raise TimeoutError
            waker.wait(left)
            waker.clear()

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:  # noqa: ARG002 - kombu's signature
        """Deliver messages in the event loop of a worker."""
        self._leave_loop()
        self._loop, self._loop_thread = loop, threading.get_ident()
        self.jobs.has_loop = True
        loop.add_reader(self._new_waker().reader, self._deliver_all)
        loop.on_tick.add(self._on_tick)
        self.wake()

    def _leave_loop(self) -> None:
        loop, self._loop, self._loop_thread = self._loop, None, None
        if loop is not None:
            self.jobs.has_loop = False
            loop.on_tick.discard(self._on_tick)
            if self._waker is not None:
                loop.remove_reader(self._waker.reader)
            self._cancel_timer(loop)

    def _on_tick(self) -> None:
        """Write the acknowledgements of a round of the event loop, and look for messages: a process may be free."""
        self.flush()
        if self._has_due() and (self._deliver_found() or self._next_look() < self._timer_at - SHORTEST_PAUSE):
            # The pool may have looked in this round already for what it has to write to its processes, and the loop
            # for how long it may wait: `_deliver_all` sets an earlier timer in the next one.
            self.wake()

    def _has_due(self) -> bool:
        return any(channel.has_due for channel in self.channels)

    def _deliver_all(self) -> None:
        """Deliver the messages that are there, and set the timer for the next look."""
        self._new_waker().clear()
        self._deliver_found()
        if self._loop is not None:  # a consumer may have closed the connection
            self._set_timer(self._loop)

    def _deliver_found(self) -> bool:
        found = False
        while self._deliver_one():
            found = True
        return found

    def _set_timer(self, loop: Any) -> None:
        """Set a timer for the next look. An earlier timer stays: a loop keeps canceled timers until their time."""
        pause = self._pause()
        at = time.monotonic() + pause
        if self._timer is None or at < self._timer_at:
            self._cancel_timer(loop)
            self._timer, self._timer_at = loop.call_later(pause, self._on_timer), at

    def _on_timer(self) -> None:
        self._timer = None
        self.wake()

    def _cancel_timer(self, loop: Any) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            loop.timer.cancel(timer)

    def _deliver_one(self) -> bool:
        """Deliver one message of any channel, and return whether there was a message."""
        if time.monotonic() >= self._look_at:
            self._look()
        # A command that was sent before a job, such as its revocation, reaches a worker before it.
        return any(channel.deliver() for channel in sorted(self.channels, key=lambda channel: channel.has_acks))

    def _look(self) -> None:
        """Let the consumers look in all sources after each interval, and for jobs earlier if one is due."""
        now = time.monotonic()
        if now >= self._looked_at + self._interval:
            self._looked_at = now
            for channel in self.channels:
                channel.look_in(*self.sources)
        if self.jobs.pop_due(now):
            for channel in self.channels:
                channel.look_in(self.jobs)
        self._look_at = self._looked_at + self._interval

    def _pause(self) -> float:
        """Return how many seconds the consumers wait for a signal, once they have no messages."""
        pause = self._next_look() - time.monotonic()
        # Processes send their results to the event loop: the end of each run begins a round.
        hears_ends = self._loop is not None and app_state_of(_app_of(self.client)).can_kill
        return min(pause, PLACE_INTERVAL) if self._has_due() and not hears_ends else pause

    def _next_look(self) -> float:
        """Return the time at which the consumers look for messages without a signal, once they have no messages."""
        due_at = self.jobs.due_at()
        look_at = min(self._looked_at + self._interval, math.inf if due_at is None else due_at)
        self._look_at = max(time.monotonic() + SHORTEST_PAUSE, look_at)
        return self._look_at

    @property
    def _interval(self) -> float:
        """Seconds between two looks. Signals are lost with their connection only, and a new connection wakes all."""
        interval = float(self.store.signals.interval)
        is_of_worker = self._loop is not None or self.jobs.has_limit
        return LOOK_INTERVAL if interval == BACKSTOP and is_of_worker else interval

    def _new_waker(self) -> Waker:
        self._waker = self._waker or Waker()
        return self._waker


# --- the app of a connection ------------------------------------------------------------------------------------------


_next_number = count(1)
_names: WeakKeyDictionary[Celery, str] = WeakKeyDictionary()
_apps: WeakValueDictionary[str, Celery] = WeakValueDictionary()


def name_of(app: Celery) -> str:
    """Return a name of an app that is unique in this process and its forks; an `id` may be an earlier app's."""
    name = _names.setdefault(app, f"{app.main} {os.getpid()}-{next(_next_number)}")
    _apps[name] = app
    return name


def _app_of(client: Any) -> Celery:
    return _apps.get((client.transport_options or {}).get(APP, "")) or current_app


def connect(amqp: Any, hostname: Any = None, *args: Any, **options: Any) -> kombu.Connection:
    """Return a connection, in place of `AMQP.Connection`; a connection to the ledger has the app as an option."""
    if f"{SCHEME}://" in str(hostname):
        options["transport_options"] = {**(options.get("transport_options") or {}), APP: name_of(amqp.app)}
    return kombu.Connection(hostname, *args, **options)


def install() -> None:
    """Register the transport with kombu, and give connections their app. Repeating the call changes nothing."""
    TRANSPORT_ALIASES[SCHEME] = f"{__name__}:Transport"
    AMQP.Connection = connect  # type: ignore[assignment] # a method in place of a class
