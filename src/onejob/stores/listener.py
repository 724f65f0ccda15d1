"""Wakes the subscribers of a store's signals in this process, by one thread with one connection."""

from __future__ import annotations

import logging
import os
import selectors
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any
from weakref import WeakSet

from onejob.stores.forks import ForkLocks, abandon_in_children
from onejob.stores.protocol import BACKSTOP, POLL, Channel, Wake

logger = logging.getLogger("onejob")

IDLE_SECONDS = 60.0
"""For how many seconds after its last subscriber a channel is listened to."""
CHECK_INTERVAL = 15.0
"""After how many silent seconds a connection is checked."""
BACK_OFF = (0.1, 5.0)
"""Seconds before a lost connection is opened again: at first, and at most."""


class Listener(ABC):
    """The subscribers of one store in this process, and the thread that wakes them while there are any."""

    interval = BACKSTOP

    def __init__(self, *, polls: bool = False) -> None:
        if polls:  # since no signals arrive
            self.interval = POLL
        self._subscribers: dict[Channel, dict[str, dict[object, Wake]]] = {}
        self._used_at: dict[Channel, float] = {}
        """When each channel that is listened to had a subscriber last."""
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._interrupted = threading.Event()
        self.working = threading.RLock()
        """The lock that the thread holds unless it waits: a fork must not copy a held lock of a client library."""
        _listeners.add(self)
        abandon_in_children(self)

    def subscribe(self, channel: Channel, key: str, wake: Wake) -> Callable[[], None]:
        """Have a function called with the payload of each signal, as `Signals.subscribe` says."""
        if self.interval == POLL:
            return lambda: None
        subscription = object()
        with self._lock:
            self._subscribers.setdefault(channel, {}).setdefault(key, {})[subscription] = wake
            is_new = channel not in self._used_at
            self._used_at[channel] = time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="onejob-signals", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # the interpreter shuts down, or the system has no more threads: subscribers poll
                    self._thread = None
            elif is_new:
                self._interrupt()
        return partial(self._unsubscribe, channel, key, subscription)

    def close(self) -> None:
        """Close the connection, and end the thread."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._interrupt()
        if thread is not None and thread is not threading.current_thread():
            thread.join(5.0)

    def abandon(self) -> object:
        """Forget everything in a forked child, unclosed: the thread and its connection are the parent's."""
        state = self.__dict__.copy()
        self._subscribers, self._used_at, self._thread = {}, {}, None
        self._lock, self._interrupted, self.working = threading.Lock(), threading.Event(), threading.RLock()
        return state

    @abstractmethod
    def _listen(self) -> None:
        """Wake subscribers until there is no channel to listen to. Any exception means that the connection is lost."""

    def _interrupt(self) -> None:
        """End the wait of the thread; the caller holds the lock."""
        self._interrupted.set()

    def _run(self) -> None:
        pause = BACK_OFF[0]
        while self._channels():
            started = time.monotonic()
            try:
                with self.working:
                    self._listen()
            except Exception as error:  # noqa: BLE001 - whatever the driver raises
                if time.monotonic() - started > CHECK_INTERVAL:
                    pause = BACK_OFF[0]
                logger.info("the signals of the ledger do not arrive, and waits poll: %s", error)
                self._interrupted.wait(pause)
                pause = min(2 * pause, BACK_OFF[1])

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Let forks happen during a block of the thread, which waits."""
        self.working.release()
        try:
            yield
        finally:
            self.working.acquire()

    def _channels(self) -> frozenset[Channel]:
        """Return the channels to listen to, in the thread; none if it has to end, which another thread may replace."""
        now = time.monotonic()
        with self._lock:
            self._interrupted.clear()
            if self._thread is not threading.current_thread():
                return frozenset()
            self._used_at.update({channel: now for channel, keys in self._subscribers.items() if keys})
            self._used_at = {channel: at for channel, at in self._used_at.items() if now - at < IDLE_SECONDS}
            if not self._used_at:
                self._thread = None
            return frozenset(self._used_at)

    def _wake(self, channel: Channel, key: str | None, payload: str = "") -> None:
        """Wake the subscribers of a key, or of all keys."""
        with self._lock:
            by_key = self._subscribers.get(channel, {})
            found = by_key.values() if key is None else [by_key.get(key, {})]
            wakes = [wake for subscriptions in found for wake in subscriptions.values()]
        for wake in wakes:
            try:
                wake(payload)
            except Exception:
                logger.exception("a subscriber of the signals of %s failed", channel)

    def _unsubscribe(self, channel: Channel, key: str, subscription: object) -> None:
        with self._lock:
            by_key = self._subscribers.get(channel, {})
            subscriptions = by_key.get(key, {})
            subscriptions.pop(subscription, None)
            if not subscriptions:
                by_key.pop(key, None)


# --- a store that sends notifications ---------------------------------------------------------------------------------


class Feed(ABC):
    """A connection that gets the notifications of channels, by their names. Any exception means that it is lost."""

    def __init__(self, connection: Any, names: Mapping[Channel, str]) -> None:
        self._connection = connection
        self._names = names
        self._channels = {name: channel for channel, name in names.items()}

    def fileno(self) -> int:
        """Return the socket, which is readable when something arrives."""
        return int(self._connection.fileno())

    @abstractmethod
    def change(self, added: Iterable[Channel], removed: Iterable[Channel]) -> None:
        """Begin to listen to the `added` channels, and stop for the `removed` channels."""

    @abstractmethod
    def read(self) -> Iterable[tuple[Channel, str | None, str]]:
        """Return channel, key (None: now listened to) and payload of each signal that has arrived, without waiting."""

    @abstractmethod
    def check(self) -> None:
        """Find out whether the connection still works, at the latest in the next call."""

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _signal(self, name: str, message: str) -> tuple[Channel, str, str]:
        key, _, payload = message.partition("\n")
        return self._channels[name], key, payload


class ConnectedListener(Listener):
    """A thread that listens on a connection of its own, which `connect` opens."""

    _interrupt_file: int | None = None
    """The writing end of a pipe: a write to it ends the wait of the thread."""
    _feed: Feed | None = None

    def __init__(self, connect: Callable[[], Feed], *, polls: bool = False) -> None:
        super().__init__(polls=polls)
        self._connect = connect

    def abandon(self) -> object:
        """Forget everything in a forked child, unclosed."""
        state = super().abandon()
        self._interrupt_file = self._feed = None
        return state

    def _interrupt(self) -> None:
        super()._interrupt()
        if self._interrupt_file is not None:
            with suppress(BlockingIOError):  # it is full
                os.write(self._interrupt_file, b"x")

    def _listen(self) -> None:
        reader, writer = os.pipe()
        try:
            os.set_blocking(reader, False)
            os.set_blocking(writer, False)
            with self._lock:
                self._interrupt_file = writer
            self._feed = feed = self._connect()  # an attribute, so that a forked child keeps it, unclosed
            with closing(feed), selectors.DefaultSelector() as selector:
                selector.register(feed, selectors.EVENT_READ)
                selector.register(reader, selectors.EVENT_READ)
                self._read(feed, selector, reader)
        finally:
            with self._lock:
                self._interrupt_file = None
            os.close(reader)
            os.close(writer)

    def _read(self, feed: Feed, selector: selectors.BaseSelector, interrupts: int) -> None:
        """Read a connection; `interrupts` becomes readable when the channels are to be looked at again."""
        channels: frozenset[Channel] = frozenset()
        while wanted := self._channels():
            if wanted != channels:
                feed.change(wanted - channels, channels - wanted)
                channels = wanted
            for channel, key, payload in feed.read():
                self._wake(channel, key, payload)
            with self._waiting():
                ready = selector.select(CHECK_INTERVAL)
            if not ready:
                feed.check()
            if interrupts in {key.fd for key, _ in ready}:  # with eventlet, any other read of it would wait
                os.read(interrupts, 4096)


_listeners: WeakSet[Listener] = WeakSet()
_stopped = ForkLocks()
"""The listeners whose threads wait while this thread forks."""
os.register_at_fork(
    before=lambda: _stopped.acquire(each.working for each in [*_listeners]),
    after_in_parent=_stopped.release,
    after_in_child=_stopped.forget,
)
