"""Hostile receivers and resolvers beside honest ones, over real sockets: the honest ones are not delayed."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from onejob.jobs.lifecycle import State
from onejob.ledger.ledger import Ledger
from onejob.stores import open_store
from onejob.webhooks import transport
from onejob.webhooks.client import WebhookClient
from onejob.webhooks.delivery import Delivery
from onejob.webhooks.dispatcher import THREADS, DeliveryQueue
from onejob.webhooks.fair_slots import FairSlots
from onejob.webhooks.job import WEBHOOK, webhook_submission
from tests.contract.support import end, run, sweep
from tests.services import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from onejob.webhooks.settings import WebhookSettings
    from tests.webhooks.receiver import Receiver

HOSTS = 2 * THREADS
"""Hostile hosts: more than there are threads."""


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Return a ledger with one ended job."""
    ledger = Ledger(open_store(f"sqlite:///{tmp_path / 'ledger.db'}"))
    end(ledger.store, run(ledger.store))
    yield ledger
    ledger.close()


@pytest.fixture
def queue(ledger: Ledger, settings: WebhookSettings) -> Iterator[DeliveryQueue]:
    """Return the deliveries of a worker."""
    delivery = Delivery(ledger, settings, WebhookClient(settings), "node-1")
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
    monkeypatch.setattr(transport, "LOOKUPS", FairSlots(64, per_host=2))
    yield released
    released.set()


def add(ledger: Ledger, url: str, submitter: str) -> str:
    """Write a webhook of the job, and return its id."""
    webhook = ledger.follow(webhook_submission(url, ledger.get("job-1"), submitter=submitter), follows_id="job-1")
    assert webhook is not None
    return webhook.id


def sweep_all(ledger: Ledger, queue: DeliveryQueue) -> None:
    """Sweep until nothing is due, as a worker does."""
    while sweep(ledger, lambda _: None, limit=100, dispatchers={WEBHOOK: queue.put}).seen == 100:
        pass


def test_silent_hosts_delay_no_other_submitter(
    ledger: Ledger, queue: DeliveryQueue, receiver: Receiver, slow_names: threading.Event
) -> None:
    """While more silent hosts of one submitter than there are threads hang, an honest receiver gets its event."""
    for number in range(HOSTS):
        add(ledger, receiver.url(f"/hang/{number}", f"h{number}.example"), "hostile")
    sweep_all(ledger, queue)
    eventually(lambda: len(receiver.got()) == THREADS // 2)
    honest = add(ledger, receiver.url("/ok", "honest.example"), "honest")
    sweep_all(ledger, queue)
    receiver.await_("/ok")
    assert eventually(lambda: ledger.get(honest).state is State.COMPLETED)
    assert len(receiver.got()) == THREADS // 2 + 1  # no hostile attempt has ended meanwhile
    receiver.released.set()
    slow_names.set()


def test_slow_resolvers_delay_no_other_submitter(
    ledger: Ledger, queue: DeliveryQueue, receiver: Receiver, slow_names: threading.Event
) -> None:
    """While as many look-ups of one submitter hang as it may have, an honest receiver gets its event at once."""
    for number in range(HOSTS):
        add(ledger, receiver.url("/ok/slow", f"slow{number}.example"), "hostile")
    sweep_all(ledger, queue)
    eventually(lambda: transport.LOOKUPS.used_by("hostile") == 32)
    honest = add(ledger, receiver.url("/ok", "honest.example"), "honest")
    sweep_all(ledger, queue)
    receiver.await_("/ok")
    assert eventually(lambda: ledger.get(honest).state is State.COMPLETED)
    assert ledger.get(honest).retries == 0
    assert receiver.got("/ok/slow") == []
    slow_names.set()
