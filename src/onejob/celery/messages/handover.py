"""Chooses how the jobs of one app get to its workers: from the ledger, from the store's Redis, or another broker.

`choose` decides once for each app. Other modules use the methods of `AppHandover`, and never ask which class it is.
"""

# ruff: noqa: D102 - a method is explained where it is promised: in the base class

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded
from redis.crc import key_slot

from onejob.celery.messages.broker import SCHEME, Broker, is_reset
from onejob.celery.messages.message_builder import AmqpBroker, RedisBroker
from onejob.jobs.handover import BY_CALLER, OFFERED, BrokerMessage, Handover, Way, by_sweep, held, is_plain
from onejob.jobs.model import JobRow, Submission
from onejob.ledger.ledger import Ledger
from onejob.stores.protocol import MessagePushingStore

OUTAGE_PAUSE = 5.0
"""Seconds after an outage in which no message is written for the store."""


class AppHandover(ABC):
    """The hand-over of one app's waiting jobs to its workers."""

    takes_jobs = False
    """Whether workers take jobs from the ledger, which then has no messages of jobs."""
    needs_evidence = True
    """Whether a sweep needs evidence that a message has left its queue."""
    way = Way.CALLER
    """The way to a worker of a job that is due after it has waited in the ledger."""
    shares_broker = False
    """Whether the store can push messages to the broker, and pop them, since they are on one Redis."""
    sweep_factor = 1.0
    """How many times longer than usual a worker pauses between sweeps."""

    @abstractmethod
    def by_store(self, job: JobRow | Submission) -> Handover | None:
        """Return the hand-over of a job that is due now by the store alone; None: a message has to be sent."""

    def of(self, job: JobRow | Submission) -> Handover:
        """Return the hand-over of a job that is due now: by the store, or else by a message that this process sends."""
        return self.by_store(job) or BY_CALLER

    def workers_take(self, job: JobRow) -> bool:  # noqa: ARG002 - for those that do
        """Return whether workers take a job from the ledger when it is due."""
        return False

    def hold(self, after: float) -> Handover:
        """Return the hand-over of a job that waits so many seconds for a sweep, while no worker gets it."""
        return by_sweep(after)

    def offer(self, jobs: Sequence[JobRow]) -> Sequence[JobRow]:
        """Offer jobs to the workers that take jobs from the ledger; return the jobs whose messages have to be sent."""
        return jobs


class LedgerHandover(AppHandover):
    """The hand-over of `broker_url="onejob://"`: workers take jobs from the ledger, except jobs with other routes."""

    takes_jobs = True
    needs_evidence = False
    way = Way.OFFERED
    sweep_factor = 2.0  # a sweep publishes nothing, and needs no haste

    def __init__(self, ledger: Callable[[], Ledger]) -> None:
        self._ledger = ledger

    def by_store(self, job: JobRow | Submission) -> Handover | None:
        if isinstance(job, JobRow) and (job.follows_id is not None or job.state.final):  # it has no run, but a message
            return None
        return OFFERED if is_plain(job.route) else None

    def workers_take(self, job: JobRow) -> bool:
        return self.by_store(job) is not None

    def hold(self, after: float) -> Handover:
        return held(after)

    def offer(self, jobs: Sequence[JobRow]) -> Sequence[JobRow]:
        taken = {job.id: job for job in jobs if self.workers_take(job)}
        self._ledger().mark_lost([job.id for job in taken.values() if job.published_at is not None])
        return [job for job in jobs if job.id not in taken]


class StoreHandover(AppHandover):
    """The hand-over with a store in Redis, which pushes messages with their rows if that Redis is the broker, too."""

    def __init__(
        self, store: MessagePushingStore, broker: Broker, connect: Callable[[], RedisBroker | AmqpBroker | None]
    ) -> None:
        self._store = store
        self._address = store.address
        self._broker = broker
        self._connect = connect
        self._away_until = 0.0

    @property
    def shares_broker(self) -> bool:  # type: ignore[override] # known once it is connected
        broker = self._shared_broker()
        return broker is not None and not broker.is_cluster

    def by_store(self, job: JobRow | Submission) -> Handover | None:
        broker = self._shared_broker()
        if broker is None:
            return None
        try:
            message: BrokerMessage | None = broker.write(job)
        except Exception as error:  # noqa: BLE001 - what sends it afterwards raises it
            if not is_reset(error):  # as a server does with an idle connection
                self._note_outage(error)
            return None
        if message is None:
            return None
        if broker.is_cluster and key_slot(message.destination.encode()) != self._store.slot:
            return None  # one script can write to one slot
        return Handover(Way.PUSHED, None, message)

    def _shared_broker(self) -> RedisBroker | None:
        """Return the broker if it is the store's Redis; None, too, while it cannot be reached."""
        if time.monotonic() < self._away_until:
            return None
        try:
            broker = self._connect()
        except Exception as error:  # noqa: BLE001 - what sends the message afterwards raises it
            self._note_outage(error)
            return None
        return broker if isinstance(broker, RedisBroker) and broker.address == self._address else None

    def _note_outage(self, error: Exception) -> None:
        """Write no message for `OUTAGE_PAUSE` seconds if the error means that the broker is away."""
        if isinstance(error, SoftTimeLimitExceeded):
            raise error
        if self._broker.is_outage(error):
            self._away_until = time.monotonic() + OUTAGE_PAUSE


class BrokerHandover(AppHandover):
    """The hand-over to a broker that is not the store: a process sends each message."""

    def by_store(self, job: JobRow | Submission) -> Handover | None:  # noqa: ARG002 - the store cannot
        return None


def choose(
    app: Celery, ledger: Callable[[], Ledger], broker: Broker, connect: Callable[[], RedisBroker | AmqpBroker | None]
) -> AppHandover:
    """Return the hand-over of an app's jobs. `connect` returns the app's broker if messages can be written for it.

    Raises `ConfigurationError` for a ledger that cannot be used.
    """
    transport = app.connection_for_write().transport_cls
    if str(transport) == SCHEME and not app.conf.task_send_sent_event:
        return LedgerHandover(ledger)
    store = ledger().store
    return StoreHandover(store, broker, connect) if isinstance(store, MessagePushingStore) else BrokerHandover()
