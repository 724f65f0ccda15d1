"""Delivers jobs from the ledger to the consumers of `broker_url = "onejob://"`: the row of a job is its message."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from celery import Celery

from onejob.celery.app_state import app_state_of
from onejob.celery.messages.payload import read_message
from onejob.concurrency.loops import Loop
from onejob.errors import StoreError, describe
from onejob.jobs.model import JobRow
from onejob.ledger.sweep import note_publication
from onejob.stores.protocol import JOB, DeliveringStore

logger = logging.getLogger("onejob")

ASK_AFTER = 0.005
"""Seconds after which a worker that was idle asks for the time of its next due job: first its processes get jobs."""
LOCKED_PAUSES = (0.001, 0.1)
"""Seconds between two looks for due jobs whose rows are locked: at first, doubled each time, and at most."""


class Taken(NamedTuple):
    """A message that a source has given to a consumer."""

    tag: str
    queue: str
    payload: dict[str, Any]
    """The message as kombu's virtual transports have it."""
    counts: bool = True
    """Whether the message counts as one that its consumer prefetches."""


class Delivered(NamedTuple):
    """The jobs that one statement has taken."""

    jobs: Sequence[JobRow]
    is_full: bool
    due_at: float | None
    """When the next job that no signal announces is due, on the monotonic clock; None: no such job is known."""


class Request:
    """A request for jobs to the thread, and its answer."""

    def __init__(self, queues: Sequence[str], limit: int) -> None:
        self.queues, self.limit = tuple(queues), limit
        self.answer: Delivered | Exception | None = None
        self.is_stale = False
        """Whether jobs may have come since, which the request does not find."""


class Prefetch:
    """Takes jobs in a thread, one statement at a time, while a worker's event loop serves its processes.

    `announce` is called with the queues of an answer. Any thread may call the methods.
    """

    def __init__(
        self, deliver: Callable[[Sequence[str], int], Delivered], give_back: Callable[[Sequence[JobRow]], None],
        announce: Callable[[Sequence[str]], None],
    ) -> None:  # fmt: skip
        self._deliver, self._give_back, self._announce = deliver, give_back, announce
        self._lock = threading.Lock()
        self._request: Request | None = None
        self._loop: Loop | None = None

    def request(self, queues: Sequence[str], limit: int) -> bool:
        """Let the thread take jobs and announce the answer; return False, without effect, while a request is open."""
        with self._lock:
            if self._request is not None:
                return False
            self._request = Request(queues, limit)
            if self._loop is None:
                self._loop = Loop("onejob-delivery", threading.TIMEOUT_MAX, self._fetch, pause=0.0)
                self._loop.start()
            self._loop.wake()
            return True

    @property
    def queues(self) -> Sequence[str]:
        """The queues of the request whose answer nobody has collected; empty without a request."""
        request = self._request
        return () if request is None else request.queues

    def collect(self) -> Delivered | None:
        """Return the answer to the request, once; None: none yet. Raises `StoreError`, and all errors of the thread."""
        with self._lock:
            request = self._request
            if request is None or request.answer is None:
                return None
            self._request = None
        if isinstance(request.answer, Exception):
            raise request.answer
        return request.answer._replace(is_full=request.answer.is_full or request.is_stale)

    def note_arrival(self) -> None:
        """Note that jobs may have come that the request, which began before, did not find."""
        request = self._request
        if request is not None:
            request.is_stale = True

    def cancel(self) -> None:
        """Give back the jobs that were taken, or are being taken, and not collected."""
        with self._lock:
            request, self._request = self._request, None
        if request is not None and isinstance(request.answer, Delivered):
            self._give_back(request.answer.jobs)

    def close(self) -> None:
        """Cancel the request, and end the thread."""
        self.cancel()
        if self._loop is not None:
            self._loop.stop()
            self._loop = None

    def _fetch(self) -> None:
        request = self._request
        if request is None or request.answer is not None:
            return
        answer: Delivered | Exception
        try:
            answer = self._deliver(request.queues, request.limit)
        except Exception as error:  # noqa: BLE001 - it is raised where the answer is collected
            answer = error
        with self._lock:
            is_canceled = self._request is not request
            request.answer = None if is_canceled else answer
        if not is_canceled:
            self._announce(request.queues)
        elif isinstance(answer, Delivered):
            self._give_back(answer.jobs)


class JobMessages:
    """The source of a transport's messages that are jobs. `announce`, in any thread, lets consumers take from it."""

    signal = JOB
    has_loop = False
    """Whether the consumers' thread runs an event loop, which must not be blocked."""

    def __init__(
        self, app: Celery, announce: Callable[[JobMessages, Sequence[str]], None], *, takes_for_pool: bool = False
    ) -> None:
        self._takes_for_pool = takes_for_pool
        """Whether a pool that feeds itself takes the jobs, for as many places as it has; no consumer then does."""
        self._app_state = app_state_of(app)
        self.prefetch = Prefetch(self._deliver, self._offer, partial(announce, self))
        self._held: dict[str, JobRow] = {}
        """The jobs that no process has accepted, by tag."""
        self._waiting: set[str] = set()
        """The tags of the jobs that were held at the last renewal."""
        self._due_at: dict[str, float] = {}
        """When the next job of each queue that no signal announces is due, on the monotonic clock."""
        self._locked_pause = 0.0
        """Seconds after which due jobs that were locked are looked for again."""
        self._tasks = app.tasks
        self._refused: set[str] = set()
        """The tasks whose jobs are left to other workers, since this worker lacks the tasks."""

    @property
    def has_limit(self) -> bool:
        """Whether a worker takes the jobs."""
        return self._takes_for_pool or self._app_state.slots is not None

    def note_arrival(self) -> None:
        """Note that jobs may have come: for an open request, and for a pool that feeds itself."""
        self.prefetch.note_arrival()
        self._app_state.wake_feed()

    def take(self, queues: Sequence[str], limit: int, *, no_ack: bool) -> tuple[list[Taken], bool]:
        """Return due jobs of queues, and whether there may be more; none with `no_ack`, as for replies."""
        if no_ack or not queues or self._app_state.is_fed is not self._takes_for_pool:
            return [], False
        found = self._collect_or_deliver(queues, limit)
        if not isinstance(found, Delivered):
            return [], found
        self._note_due(queues, found)
        lacked = [job for job in found.jobs if self._lacks_task(job)]  # offered to the workers that have their tasks
        for task in sorted({job.task for job in lacked} - self._refused):
            logger.warning("jobs of %s are left to other workers: this one has no such task", task)
        self._refused.update(job.task for job in lacked)
        self._offer(lacked)
        taken = [self._take(job) for job in found.jobs if job not in lacked]
        return [each for each in taken if each is not None], found.is_full or bool(lacked)

    def _collect_or_deliver(self, queues: Sequence[str], limit: int) -> Delivered | bool:
        """Return a delivery; or without jobs, whether there may be some: False if their delivery will be announced."""
        if self.prefetch.queues:
            is_own = {*self.prefetch.queues} <= {*queues}
            return (self.prefetch.collect() or False) if is_own else True
        slots = None if self._takes_for_pool else self._app_state.slots
        if slots is not None:
            limit = slots.count_wanted([job.id for job in [*self._held.values()]])
        if limit <= 0:
            self._forget_due(queues)  # a free place is waited for, whatever becomes due meanwhile
            return True
        if slots is None or not self.has_loop:
            return self._deliver(queues, limit)
        if self._held or slots.is_busy:
            self._forget_due(queues)
            return not self.prefetch.request(queues, limit)
        return self._deliver(queues, limit, asks_later=True)

    def _deliver(self, queues: Sequence[str], limit: int, *, asks_later: bool = False) -> Delivered:
        """Take jobs, and find out when the next job is due; `asks_later`: only after the processes have got theirs."""
        refused = [task for task in [*self._refused] if task not in self._tasks]
        store = cast("DeliveringStore", self._app_state.ledger.store)
        deliver = partial(store.deliver, queues, limit=limit, refused=refused)
        jobs, seconds = deliver(), None
        if len(jobs) < limit and not (jobs and asks_later):
            try:
                seconds = store.next_delivery(queues, refused=refused)
                is_locked = not jobs and seconds is not None and seconds <= 0
                if is_locked:  # as by a client that begins to wait for it
                    jobs = deliver()
            except StoreError:
                if not jobs:
                    raise
                seconds = 0.0  # the next delivery meets the error again
        if len(jobs) == limit:
            return Delivered(jobs, is_full=True, due_at=None)
        if jobs and asks_later:
            seconds = ASK_AFTER
        return Delivered(jobs, is_full=False, due_at=None if seconds is None else time.monotonic() + seconds)

    def _note_due(self, queues: Sequence[str], found: Delivered) -> None:
        """Note when to look again: less and less often for due jobs that are locked, e.g. by a user's transaction."""
        now, due_at = time.monotonic(), found.due_at
        is_locked = not found.jobs and due_at is not None and due_at <= now
        self._locked_pause = min(2 * self._locked_pause or LOCKED_PAUSES[0], LOCKED_PAUSES[1]) if is_locked else 0.0
        self._forget_due(queues)
        if due_at is not None:
            self._due_at.update(dict.fromkeys(queues, max(due_at, now + self._locked_pause)))

    def _forget_due(self, queues: Sequence[str]) -> None:
        for queue in queues:
            self._due_at.pop(queue, None)

    def _lacks_task(self, job: JobRow) -> bool:
        """Return whether a worker took a job that it cannot run, as in a rolling deployment."""
        if job.task in self._tasks or not self.has_limit:
            return False
        message = read_message(job)
        return message is not None and message.task not in self._tasks

    def _offer(self, jobs: Sequence[JobRow]) -> None:
        self._app_state.ledger.mark_lost([job.id for job in jobs])

    def _take(self, job: JobRow) -> Taken | None:
        tag = f"job {job.id} {job.attempt}"  # its next run may come before the end of this one is acknowledged
        if tag in self._held:
            return None  # it was offered to other workers, and still waits here
        try:
            payload = self._app_state.publisher.payload_of(job, tag)
        except Exception as error:  # noqa: BLE001 - whatever Celery raises for what it cannot send
            logger.warning("job %s cannot be delivered: %s", job.id, describe(error))
            note_publication(self._app_state.ledger, job, describe(error), delays_run=True)
            return None
        self._held[tag] = job
        return Taken(tag, job.queue, payload, counts=not self.has_limit)

    def ack(self, tags: Sequence[str]) -> None:
        """Forget jobs: a process has accepted them, and claims them."""
        for tag in tags:
            self._held.pop(tag, None)

    def requeue(self, tags: Sequence[str]) -> None:
        """Offer jobs again."""
        self._offer([job for tag in tags if (job := self._held.pop(tag, None)) is not None])

    def cancel(self) -> None:
        """Offer jobs again that no consumer has got yet, and forget when jobs of the queues are due."""
        self.prefetch.cancel()
        self._due_at.clear()

    def renew(self, queues: Sequence[str]) -> bool:  # noqa: ARG002 - of the protocol
        """Offer jobs to other workers that have waited here since the last call, behind a long run or a rate limit."""
        held = {**self._held}
        late = [job for tag, job in held.items() if tag in self._waiting]
        self._waiting = held.keys() - self._waiting
        self._offer(late)
        return bool(held)

    def due_at(self) -> float | None:
        """Return when the next job that no signal announces is due, on the monotonic clock; None: no job is known."""
        return min([*self._due_at.values()], default=None)

    def pop_due(self, now: float) -> bool:
        """Return whether a job that no signal announces is due, and forget it: the following delivery knows more."""
        due = [queue for queue, at in [*self._due_at.items()] if at <= now]
        self._forget_due(due)
        return bool(due)
