"""One delivery attempt of one webhook: claim its job, send the event, record the result in the ledger."""

from __future__ import annotations

import json
import logging
import random
import threading
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING

from onejob.errors import InvalidArgumentsError, LeaseLost, StaleTokenError, StoreError
from onejob.jobs.lifecycle import State
from onejob.jobs.transitions import new_nonce
from onejob.ledger.ledger import NextRun
from onejob.observability import tracing
from onejob.webhooks.client import MAX_RETRY_AFTER, DeliveryError, LookupBusyError
from onejob.webhooks.job import LEASE, WebhookPayload, build_body, build_event, build_headers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onejob.jobs.model import Job
    from onejob.ledger.ledger import Ledger
    from onejob.webhooks.client import WebhookClient, WebhookResponse
    from onejob.webhooks.settings import WebhookSettings

logger = logging.getLogger("onejob")
EVENT_STEP = "event"
"""The step that keeps the id of the stored event, so that every attempt sends the same bytes."""
LOOKUP_BUSY_SECONDS = 2.0
"""Seconds until a webhook is due again for which no DNS lookup could be started."""
JITTER = 0.1
BUSY = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})


class Delivery:
    """Delivers webhooks for one node."""

    def __init__(self, ledger: Ledger, settings: WebhookSettings, client: WebhookClient, node: str) -> None:
        self._ledger = ledger
        self._settings = settings
        self._client = client
        self._node = node
        self._in_flight: dict[str, Job] = {}
        self._lock = threading.Lock()

    def deliver(self, webhook: Job) -> None:
        """Make the attempt that is due; skip it if it cannot be claimed."""
        try:
            self._claim_and_attempt(webhook)
        except (StaleTokenError, LeaseLost) as error:
            logger.warning("webhook %s: %s", webhook.id, error)
        except StoreError as error:
            logger.warning("webhook %s: store error; it is retried when its lease expires: %s", webhook.id, error)

    def release_all(self) -> None:
        """Release the webhooks in flight to other nodes, because this one is shutting down."""
        with self._lock:
            webhooks = [*self._in_flight.values()]
        for webhook in webhooks:
            try:
                self._ledger.release(webhook, "its worker was shut down", wake_after=0.0)
            except (StaleTokenError, StoreError) as error:
                logger.info("webhook %s: %s", webhook.id, error)

    def _claim_and_attempt(self, webhook: Job) -> None:
        claimed = self._ledger.claim(webhook.id, nonce=new_nonce(), node=self._node)
        if not claimed.applied or claimed.job is None:
            return
        with self._lock:
            self._in_flight[webhook.id] = claimed.job
        try:
            self._attempt(claimed.job)
        finally:
            with self._lock:
                del self._in_flight[webhook.id]

    def _attempt(self, webhook: Job) -> None:
        try:
            with tracing.tracer.deliver(webhook) as span:
                response = self._send(webhook, span.headers)
                span.record(response.status)
        except LookupBusyError as error:
            self._ledger.release(webhook, str(error), wake_after=LOOKUP_BUSY_SECONDS)
            return
        except (DeliveryError, InvalidArgumentsError) as error:
            self._record_failure(webhook, type(error).__name__, str(error))
            return
        if response.ok:
            self._ledger.complete(webhook, json.dumps({"status": response.status}))
            return
        excerpt = f": {response.excerpt}" if response.excerpt else ""
        self._record_failure(webhook, "Refused", f"the receiver answered {response.status}{excerpt}", response)

    def _send(self, webhook: Job, trace: Mapping[str, str]) -> WebhookResponse:
        payload = WebhookPayload.from_job(webhook)
        secrets = self._settings.secrets_of(payload.signer)
        if not secrets:
            msg = f"onejob_webhook_submitter_secrets of this worker has no secret for {payload.signer!r}"
            raise DeliveryError(msg)
        body = build_body(self._event(webhook, payload.job_id), webhook.id)
        headers = [*build_headers(webhook.id, body, secrets, at=datetime.now(UTC)), *trace.items()]
        return self._client.send(payload.url, body.encode(), headers, submitter=webhook.submitter)

    def _event(self, webhook: Job, job_id: str) -> str:
        """Return the event, which the first attempt of all webhooks of a job builds and stores."""
        event_id = self._event_id(webhook)
        if event_id is None:
            job = self._get_ended(job_id)
            event_id = f"{job.id} {job.submission_nonce} {job.finished_at}"
            event = build_event(job, source=self._settings.source)
            # Kept as long as the job, whose other webhooks find it.
            stored = self._ledger.keep_event(event_id, event, keep_for=self._ledger.policy.retention[job.state])
            self._ledger.keep_step(webhook, EVENT_STEP, json.dumps(event_id))
        else:
            stored = self._ledger.keep_event(event_id, None, keep_for=LEASE)
        if stored is None:
            msg = f"the event of job {job_id} is no longer stored"
            raise DeliveryError(msg)
        return stored

    def _event_id(self, webhook: Job) -> str | None:
        """Return the id of the stored event; None before the first attempt."""
        step = self._ledger.steps(webhook).get(EVENT_STEP)
        return None if step is None else str(json.loads(step))

    def _get_ended(self, job_id: str) -> Job:
        """Return the followed job. Raises `DeliveryError` if it has not ended, or was purged."""
        job = self._ledger.get_or_none(job_id)
        if job is None:
            msg = f"job {job_id} was purged before the first attempt"
            raise DeliveryError(msg)
        if not job.state.final:
            msg = f"job {job_id} was redriven before the first attempt, and is {job.state}"
            raise DeliveryError(msg)
        return job

    def _record_failure(self, webhook: Job, kind: str, why: str, response: WebhookResponse | None = None) -> None:
        """Schedule the next attempt; after the last one, or 410 Gone, make the webhook a dead letter."""
        self._keep_for_retries(webhook)
        error = json.dumps({"type": kind, "message": why, "traceback": ""})
        schedule = self._settings.schedule
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

    def _keep_for_retries(self, webhook: Job) -> None:
        """Keep the event of a failed attempt until the next one, and then as long as a dead letter may be redriven."""
        event_id, retention = self._event_id(webhook), self._ledger.policy.retention[State.FAILED]
        if event_id is not None:
            longest = max((*self._settings.schedule, MAX_RETRY_AFTER))
            self._ledger.keep_event(event_id, None, keep_for=longest + retention)
