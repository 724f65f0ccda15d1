"""The deliveries of one node: a bounded queue with a thread pool, and one attempt: claim, send, record the result.

A slow receiver delays no other host or submitter: threads and queued deliveries are limited in total, per submitter and
per host (see `FairSlots`), and submitters take turns. `put` refuses a job that exceeds a limit; a later sweep, of this
worker or another, offers the job again.
"""

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from http import HTTPStatus
from typing import NamedTuple

from onejob.errors import ConfigurationError, InvalidArgumentsError, LeaseLost, StaleTokenError, StoreError
from onejob.jobs.handover import BY_SWEEP, by_sweep
from onejob.jobs.lifecycle import State
from onejob.jobs.model import JobRow
from onejob.jobs.transitions import new_nonce
from onejob.ledger.ledger import Ledger, NextRun
from onejob.observability import tracing
from onejob.webhooks.client import (
    MAX_RETRY_AFTER,
    DeliveryError,
    FairSlots,
    LookupBusyError,
    WebhookClient,
    WebhookResponse,
)
from onejob.webhooks.job import LEASE, SCHEDULE, WebhookPayload, build_event, build_headers
from onejob.webhooks.settings import WebhookSettings, WebhookUrl, parse_ip

logger = logging.getLogger("onejob")
THREADS = 64
THREADS_PER_HOST = 2
QUEUE_LIMIT = 1000
QUEUE_LIMIT_PER_HOST = 100
THREAD_NAME = "onejob-webhook"


class _Item(NamedTuple):
    submitter: str
    host: str
    job: JobRow


class DeliveryQueue:
    """Calls `deliver` for each queued job in a pool of daemon threads, which start on demand."""

    def __init__(self, deliver: Callable[[JobRow], None]) -> None:
        self._deliver = deliver
        self._lock = threading.Lock()
        self._queued: dict[str, _Item] = {}
        self._in_flight: dict[str, _Item] = {}
        self._queue_slots = FairSlots(QUEUE_LIMIT, QUEUE_LIMIT_PER_HOST)
        self._thread_slots = FairSlots(THREADS, THREADS_PER_HOST)
        self._turns: dict[str, int] = {}
        """By submitter with queued jobs, the number of its latest turn."""
        self._turn = 0
        self._threads = 0
        self._open = True

    def put(self, job: JobRow) -> bool:
        """Queue a job. Returns whether it is queued or in flight; False: a limit is reached, or the queue is closed."""
        try:
            host = WebhookUrl.parse(WebhookPayload.from_job(job).url).host
        except InvalidArgumentsError:
            host = ""
        item = _Item(job.submitter, str(parse_ip(host) or host), job)
        with self._lock:
            is_new = job.id not in self._queued and job.id not in self._in_flight
            if is_new and not (self._open and self._queue_slots.acquire(item.submitter, item.host)):
                return False
            if is_new:
                self._queued[job.id] = item
            if self._threads < (THREADS if is_new else 1):
                with suppress(RuntimeError):  # no more threads: the others, or the next `put`, deliver it
                    threading.Thread(target=self._run, name=THREAD_NAME, daemon=True).start()
                    self._threads += 1
        return True

    def close(self, grace: float) -> None:
        """Discard the queue, refuse further jobs, and wait up to `grace` seconds for deliveries in flight."""
        with self._lock:
            self._open = False
            self._queued.clear()
        deadline = time.monotonic() + grace
        while self._in_flight and time.monotonic() < deadline:
            time.sleep(0.05)

    def _run(self) -> None:
        """Deliver until no queued job is within the limits."""
        while (item := self._next_item()) is not None:
            try:
                self._deliver(item.job)
            except Exception:
                logger.exception("webhook %s: internal error; it is retried when its lease expires", item.job.id)
            finally:
                with self._lock:
                    del self._in_flight[item.job.id]
                    self._thread_slots.release(item.submitter, item.host)

    def _next_item(self) -> _Item | None:
        """Take the next item within the limits; None ends the thread.

        Submitters with few deliveries in flight precede submitters with many; first attempts precede retries.
        """

        def rank(item: _Item) -> tuple[int, int, bool]:
            turn = self._turns.get(item.submitter, 0)
            return self._thread_slots.used_by(item.submitter), turn, item.job.retries > 0

        with self._lock:
            for item in sorted(self._queued.values(), key=rank):
                if self._thread_slots.acquire(item.submitter, item.host):
                    self._in_flight[item.job.id] = self._queued.pop(item.job.id)
                    self._queue_slots.release(item.submitter, item.host)
                    self._turn += 1
                    self._turns[item.submitter] = self._turn
                    if not self._queued or len(self._turns) > QUEUE_LIMIT:
                        self._turns.clear()
                    return item
            self._threads -= 1
            return None


EVENT_STEP = "event"
"""The step that keeps the id of the stored event, so that every attempt sends the same bytes."""
KEPT_LONGER = 2 * LEASE
"""Seconds for which an event is kept beyond an attempt: the attempt after a killed worker follows the lease."""
LOOKUP_BUSY_SECONDS = 2.0
"""Seconds until a webhook without a DNS lookup, because too many hang, is due again."""
JITTER = 0.1
BUSY = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})


class Delivery:
    """Delivers the webhooks of a ledger for one node.

    `namespace`: of the ledger. `schedule`: seconds between a failed attempt and the next one.
    """

    def __init__(
        self, ledger: Ledger, settings: WebhookSettings, client: WebhookClient, node: str, *, namespace: str,
        schedule: tuple[float, ...] = SCHEDULE,
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._settings = settings
        self._client = client
        self._node = node
        self._namespace = namespace
        self._schedule = schedule
        self._in_flight: dict[str, JobRow] = {}

    def deliver(self, webhook: JobRow) -> None:
        """Make the attempt that is due; skip it if it cannot be claimed."""
        try:
            claimed = self._ledger.claim(webhook.id, nonce=new_nonce(), node=self._node)
            if claimed.applied and claimed.job is not None:
                self._in_flight[webhook.id] = claimed.job
                self._attempt(claimed.job)
        except (StaleTokenError, LeaseLost) as error:
            logger.warning("webhook %s: %s", webhook.id, error)
        except StoreError as error:
            logger.warning("webhook %s: store error; it is retried when its lease expires: %s", webhook.id, error)
        finally:
            self._in_flight.pop(webhook.id, None)

    def release_all(self) -> None:
        """Release the webhooks in flight to other nodes, because this node is shutting down."""
        for webhook in self._in_flight.copy().values():
            try:
                self._ledger.release(webhook, "its worker was shut down", handover=BY_SWEEP)
            except (StaleTokenError, StoreError) as error:
                logger.info("webhook %s: %s", webhook.id, error)

    def _attempt(self, webhook: JobRow) -> None:
        payload = WebhookPayload.from_job(webhook)
        try:
            with tracing.tracer.deliver(webhook, payload.job_id, payload.url) as span:
                response = self._send(webhook, payload, span.headers)
                span.record(response.status)
        except LookupBusyError as error:
            self._ledger.release(webhook, str(error), handover=by_sweep(LOOKUP_BUSY_SECONDS))
            return
        except (DeliveryError, InvalidArgumentsError) as error:
            self._record_failure(webhook, type(error).__name__, str(error))
            return
        if response.ok:
            self._ledger.complete(webhook, json.dumps({"status": response.status}))
            return
        excerpt = f": {response.excerpt}" if response.excerpt else ""
        self._record_failure(webhook, "Refused", f"the receiver answered {response.status}{excerpt}", response)

    def _send(self, webhook: JobRow, payload: WebhookPayload, trace: Mapping[str, str]) -> WebhookResponse:
        try:
            self._settings.check_signer(payload.signer)
        except ConfigurationError as error:
            raise DeliveryError(f"this worker cannot sign it: {error}") from error
        secrets = self._settings.secrets_of(payload.signer)
        event = self._event(webhook, payload.job_id).removeprefix("{")
        body = f'{{"id":{json.dumps(webhook.id)},{event}'  # only the id differs between the webhooks of a job
        headers = [*build_headers(webhook.id, body, secrets, at=datetime.now(UTC)), *trace.items()]
        return self._client.send(payload.url, body.encode(), headers, submitter=webhook.submitter)

    def _event(self, webhook: JobRow, job_id: str) -> str:
        """Return the event, which the first attempt of all webhooks of a job builds and stores."""
        event_id = self._event_id(webhook)
        if event_id is None:
            job = self._ledger.get_or_none(job_id)
            if job is None:
                raise DeliveryError(f"job {job_id} was purged before the first attempt")
            if not job.state.final:
                raise DeliveryError(f"job {job_id} was redriven before the first attempt, and is {job.state}")
            event_id = f"{job.id} {job.submission_nonce} {job.finished_at}"
            event = build_event(job, namespace=self._namespace)
            # Kept as long as the job, whose other webhooks find it.
            keep_for = max(self._ledger.settings.retention[job.state], KEPT_LONGER)
            stored = self._ledger.keep_event(event_id, event, keep_for=keep_for)
            self._ledger.keep_step(webhook, EVENT_STEP, json.dumps(event_id))
        else:
            stored = self._ledger.keep_event(event_id, None, keep_for=KEPT_LONGER)
        if stored is None:
            raise DeliveryError(f"the event of job {job_id} is no longer stored")
        return stored

    def _event_id(self, webhook: JobRow) -> str | None:
        """Return the id of the stored event; None before the first attempt."""
        step = self._ledger.steps(webhook).get(EVENT_STEP)
        return None if step is None else str(json.loads(step))

    def _record_failure(self, webhook: JobRow, kind: str, why: str, response: WebhookResponse | None = None) -> None:
        """Schedule the next attempt; after the last one, or 410 Gone, make the webhook a dead letter."""
        event_id, schedule = self._event_id(webhook), self._schedule
        if event_id is not None:  # kept until the next attempt, and then as long as a dead letter may be redriven
            longest = max((*schedule, MAX_RETRY_AFTER)) * (1 + JITTER)
            retention = self._ledger.settings.retention[State.FAILED]
            self._ledger.keep_event(event_id, None, keep_for=longest + KEPT_LONGER + retention)
        error = json.dumps({"type": kind, "message": why, "traceback": ""})
        gone = response is not None and response.status == HTTPStatus.GONE
        if gone or webhook.retries >= len(schedule):
            detail = "410 means no further attempts" if gone else f"that was attempt {webhook.retries + 1}, the last"
            self._ledger.fail(webhook, error, f"{why}; {detail}")
            return
        delay = schedule[webhook.retries] * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - no secret
        if response is not None and response.status in BUSY:
            delay = max(delay, response.retry_after)
        next_run = NextRun.again(webhook, delay=delay, retries=webhook.retries + 1)
        self._ledger.retry(webhook, next_run, error=error, reason=f"{why}; next attempt in {delay:.0f} s")
