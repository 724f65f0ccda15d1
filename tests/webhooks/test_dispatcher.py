"""Hostile receivers and resolvers beside honest ones: over real sockets, and in the queue, no honest one is delayed."""

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onejob.jobs.lifecycle import State
from onejob.jobs.model import JobRow, Submission
from onejob.jobs.transitions import new_job
from onejob.ledger.ledger import Ledger
from onejob.observability.metrics import WEBHOOK_TASK
from onejob.stores import open_store
from onejob.webhooks import client, delivery
from onejob.webhooks.client import FairSlots, WebhookClient
from onejob.webhooks.delivery import (
    QUEUE_LIMIT,
    QUEUE_LIMIT_PER_HOST,
    THREAD_NAME,
    THREADS,
    THREADS_PER_HOST,
    Delivery,
    DeliveryQueue,
)
from onejob.webhooks.job import WebhookPayload, webhook_submission
from onejob.webhooks.settings import WebhookSettings
from tests.cases import for_each
from tests.services import eventually
from tests.stores.support import end, not_none, run, sweep
from tests.webhooks.receiver import Receiver

HOSTS = 2 * THREADS
"""Hostile hosts: more than there are threads."""


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(open_store(f"sqlite:///{tmp_path / 'ledger.db'}"))
    end(ledger.store, run(ledger.store))
    yield ledger
    ledger.close()


@pytest.fixture
def queue(ledger: Ledger, settings: WebhookSettings) -> Iterator[DeliveryQueue]:
    delivery = Delivery(ledger, settings, WebhookClient(settings), "node-1", namespace="tests")
    queue = DeliveryQueue(delivery.deliver)
    yield queue
    queue.close(40)


@pytest.fixture
def slow_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Resolve `*.example` to loopback, but `slow*` only when the event is set; count no lookups of other tests."""
    released, original = threading.Event(), socket.getaddrinfo

    def getaddrinfo(host: str, *arguments: Any, **options: Any) -> Any:
        if host.startswith("slow"):
            released.wait(60)
        return original("127.0.0.1" if host.endswith(".example") else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(client, "LOOKUPS", FairSlots(64, per_host=2))
    yield released
    released.set()


def add(ledger: Ledger, url: str, submitter: str) -> str:
    new = webhook_submission(url, ledger.get("job-1"), submitter=submitter)
    return not_none(ledger.follow(new, follows_id="job-1")).id


def sweep_all(ledger: Ledger, queue: DeliveryQueue) -> None:
    """Sweep until nothing is due, as a worker does."""
    while sweep(ledger, lambda _: None, limit=100, dispatchers={WEBHOOK_TASK: queue.put}).seen == 100:
        pass


def test_slow_resolvers_delay_no_other_submitter(
    ledger: Ledger, queue: DeliveryQueue, receiver: Receiver, slow_names: threading.Event
) -> None:
    """While as many look-ups of one submitter hang as it may have, an honest receiver gets its event at once."""
    for number in range(HOSTS):
        add(ledger, receiver.url("/ok/slow", f"slow{number}.example"), "hostile")
    sweep_all(ledger, queue)
    eventually(lambda: client.LOOKUPS.used_by("hostile") == 32)
    honest = add(ledger, receiver.url("/ok", "honest.example"), "honest")
    sweep_all(ledger, queue)
    receiver.await_("/ok")
    assert eventually(lambda: ledger.get(honest).state is State.COMPLETED)
    assert ledger.get(honest).retries == 0
    assert receiver.got("/ok/slow") == []
    slow_names.set()


# --- the queue, without a network ------------------------------------------------------------------------------------


def webhook_to(number: int, host: str, submitter: str = "", retries: int = 0) -> JobRow:
    """Return the job of a webhook to a host; it is in no ledger."""
    submission = Submission(
        id=str(number), task=WEBHOOK_TASK, identity="", fingerprint="", nonce="", lease=1.0, submitter=submitter,
        retries=retries, payload=json.dumps({"kwargs": WebhookPayload("job", f"https://{host}/")._asdict()}),
    )  # fmt: skip
    return new_job(submission, now=0.0, wake_after=0.0, is_sent=False)


class Gate:
    """A delivery to a slow host waits until the gate is opened."""

    def __init__(self, *slow: str) -> None:
        self._slow = slow
        self._lock = threading.Lock()
        self.opened = threading.Event()
        self.started: list[str] = []
        self.delivered: list[str] = []

    def __call__(self, job: JobRow) -> None:
        host = WebhookPayload.from_job(job).url.split("/")[2]
        with self._lock:
            self.started.append(host)
        if host in self._slow:
            self.opened.wait(60)
        with self._lock:
            self.delivered.append(host)


def gated(*slow: str) -> tuple[Gate, DeliveryQueue]:
    gate = Gate(*slow)
    return gate, DeliveryQueue(gate)


def test_a_slow_host_takes_few_threads() -> None:
    """While one host with a full queue hangs, webhooks to other hosts are delivered."""
    gate, queue = gated("slow")
    accepted = [queue.put(webhook_to(number, "slow")) for number in range(2 * QUEUE_LIMIT_PER_HOST)]
    assert sum(accepted) <= QUEUE_LIMIT_PER_HOST + THREADS_PER_HOST
    eventually(lambda: gate.started.count("slow") >= THREADS_PER_HOST)
    for number in range(1000, 1010):
        assert queue.put(webhook_to(number, "quick"))
    eventually(lambda: gate.delivered.count("quick") == 10, 40)
    assert gate.started.count("slow") == THREADS_PER_HOST
    gate.opened.set()
    eventually(lambda: gate.delivered.count("slow") == sum(accepted), 40)


@for_each("share, submitter", [(1, None), (2, "hostile")])
def test_threads_and_the_queue_are_bounded(share: int, submitter: str | None) -> None:
    """However many hosts hang, they take all threads and the queue at most, those of one submitter half of both."""
    hosts = [f"h{number}" for number in range(QUEUE_LIMIT + 2 * THREADS)]
    gate, queue = gated(*hosts)
    accepted = sum(queue.put(webhook_to(number, host, submitter or host)) for number, host in enumerate(hosts))
    eventually(lambda: len(gate.started) == THREADS // share, 40)
    assert QUEUE_LIMIT // share <= accepted <= (QUEUE_LIMIT + THREADS) // share
    quick = 10 if submitter else 0
    assert all(queue.put(webhook_to(10_000 + number, "quick", "honest")) for number in range(quick))
    eventually(lambda: gate.delivered.count("quick") == quick, 40)
    assert len(gate.started) == THREADS // share + quick
    gate.opened.set()
    eventually(lambda: len(gate.delivered) == accepted + quick, 40)
    eventually(lambda: not [each for each in threading.enumerate() if each.name == THREAD_NAME], 40)


def test_each_further_submitter_finds_a_thread() -> None:
    """However many submitters hang, each taking what it gets, the next one still delivers."""
    gate, queue = gated(*(f"h{number}" for number in range(10 * THREADS)))
    for number in range(10 * THREADS):
        queue.put(webhook_to(number, f"h{number}", f"hostile {number % 7}"))
    eventually(lambda: len(gate.started) >= THREADS * 7 // 8 - 7, 40)
    assert queue.put(webhook_to(10_000, "quick", "honest"))
    eventually(lambda: gate.delivered == ["quick"], 40)
    gate.opened.set()
    queue.close(40)


def test_submitters_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one thread submitters take turns, first attempts precede retries, and a webhook is queued once."""
    monkeypatch.setattr(delivery, "THREADS", 1)
    gate, queue = gated("slow")
    queue.put(webhook_to(0, "slow", "other"))
    eventually(lambda: gate.started == ["slow"], 40)
    for number in range(1, 6):
        queue.put(webhook_to(number, f"many{number}", "many"))
    for number in range(6, 8):
        queue.put(webhook_to(number, f"few{number}", "few"))
    gate.opened.set()
    eventually(lambda: len(gate.delivered) == 8, 40)
    assert gate.delivered == ["slow", "many1", "few6", "many2", "few7", "many3", "many4", "many5"]
    monkeypatch.setattr(delivery, "THREADS", 1)
    gate, queue = gated("slow")
    assert all(queue.put(webhook_to(0, "slow")) for _ in range(10))
    eventually(lambda: gate.started == ["slow"], 40)
    for again in (webhook_to(0, "slow"), webhook_to(1, "failed", retries=1), webhook_to(2, "new")):
        assert queue.put(again)
    gate.opened.set()
    assert eventually(lambda: gate.delivered == ["slow", "new", "failed"], 40)


def test_a_webhook_for_which_no_thread_starts_is_delivered_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A webhook that was queued while the system had no more threads gets one when a sweep offers it again."""
    gate, queue = gated()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _refuse)
        assert queue.put(webhook_to(0, "host"))
    assert queue.put(webhook_to(0, "host"))
    assert eventually(lambda: gate.delivered == ["host"], 40)


def _refuse(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_closed_queue_refuses_jobs() -> None:
    """A closed queue discards what is queued, waits for deliveries in flight, and refuses further jobs."""
    gate, queue = gated("slow")
    for number in range(10):
        queue.put(webhook_to(number, "slow"))
    eventually(lambda: len(gate.started) == THREADS_PER_HOST, 40)
    queue.close(0)
    assert not queue.put(webhook_to(99, "quick"))
    gate.opened.set()
    queue.close(40)
    assert gate.delivered == ["slow"] * THREADS_PER_HOST


def test_an_internal_error_ends_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    """A delivery that raises is logged, and the next one proceeds."""
    delivered = []

    def deliver(job: JobRow) -> None:
        if job.id == "0":
            raise ZeroDivisionError
        delivered.append(job.id)

    queue = DeliveryQueue(deliver)
    for number in range(5):
        queue.put(webhook_to(number, "host"))
    eventually(lambda: len(delivered) == 4, 40)
    assert eventually(lambda: "webhook 0: internal error" in caplog.text, 40)
