"""Renews the leases of a worker's runs from its parent process, and recovers the jobs of dead children."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress

from celery import Celery
from celery.utils.nodenames import node_format
from celery.worker import state as worker_state

from onejob.celery.app_state import HEARTBEATS_PER_LEASE, app_state_of
from onejob.celery.slots import members_of
from onejob.celery.submission.options import tasks_of
from onejob.celery.worker.probe import ProbeFile
from onejob.celery.worker.request import Request, log_errors, signaled_requests
from onejob.concurrency.loops import Loop
from onejob.errors import JobCanceled, LeaseLost, StoreError
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Cancel
from onejob.jobs.workers import Registration
from onejob.observability.events import HEARTBEAT_LATE, JobEvent, Value, one_line

logger = logging.getLogger("onejob")
CHILD_CHECK_INTERVAL = 0.5
"""Seconds at most between two checks for dead children."""
RETRIES = frozenset({Transition.RETRY, Transition.REPLACE})
"""The ends of a run after which its child process goes on for a moment while the job may have another run."""


class Heartbeat:
    """Renews the leases of all runs of this node in one call, and kills the runs that were canceled or overtaken."""

    def __init__(self, app: Celery, node: str, register: Callable[[], Registration]) -> None:
        app_state = app_state_of(app)
        self._app_state = app_state
        self._node = node
        self._register = register
        lease = app_state.settings.lease
        shortest = min([lease, *(task._onejob.lease for task in tasks_of(app).values())])
        self._interval = min(app_state.heartbeat, shortest / HEARTBEATS_PER_LEASE)
        self._next_renewal = self._next_heartbeat = 0.0
        self._registered: Registration | None = None
        self.probe_file = ProbeFile(node_format(app_state.settings.probe_file, node))
        self.contact = StoreContact(settling=lease / 2, shortest=shortest, interval=self._interval)
        ticks = math.ceil(self._interval / CHILD_CHECK_INTERVAL)
        self.loop = Loop("onejob-heartbeat", self._interval / ticks, self.tick)
        # In a thread of its own: a dead letter is reported to the result backend, which may not answer for long.
        self.children = Loop("onejob-children", self._interval / ticks, recover_lost)

    def tick(self) -> None:
        """Renew the leases if their renewal is due; after an error, the next tick renews them again."""
        now = time.monotonic()
        self.probe_file.touch()
        if now >= self._next_renewal:
            renewed = self.renew()
            self._send_heartbeat(now, due=not renewed)
            if LATE_FACTOR * self._interval < (gap := self.contact.reached()) < math.inf:
                fields: dict[str, Value] = {"node": one_line(self._node), "seconds": gap, "interval": self._interval}
                self._app_state.ledger.emit(JobEvent(HEARTBEAT_LATE, fields=fields))
            self._next_renewal = now + self._interval

    def _send_heartbeat(self, now: float, *, due: bool) -> None:
        """Send the heartbeat of this node if it is `due` or has changed, or else three times per its lifetime."""
        lasts, registration = self._app_state.settings.lease, self._register()
        if due or now >= self._next_heartbeat or registration != self._registered:
            self._app_state.ledger.heartbeat(self._node, lasts=lasts, registration=registration)
            self._next_heartbeat, self._registered = now + lasts / 3, registration
            self.probe_file.write_contact(silent=registration.silent_since > 0)

    def start(self) -> None:
        """Start the heartbeat, and the search for dead children if the pool has children."""
        self.loop.start()
        if self._app_state.can_kill:
            self.children.start()

    def stop(self) -> None:
        """Stop the heartbeat, and remove this node from the list of workers."""
        self.children.stop()
        self.loop.stop()
        self.probe_file.remove()
        with suppress(StoreError):  # the node's heartbeat expires anyway
            self._app_state.ledger.heartbeat(self._node, lasts=0.0)

    def renew(self) -> bool:
        """Extend the leases, and kill the runs that were canceled by force or overtaken; False without a run."""
        requests = {request.claim: request for request in active_requests()}
        claims = [(request.id, claim) for claim, request in requests.items()]
        for renewal in self._app_state.ledger.renew(claims):
            request = requests[renewal.claim]
            with log_errors(request.id):
                seen_before, request.seen_by_heartbeat = request.seen_by_heartbeat, True
                if seen_before and not renewal.held:
                    self._kill_overtaken(request)
                elif renewal.cancel is not Cancel.NO:
                    request.interrupt(JobCanceled(request.id))
                    if renewal.cancel is Cancel.FORCED and request.kill_child():
                        request.abandon("terminated on request")
        return bool(claims)

    def _kill_overtaken(self, request: Request) -> None:
        """End a run whose job has another run now, unless it has ended in a retry."""
        ledger = self._app_state.ledger
        job = ledger.get_or_none(request.id)
        if job is None or job.state is not State.RUNNING or job.claim == request.claim:
            return
        earlier = {entry.event for entry in ledger.history(request.id) if entry.attempt == job.attempt - 1}
        if earlier & RETRIES:
            return
        request.interrupt(LeaseLost(request.id))
        if request.kill_child():
            logger.warning("job %s has another run now: its old child process here was killed", request.id)


def recover_lost() -> None:
    """Recover the jobs of children that died, long before Celery's own timeout for lost workers."""
    for request in active_requests():
        if request.is_child_dead():
            request.handle_lost_child(f"its worker process {request.worker_pid} died")


def active_requests() -> list[Request]:
    """Return the runs that this node's pool has accepted and that have not surely ended."""
    accepted = {*members_of(worker_state.active_requests), *members_of(signaled_requests)}
    return [request for request in accepted if isinstance(request, Request)]


# --- contact: only after it may a sweeper end expired leases ---------------------------------------------------------


LATE_FACTOR = 1.5
"""After how many intervals since the previous renewal a renewal is late."""


class StoreContact:
    """The times at which a worker renewed its leases.

    While the store is away, the leases of all workers expire, and each worker renews its own as soon as the store is
    back. So a worker ends no lease before `settling` seconds have passed since its contact was last broken.

    `shortest`: the shortest lease of the app. A break is a gap in which a lease can expire that is renewed every
    `interval` seconds: a shorter outage ends no lease. All in seconds.
    `clock` returns seconds that only grow.
    """

    def __init__(
        self, *, settling: float, shortest: float, interval: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._settling = settling
        self._longest_gap = max(shortest - interval, LATE_FACTOR * interval)
        self._since = self._latest = -math.inf

    def reached(self) -> float:
        """Record that the leases were renewed now; return the seconds since the previous time (infinite at first)."""
        previous, self._latest = self._latest, self._clock()
        gap = self._latest - previous
        if gap > self._longest_gap:
            self._since = self._latest
        return gap

    @property
    def steady(self) -> bool:
        """Whether every worker that is alive has had the time to renew its leases since the last outage."""
        now = self._clock()
        return now - self._latest <= self._longest_gap and now - self._since >= self._settling
