"""Runs jobs in the process of the test, through the code of a worker: its request, its trace, its sweep."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from contextvars import Context
from datetime import datetime
from typing import Any
from unittest.mock import patch

from celery.utils.imports import symbol_by_name
from kombu.transport import memory

from onejob.celery.app_state import AppState
from onejob.celery.messages.payload import loads
from onejob.celery.messages.publisher import Publisher
from onejob.celery.submission.options import tasks_of
from onejob.errors import OneJobError, StoreUnavailableError
from onejob.jobs.model import JobRow
from onejob.ledger.ledger import Ledger
from onejob.ledger.limits import LISTED_KEYS
from onejob.ledger.sweep import Publishing, sweep
from onejob.observability.metrics import WEBHOOK_TASK
from onejob.testing.ledger import RecordingLedger, WorkerLost
from onejob.testing.store import Clock, IsolatedStore
from onejob.webhooks.job import WebhookPayload, build_event


class IsolatedPublisher(Publisher):
    """A publisher that calls `after_publish` after sending messages."""

    after_publish: Callable[[], object] = staticmethod(lambda: None)

    def publish_all(
        self, jobs: Sequence[JobRow], producer: Any = None, *, confirms: bool = False
    ) -> dict[str, Exception]:  # fmt: skip
        """Send the messages of jobs."""
        errors = super().publish_all(jobs, producer, confirms=confirms)
        self.after_publish()
        return errors


HOSTNAME = "test@localhost"
RUN_LIMIT = 1000
"""The maximum number of runs in `run_all`: more means that jobs submit each other for ever."""


class InProcessWorker:
    """A worker without a process of its own. It consumes all queues of the broker in memory."""

    def __init__(
        self, app: Any, app_state: AppState, ledger: RecordingLedger, store: IsolatedStore, clock: Clock
    ) -> None:
        self.app = app
        self.app_state = app_state
        self.ledger = ledger
        self.store = store
        self.clock = clock
        """The clock of the ledger."""
        self.webhooks: list[tuple[str, Any]] = []
        """The webhooks that were due: URLs and events."""
        self.delivers_twice = False
        self.is_elsewhere: Callable[[str], bool] = lambda _task: False
        """Whether another isolated app, which has the same broker, has a task."""
        self.execute: Callable[[Any], object] = self.execute_here
        """The function that runs a request. A crash matrix runs it in a child process."""

    def run_all(self) -> int:
        """Run all due jobs, and the jobs that they submit, until none is due; return the number of messages.

        Jobs run as in a worker: they are claimed, executed and completed, retried, and their canvases go on. A lost or
        delayed job is handled when it is due, and a job that waits for tokens of a rate when there are enough: see
        `travel`. Webhooks are recorded in `webhooks`, and not sent.
        """
        handled = 0
        while self.run_next():
            handled += 1
            if handled > RUN_LIMIT:
                msg = f"run_all has handled {RUN_LIMIT} messages, and there are more: do jobs submit each other?"
                raise OneJobError(msg)
        return handled

    def run_next(self) -> bool:
        """Run one job that is due; return False if none is."""
        while not self.run_next_message():
            if not (self._free_slots() or self.sweep()):
                return False
        return True

    def _free_slots(self) -> bool:
        """Make jobs due that wait for room on the keys of limits and have it now; return whether there were any."""
        if not self.app_state.limits or self.ledger.pending:
            return False
        before = self.store.limit_uses(limit=LISTED_KEYS)
        with suppress(StoreUnavailableError):
            self.ledger.free_slots([use.key for use in before])
        return self.store.limit_uses(limit=LISTED_KEYS) != before

    def sweep(self) -> bool:
        """Publish due jobs, recover lost jobs, purge old jobs; return whether anything was due."""
        self.ledger.settle()
        if self.ledger.pending:
            msg = "a transaction is open in which jobs were submitted or completed: run jobs after its commit"
            raise OneJobError(msg)
        with suppress(StoreUnavailableError):  # as a worker's sweeper, which tries again later
            dispatchers = {WEBHOOK_TASK: self._record_webhook}
            publishing = Publishing(self.app_state.publisher.publish, gone_in=self._gone_in, dispatchers=dispatchers)
            return sweep(self.ledger, publishing, tasks=frozenset(tasks_of(self.app))).seen > 0
        return False

    def run_next_message(self, job_id: str | None = None) -> bool:
        """Handle the next due message, or the message of a job; return False if there is none."""
        for queue, payload in self._messages():
            headers = payload["headers"]
            eta = headers.get("eta")  # the message of a plain Celery task
            is_due = not eta or datetime.fromisoformat(eta).timestamp() <= self.clock()
            if is_due and job_id in {None, headers.get("id")}:
                queue.remove(payload)
                self.execute(self._request_of(payload))
                if self.delivers_twice:
                    payload["properties"]["delivery_info"]["redelivered"] = True
                    self.execute(self._request_of(payload))
                return True
        return False

    def execute_here(self, request: Any) -> None:
        """Run a request in this process, in a context of its own, as a worker has no context of a submitter.

        During the run the app is Celery's current app, as in its worker: a canvas and a `shared_task` go on in this
        app. A run that loses its worker ends here, with nothing more in the ledger.
        """
        with patch("celery._state._tls.current_app", self.app), suppress(WorkerLost):
            Context().run(request.execute)
        self.store.refuse = None if self.store.refuse is refuse_lost_worker else self.store.refuse

    def clear(self) -> None:
        """Forget all jobs, messages and records. The clock stays where it is."""
        self.store.clear()
        for queue, payload in [*self._messages()]:
            queue.remove(payload)
        self.webhooks.clear()
        self.ledger.clear()

    def lose(self, _job: JobRow) -> None:
        """End the calling run as if its worker died here: it can write nothing more to the ledger."""
        self.store.refuse = refuse_lost_worker
        refuse_lost_worker()

    def deliver_again(self, job: JobRow) -> None:
        """Deliver the message of a job once more, now."""
        self.app_state.publisher.publish(job)
        self.run_next_message(job.id)

    def _gone_in(self, job: JobRow) -> float | None:
        """Return 0 seconds if no queue has the message of a job, so that a sweep sends it again; None otherwise."""
        has_message = any(payload["headers"].get("id") == job.id for _, payload in self._messages())
        return None if has_message else 0.0

    def _messages(self) -> Iterator[tuple[Any, Any]]:
        """Yield the messages in all queues except other apps' queues, each with its deque."""
        for queue in [*memory.Channel.queues.values()]:
            for payload in [*queue.queue]:
                task = payload.get("headers", {}).get("task")
                if task is not None and (task in self.app.tasks or not self.is_elsewhere(task)):
                    yield queue.queue, payload

    def _request_of(self, payload: Any) -> Any:
        name = payload["headers"]["task"]
        task = self.app.tasks.get(name)
        if task is None:
            msg = f"a message of task {name!r} is due, which this app does not have: import the module that defines it"
            raise OneJobError(msg)
        with self.app.connection_for_read() as connection:
            channel = connection.default_channel
            message = channel.Message(payload, channel=channel)
            make: Any = symbol_by_name(task.Request)
            # The broker in memory has forgotten a message that was taken.
            ends = dict.fromkeys(("on_ack", "on_reject"), lambda *_, **__: None)
            return make(message, app=self.app, task=task, hostname=HOSTNAME, **ends)

    def _record_webhook(self, webhook: JobRow) -> None:
        """Record a webhook in place of its delivery, and complete its job."""
        ledger = Ledger(self.store, self.ledger.settings)
        claimed = ledger.claim(webhook.id, nonce=f"test{webhook.id}", node=HOSTNAME)
        payload = WebhookPayload.from_job(webhook)
        if claimed.applied and claimed.job is not None:
            event = build_event(ledger.get(payload.job_id), namespace=self.app_state.settings.namespace)
            self.webhooks.append((payload.url, loads(event)))
            ledger.complete(claimed.job, '{"status": 204}')


def refuse_lost_worker() -> None:
    """Refuse an operation of a run whose worker is lost."""
    raise WorkerLost("the worker of this run was lost, as the test said")
