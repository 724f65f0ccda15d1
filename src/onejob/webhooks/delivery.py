"""One delivery of one webhook: claim, send, and tell the ledger what came of it."""

from __future__ import annotations

import json
import logging
import random
import threading
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING

from onejob.errors import InvalidArgumentsError, LeaseLost, StaleTokenError, StoreError
from onejob.jobs.lifecycle import Transition
from onejob.jobs.transitions import new_nonce
from onejob.webhooks.client import NotSentError
from onejob.webhooks.cloudevent import cloud_event, headers_of
from onejob.webhooks.job import WebhookCall

if TYPE_CHECKING:
    from onejob.jobs.model import Job
    from onejob.ledger.ledger import Ledger
    from onejob.webhooks.client import Answer, WebhookClient
    from onejob.webhooks.settings import WebhookSettings

logger = logging.getLogger("onejob")
EVENT = "event"
"""The step that keeps what is sent."""
PUT_OFF = 3600.0
"""Until when a webhook sleeps that came too early: the end of its job rings its alarm long before."""
JITTER = 0.1
BUSY = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})


class Delivery:
    """Delivers webhooks for one node."""

    def __init__(self, ledger: Ledger, settings: WebhookSettings, sender: WebhookClient, node: str) -> None:
        self._ledger = ledger
        self._settings = settings
        self._sender = sender
        self._node = node
        self._under_way: dict[str, Job] = {}
        self._lock = threading.Lock()

    def deliver(self, job: Job) -> None:
        """Make the attempt that is due, if it is still to be made."""
        try:
            if not self._comes_too_early(job):
                self._claim_and_attempt(job)
        except (StaleTokenError, LeaseLost) as error:
            logger.warning("webhook %s: %s", job.id, error)
        except StoreError as error:
            logger.warning("webhook %s: the ledger failed, its lease will heal it: %s", job.id, error)

    def hand_back(self) -> None:
        """Give what is under way back to the ledger, for another node: this one is shutting down."""
        with self._lock:
            jobs = [*self._under_way.values()]
        for job in jobs:
            try:
                self._ledger.release(job, "its worker was shut down", wake_in=0.0)
            except (StaleTokenError, StoreError) as error:
                logger.info("webhook %s: %s", job.id, error)

    def _comes_too_early(self, job: Job) -> bool:
        """Tell whether the job that a webhook waits for is under way, and let the webhook sleep until its end."""
        if job.follows_id is None or job.attempt > 0 or self._has_ended(job.follows_id):
            return False
        detail = f"job {job.follows_id} is under way; its end rings the alarm"
        self._ledger.change(job, Transition.PUBLISH, None, token=job.token, wake_in=PUT_OFF, detail=detail)
        return not self._has_ended(job.follows_id)  # its end may have come between the two, and rung in vain

    def _has_ended(self, follows_id: str) -> bool:
        job = self._ledger.get_or_none(follows_id)
        return job is None or job.state.final

    def _claim_and_attempt(self, job: Job) -> None:
        claimed = self._ledger.claim(job.id, nonce=new_nonce(), node=self._node)
        if not claimed.applied or claimed.job is None:
            return
        with self._lock:
            self._under_way[job.id] = claimed.job
        try:
            self._attempt(claimed.job)
        finally:
            with self._lock:
                del self._under_way[job.id]

    def _attempt(self, job: Job) -> None:
        try:
            answer = self._send(job)
        except (NotSentError, InvalidArgumentsError) as error:
            self._failed(job, type(error).__name__, str(error))
            return
        if answer.good:
            self._ledger.complete(job, json.dumps({"status": answer.status}))
            return
        said = f": {answer.excerpt}" if answer.excerpt else ""
        self._failed(job, "Refused", f"the receiver answered {answer.status}{said}", answer)

    def _send(self, job: Job) -> Answer:
        body = self._ledger.steps(job).get(EVENT) or self._ledger.keep_step(job, EVENT, self._event(job))
        headers = headers_of(job.id, body, self._settings.secrets, at=datetime.now(UTC))
        return self._sender.send(WebhookCall.of(job).url, body.encode(), headers)

    def _event(self, job: Job) -> str:
        told = self._ledger.get_or_none(WebhookCall.of(job).job_id)
        if told is None or not told.state.final:
            gone = "was purged before its end was told" if told is None else f"was sent again, and is {told.state}"
            msg = f"job {WebhookCall.of(job).job_id} {gone}"
            raise NotSentError(msg)
        return cloud_event(told, webhook_id=job.id, source=self._settings.source)

    def _failed(self, job: Job, kind: str, why: str, answer: Answer | None = None) -> None:
        """Plan the next attempt, or make the webhook a dead letter."""
        error = json.dumps({"type": kind, "message": why, "traceback": ""})
        schedule = self._settings.schedule
        gone = answer is not None and answer.status == HTTPStatus.GONE
        if gone or job.retries >= len(schedule):
            last = "it wants no more" if gone else f"that was attempt {job.retries + 1}, the last"
            self._ledger.fail(job, error, f"{why}; {last}")
            return
        delay = schedule[job.retries] * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - no secret
        if answer is not None and answer.status in BUSY:
            delay = max(delay, answer.retry_after)
        self._ledger.retry(
            job, delay=delay, payload=job.payload, options=job.options, retries=job.retries + 1, error=error,
            reason=f"{why}; again in {delay:.0f} s",
        )  # fmt: skip
