"""Delivers jobs from the ledger to the consumers of `broker_url = "onejob://"`: the row of a job is its message."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, NamedTuple, cast

from onejob.celery.app_state import app_state_of
from onejob.celery.channel import Source, Taken
from onejob.errors import StoreError, describe
from onejob.ledger.publication import note_publication
from onejob.stores.signals import JOB

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery import Celery

    from onejob.celery.worker.heartbeat import Loop
    from onejob.jobs.model import Job
    from onejob.stores.protocol import DeliveringStore

logger = logging.getLogger("onejob")

UNASKED_SECONDS = 0.1
"""Seconds after which an idle worker looks again when no process has accepted the jobs that it took."""


class Delivered(NamedTuple):
    """The jobs that one statement has taken."""

    jobs: Sequence[Job]
    is_full: bool
    """Whether there may be more."""
    due_at: float | None
    """When the next job is due of which no signal tells, on the monotonic clock; None: none is known."""


class Prefetch:
    """Takes jobs in a thread, one statement at a time, so that a worker's event loop serves its processes meanwhile.

    `deliver` takes jobs, `give_back` offers jobs again, and `announce` is called when there is an answer.
    """

    def __init__(
        self,
        deliver: Callable[[Sequence[str], int], Delivered],
        give_back: Callable[[Sequence[Job]], None],
        announce: Callable[[], None],
    ) -> None:
        self._deliver, self._give_back, self._announce = deliver, give_back, announce
        self._lock = threading.Lock()
        self._queues: Sequence[str] | None = None
        """The queues of the request; None: there is none."""
        self._limit = 0
        self._answer: Delivered | StoreError | None = None
        self._has_others = False
        """Whether a consumer of other queues has asked meanwhile, and is to ask again when the request has ended."""
        self.is_stale = False
        """Whether jobs may have come since the request, which did not find them. Any thread may set it."""
        self._loop: Loop | None = None

    def request(self, queues: Sequence[str], limit: int) -> None:
        """Take jobs, and announce it."""
        from onejob.celery.worker.heartbeat import Loop  # imports Celery's worker

        with self._lock:
            self._queues, self._limit, self._answer, self.is_stale = [*queues], limit, None, False
        if self._loop is None:
            self._loop = Loop("onejob-delivery", threading.TIMEOUT_MAX, self._fetch, pause=0.0)
            self._loop.start()
        self._loop.wake()

    def collect(self, queues: Sequence[str]) -> Delivered | None:
        """Return the answer to a request for some of these queues, once; None: none yet. Raises `StoreError`."""
        with self._lock:
            is_own = {*(self._queues or ())} <= {*queues}
            self._has_others |= not is_own
            if self._answer is None or not is_own:
                return None
        answer = self._end_request()
        if isinstance(answer, StoreError):
            raise answer
        return answer and answer._replace(is_full=answer.is_full or self.is_stale)

    @property
    def is_requested(self) -> bool:
        """Whether there is a request whose answer nobody has collected."""
        return self._queues is not None

    def cancel(self) -> None:
        """Give back what was taken, or is being taken, and not collected."""
        answer = self._end_request()
        if isinstance(answer, Delivered):
            self._give_back(answer.jobs)

    def _end_request(self) -> Delivered | StoreError | None:
        """End the request, and return its answer if there is one."""
        with self._lock:
            answer, has_others = self._answer, self._has_others
            self._queues, self._answer, self._has_others = None, None, False
        if has_others:
            self._announce()
        return answer

    def close(self) -> None:
        """Cancel the request, and end the thread."""
        self.cancel()
        if self._loop is not None:
            self._loop.stop()
            self._loop = None

    def _fetch(self) -> None:
        with self._lock:
            queues, limit, is_answered = self._queues, self._limit, self._answer is not None
        if queues is None or is_answered:
            return
        answer: Delivered | StoreError
        try:
            answer = self._deliver(queues, limit)
        except StoreError as error:
            answer = error
        with self._lock:
            is_canceled = self._queues is not queues
            self._answer = self._answer if is_canceled else answer
        if not is_canceled:
            self._announce()
        elif isinstance(answer, Delivered):
            self._give_back(answer.jobs)


class JobMessages(Source):
    """The source of a transport's messages that are jobs.

    In a worker the free processes limit how many it takes, and not `worker_prefetch_multiplier`.

    `announce` has the consumers take from this source; any thread may call it.
    """

    signal = JOB

    def __init__(self, app: Celery, announce: Callable[[Source], None]) -> None:
        self._app_state = app_state_of(app)
        self._prefetch = Prefetch(self._deliver, self._offer, lambda: announce(self))
        self.has_loop = False
        """Whether the consumers' thread runs an event loop, which also serves the processes of a pool."""
        self._held: dict[str, Job] = {}
        """The jobs that no process has accepted, by tag."""
        self._waiting: set[str] = set()
        """The tags of those that were held at the last renewal."""
        self._due_at: float | None = None
        """When the next job is due that no signal tells of, on the monotonic clock."""
        self._unasked: Sequence[str] | None = None
        """The queues of which it is not known when their next job is due: that is asked while the latest one runs."""

    @property
    def has_limit(self) -> bool:
        """Whether a worker takes the jobs."""
        return self._app_state.slots is not None

    @property
    def _store(self) -> DeliveringStore:
        return cast("DeliveringStore", self._app_state.ledger.store)

    def take(self, queues: Sequence[str], limit: int, *, no_ack: bool) -> tuple[list[Taken], bool]:
        """Take due jobs of these queues, and tell whether there may be more; none with `no_ack`, as of replies."""
        if no_ack or not queues:
            return [], False
        if self._prefetch.is_requested:
            found = self._prefetch.collect(queues)
        else:
            slots = self._app_state.slots
            if slots is not None:
                limit = slots.count_wanted([job.id for job in self._held.values()])
            if limit <= 0:
                self._due_at = None  # a free place is waited for, whatever becomes due meanwhile
                return [], True
            if slots is None or not self.has_loop:
                found = self._deliver(queues, limit)
            elif self._held or slots.is_busy:
                self._request(queues, limit)
                return [], False
            else:
                found = self._deliver_first(queues, limit)
        if found is None:
            return [], False
        self._due_at = found.due_at
        return [taken for job in found.jobs if (taken := self._take(job)) is not None], found.is_full

    def _request(self, queues: Sequence[str], limit: int) -> None:
        """Have jobs taken in the thread, which announces its answer."""
        self._due_at = None
        self._prefetch.request(queues, limit)

    def _deliver(self, queues: Sequence[str], limit: int) -> Delivered:
        """Take jobs, and find out when the next one is due; `limit` 0: only this."""
        jobs = self._store.deliver(queues, limit=limit) if limit else []
        is_full = 0 < limit == len(jobs)
        seconds = None if is_full else self._store.next_delivery(queues)
        return Delivered(jobs, is_full, None if seconds is None else time.monotonic() + seconds)

    def _deliver_first(self, queues: Sequence[str], limit: int) -> Delivered:
        """Take jobs for an idle worker, which get to its processes before anything else is asked."""
        jobs = self._store.deliver(queues, limit=limit)
        if not jobs:
            found = self._deliver(queues, 0)
            if found.due_at is None or found.due_at > time.monotonic():
                return found
            jobs = self._store.deliver(queues, limit=limit)  # it was locked, as by a client that begins to wait for it
            if not jobs:
                return found
        if len(jobs) == limit:
            return Delivered(jobs, is_full=True, due_at=None)
        self._unasked = queues
        return Delivered(jobs, is_full=False, due_at=time.monotonic() + UNASKED_SECONDS)

    def _offer(self, jobs: Sequence[Job]) -> None:
        self._app_state.ledger.mark_lost([job.id for job in jobs])

    def _take(self, job: Job) -> Taken | None:
        tag = f"job {job.id}"
        try:
            payload = self._app_state.publisher.payload_of(job, tag)
        except Exception as error:  # noqa: BLE001 - whatever Celery raises for what it cannot send
            logger.warning("job %s cannot be delivered: %s", job.id, describe(error))
            note_publication(self._app_state.ledger, job, describe(error))
            return None
        self._held[tag] = job
        return Taken(tag, job.queue, payload, counts=not self.has_limit)

    def ack(self, tags: Sequence[str]) -> None:
        """Forget jobs: a process has accepted them, and claims them."""
        for tag in tags:
            self._held.pop(tag, None)
        queues, self._unasked = self._unasked, None
        if queues is not None and not self._prefetch.is_requested:
            self._request(queues, 0)

    def requeue(self, tags: Sequence[str]) -> None:
        """Offer jobs again."""
        self._offer([job for tag in tags if (job := self._held.pop(tag, None)) is not None])

    def note_arrival(self) -> None:
        """Note that jobs may have come which a delivery that is under way does not find."""
        self._prefetch.is_stale = True

    def cancel(self) -> None:
        """Offer again what no consumer has got yet."""
        self._prefetch.cancel()
        self._due_at = time.monotonic()

    def close(self) -> None:
        """End the thread."""
        self._prefetch.close()

    def renew(self, queues: Sequence[str]) -> bool:  # noqa: ARG002 - of the protocol
        """Offer jobs to other workers that have waited here since the last renewal, behind a long run or a rate limit.

        Whoever claims such a job first runs it. Nothing else is renewed: the worker registers the jobs that it holds.
        """
        held = {**self._held}
        late = [job for tag, job in held.items() if tag in self._waiting]
        self._waiting = held.keys() - self._waiting
        self._offer(late)
        return bool(held)

    def due_at(self) -> float | None:
        """Return when a job becomes due of which no signal tells, on the monotonic clock; None: none is known."""
        return self._due_at
