"""Webhooks as jobs: claimed, sent, retried and recorded, whatever receivers and workers do."""

import json
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pytest
from standardwebhooks import WebhookVerificationError

from onejob.jobs.ledger_settings import RETENTION, LedgerSettings
from onejob.jobs.lifecycle import FINAL, State, Transition
from onejob.jobs.model import JobRow
from onejob.ledger.explain import explain
from onejob.ledger.ledger import Ledger
from onejob.observability.metrics import WEBHOOK_TASK
from onejob.stores.protocol import Store
from onejob.webhooks import client
from onejob.webhooks.client import FairSlots, WebhookClient
from onejob.webhooks.delivery import LOOKUP_BUSY_SECONDS, Delivery
from onejob.webhooks.job import LEASE, MEDIA_TYPE, SCHEDULE, webhook_submission
from onejob.webhooks.settings import WebhookSettings
from tests.cases import for_each
from tests.conftest import on_every_store
from tests.services import free_port
from tests.stores.support import (
    ManualClock,
    apply,
    assert_legal,
    end,
    events,
    get,
    not_none,
    read,
    run,
    start,
    submit,
    sweep,
)
from tests.webhooks.receiver import OLDER, SECRET, Got, Receiver

ERROR = '{"type": "ValueError", "message": "no", "traceback": "a secret path"}'


@dataclass
class Setup:
    ledger: Ledger
    settings: WebhookSettings
    receiver: Receiver
    clock: ManualClock

    def __post_init__(self) -> None:
        self.delivery = self.delivery_with()

    def delivery_with(
        self, *, namespace: str = "tests", schedule: tuple[float, ...] = SCHEDULE, **settings: Any
    ) -> Delivery:
        used = replace(self.settings, **settings)
        return Delivery(self.ledger, used, WebhookClient(used), "node-1", namespace=namespace, schedule=schedule)

    def follow(self, path: str = "/ok", job_id: str = "job-1", url: str = "", **values: str) -> JobRow:
        """Create the webhook that reports the end of a job to a path of the receiver, or to a URL."""
        new = webhook_submission(url or self.receiver.url(path), self.ledger.get(job_id), **values)
        return not_none(self.ledger.follow(new, follows_id=job_id))

    def ended(self, path: str = "/ok", job_id: str = "job-1", **values: str) -> JobRow:
        end(self.ledger.store, run(self.ledger.store, job_id))
        return self.follow(path, job_id, **values)

    def sweep(self) -> list[Got]:
        """Sweep once, and deliver what is due in this thread; return all that was received."""
        sweep(self.ledger, _no_broker, dispatchers={WEBHOOK_TASK: self.delivery.deliver})
        return self.receiver.got()

    def read(self, job: JobRow) -> JobRow:
        return self.ledger.get(job.id)


def _no_broker(job: JobRow) -> None:
    if job.task == WEBHOOK_TASK:
        msg = "a webhook was published"
        raise AssertionError(msg)


@pytest.fixture
def setup(ledger: Ledger, settings: WebhookSettings, receiver: Receiver, clock: ManualClock) -> Setup:
    return Setup(ledger, settings, receiver, clock)


# --- the event ---------------------------------------------------------------------------------------------------


@on_every_store
@pytest.mark.parametrize("event", [Transition.COMPLETE, Transition.FAIL, Transition.ABANDON])
def test_each_end_is_reported(setup: Setup, store: Store, event: Transition) -> None:
    """The next sweep after any kind of end sends one signed event with the public view of the job."""
    job = run(store)
    webhook = setup.follow()
    assert setup.sweep() == []
    values = {Transition.COMPLETE: {"result": '{"total": 7}'}, Transition.FAIL: {"error": ERROR}}.get(event, {})
    ended = apply(store, job, event, wake_after=100.0, reason="the reason", **values)
    (got,) = setup.sweep()
    sent = got.verified()
    assert (got.headers["content-type"], got.id) == (MEDIA_TYPE, webhook.id)
    assert {name: sent[name] for name in ("specversion", "id", "source", "type", "subject", "datacontenttype")} == {
        "specversion": "1.0", "id": webhook.id, "source": "urn:onejob:tests", "type": f"onejob.job.{ended.state}",
        "subject": "job-1", "datacontenttype": "application/json",
    }  # fmt: skip
    assert datetime.fromisoformat(sent["time"]).timestamp() == setup.clock()
    data = sent["data"]
    assert (data["id"], data["state"], data["reason"]) == ("job-1", ended.state, "the reason")
    assert data["result"] == ({"total": 7} if event is Transition.COMPLETE else None)
    assert data["error"] == ({"type": "ValueError", "message": "no"} if event is Transition.FAIL else None)
    assert not any(hidden in got.body for hidden in (b"secret", b"args"))
    done = setup.read(webhook)
    assert (done.state, json.loads(done.result or ""), done.attempt) == (State.COMPLETED, {"status": 204}, 1)
    assert_legal(store.history(webhook.id), done)


def test_other_ends_are_reported_to_each_url_once(setup: Setup, store: Store) -> None:
    """A cancellation before the first run, and an earlier end, are reported, once to each URL."""
    submit(store, "waits")
    ids = [setup.follow(path, "waits").id for path in ("/ok/a", "/ok/b", "/ok/a")]
    assert ids[0] == ids[2] != ids[1]
    setup.ledger.cancel("waits", reason="not needed")
    setup.ended("/ok/earlier")
    types = {got.path: got.verified()["type"].rpartition(".")[2] for got in setup.sweep()}
    assert types == {"/ok/a": "canceled", "/ok/b": "canceled", "/ok/earlier": "completed"}
    assert len(setup.receiver.got()) == 3


def test_another_service_does_not_deliver(setup: Setup) -> None:
    """A sweeper without the job's task does not deliver its webhook: it would sign with a secret of its own."""
    webhook = setup.ended()
    dispatchers = {WEBHOOK_TASK: setup.delivery.deliver}
    sweep(setup.ledger, _no_broker, tasks=frozenset({WEBHOOK_TASK, "other.task"}), dispatchers=dispatchers)
    assert (setup.receiver.got(), setup.read(webhook)) == ([], webhook)
    assert len(setup.sweep()) == 1


def test_a_webhook_belongs_to_one_job_and_signer(setup: Setup, store: Store) -> None:
    """A purged job and a later one with its id share no webhook; a job has one for each signer, whoever names it."""
    end(store, run(store, nonce="first"))
    first = setup.follow()
    store.delete(["job-1"], sources=FINAL)
    job, url = run(store, nonce="second"), setup.receiver.url()
    ids = [webhook_submission(url, job, submitter=name).id for name in ("a", "b")]
    assert first.id != ids[0] == ids[1]
    assert len({*ids, *(webhook_submission(url, job, signer=name).id for name in ("a", "b"))}) == 3


def test_the_secrets_of_the_signer_sign(setup: Setup) -> None:
    """All secrets of the app, or a submitter's own, sign a webhook, and no other; an unknown one sends nothing."""
    setup.delivery = setup.delivery_with(secrets=(SECRET, OLDER))
    unknown = setup.ended("/ok/unknown", submitter="shop", signer="shop")
    setup.follow("/ok/both")
    (got,) = setup.sweep()
    assert got.verified(SECRET) == got.verified(OLDER)
    assert "has no secret for 'shop'" in setup.read(unknown).reason
    own = setup.delivery_with(submitter_secrets={"shop": (OLDER,)})
    for name, secret, other in (("shop", OLDER, SECRET), ("other", SECRET, OLDER)):
        own.deliver(setup.follow(f"/ok/{name}", submitter=name, signer="shop" if name == "shop" else ""))
        (got,) = setup.receiver.got(f"/ok/{name}")
        got.verified(secret)
        with pytest.raises(WebhookVerificationError):
            got.verified(other)


# --- retries --------------------------------------------------------------------------------------------------------


@for_each("path", ["/status/500", "/redirect/307", "/close"])
def test_a_failed_attempt_is_retried_on_schedule(setup: Setup, store: Store, path: str) -> None:
    """A failed attempt is retried on schedule with the same id and bytes; after the last it is a dead letter."""
    job = webhook = setup.ended(path, path)
    for number, pause in enumerate((*SCHEDULE, 0.0), start=1):
        setup.sweep()
        setup.sweep()
        assert len(setup.receiver.got(path)) == number
        job = setup.read(webhook)
        assert job.state is (State.RETRYING if pause else State.FAILED), job
        if pause:
            assert 0.9 * pause <= job.run_at - setup.clock() <= 1.1 * pause
            setup.clock.advance(job.run_at - setup.clock())
    assert {(each.id, each.body) for each in setup.receiver.got(path)} == {
        (webhook.id, setup.receiver.got(path)[0].body)
    }
    assert "that was attempt 10, the last" in job.reason
    assert json.loads(job.error or "")["traceback"] == ""
    assert_legal(store.history(webhook.id), job)


@for_each("path, wait, reason", [
    ("/status/429/60", 60, "the receiver answered 429: no??[31m thanks xxx"),
    ("/status/503/1", 5, "the receiver answered 503"),
    (None, 5, "cannot be reached: Connection refused; next attempt in 5 s"),
])  # fmt: skip
def test_a_retry_says_why_and_when(setup: Setup, path: str | None, wait: float, reason: str) -> None:
    """The reason is a short, printable excerpt; `Retry-After` applies when it is longer than the schedule."""
    webhook = setup.ended(job_id=reason, url=setup.receiver.url(path) if path else f"http://127.0.0.1:{free_port()}/")
    setup.sweep()
    job = setup.read(webhook)
    assert 0.9 * wait <= job.run_at - setup.clock() <= 1.1 * wait
    assert reason in job.reason
    assert job.reason.isprintable()
    assert len(job.reason) < 200


def test_the_event_outlives_the_job(setup: Setup, store: Store) -> None:
    """Retries send the event of the first attempt, also if job or settings have changed since, or the job is gone."""
    for change in ("purge", "redrive", "duplicate"):
        path, identity = f"/times/1/{change}", {"identity_for": 1000.0, "keeps_identity": True}
        event = Transition.COMPLETE if change == "duplicate" else Transition.FAIL
        apply(store, run(store, change), event, wake_after=100.0, **(identity if change == "duplicate" else {}))
        webhook = setup.follow(path, change)
        setup.sweep()
        if change == "purge":
            store.delete([change], sources=FINAL)
        elif change == "redrive":
            setup.ledger.redrive(change)
        else:
            submit(store, "another", identity=f"identity-of-{change}")
            assert read(store, change).duplicate_count == 1
        setup.clock.advance(6.0)
        setup.delivery_with(namespace="other").deliver(setup.read(webhook))
        first, second = setup.receiver.got(path)
        assert (first.body, first.id) == (second.body, second.id)
        assert setup.read(webhook).state is State.COMPLETED


def test_what_is_gone_is_a_failed_attempt(setup: Setup, store: Store) -> None:
    """A webhook whose job was purged before the first attempt, or whose event is purged, sends nothing and says why."""
    unsent, sent = setup.ended(job_id="purged"), setup.ended("/status/410", "ended")
    store.delete(["purged"], sources=FINAL)
    assert len(setup.sweep()) == 1
    assert "job purged was purged before the first attempt" in setup.read(unsent).reason
    setup.clock.advance(100 * 86_400)
    setup.ledger.redrive(sent.id)
    assert len(setup.sweep()) == 1
    assert "the event of job ended is no longer stored" in setup.read(sent).reason


@on_every_store
def test_gone_is_final(setup: Setup, store: Store) -> None:
    """After a 410 the webhook is a dead letter at once; redriven, it sends the same event until it is purged."""
    webhook = setup.ended("/status/410")
    setup.sweep()
    job = setup.read(webhook)
    assert (job.state, job.attempt) == (State.FAILED, 1)
    assert "answered 410" in job.reason
    assert "410 means no further attempts" in job.reason
    lines = explain(setup.ledger, webhook.id).sentences
    assert "it waits for the end of job-1" in lines[1]
    assert any("It failed at" in line and "answered 410" in line for line in lines)
    store.delete(["job-1"], sources=FINAL)
    setup.clock.advance(RETENTION[State.FAILED])
    setup.ledger.redrive(webhook.id)
    first, second = setup.sweep()
    assert (first.id, first.body) == (second.id, second.body)
    assert setup.read(webhook).state is State.FAILED


def test_a_busy_lookup_is_no_attempt(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """A webhook for which no DNS lookup can be started is due again soon, without a failed attempt."""
    webhook = setup.ended(url=setup.receiver.url(host="localhost"))
    monkeypatch.setattr(client, "LOOKUPS", FairSlots(0, per_host=2))
    for _ in range(len(SCHEDULE) + 2):
        setup.sweep()
        job = setup.read(webhook)
        assert (job.state, job.retries, job.error) == (State.QUEUED, 0, None)
        setup.clock.advance(LOOKUP_BUSY_SECONDS)
    monkeypatch.undo()
    setup.sweep()
    assert setup.read(webhook).state is State.COMPLETED


# --- workers --------------------------------------------------------------------------------------------------------


def test_a_lost_worker_loses_no_webhook(setup: Setup, store: Store) -> None:
    """A webhook whose worker died is delivered when its lease has expired, with the same id."""
    webhook = setup.ended()
    start(store, webhook.id)
    assert setup.sweep() == []
    setup.clock.advance(LEASE)
    assert [got.id for got in setup.sweep()] == [webhook.id]
    assert events(store, webhook.id) == ["wait", "claim", "crash", "claim", "complete"]


@pytest.mark.parametrize("first", ["killed", "failed"])
def test_a_short_retention_loses_no_webhook(setup: Setup, monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    """However shortly ended jobs are kept, an event outlives a killed worker's lease, and the pause before a retry."""
    setup.ledger = Ledger(setup.ledger.store, LedgerSettings(retention=dict.fromkeys(FINAL, 1.0)))
    setup.delivery = setup.delivery_with(schedule=SCHEDULE[-1:])
    webhook = setup.ended("/times/1" if first == "failed" else "/ok")
    with monkeypatch.context() as patch:
        patch.setattr("random.uniform", max)
        if first == "killed":
            patch.setattr(WebhookClient, "send", lambda *_args, **_values: sys.exit())
        with suppress(SystemExit):
            setup.sweep()
    job = setup.read(webhook)
    setup.clock.advance(LEASE if first == "killed" else job.run_at - setup.clock())
    setup.sweep()
    assert setup.read(webhook).state is State.COMPLETED, setup.read(webhook).reason


@pytest.mark.parametrize("released", [True, False])
def test_a_delivery_in_flight_is_the_only_one(setup: Setup, released: bool) -> None:
    """A webhook in flight is not sent again, unless a worker that stops releases it: then it is due at once."""
    webhook = setup.ended("/hold")
    thread = threading.Thread(target=setup.delivery.deliver, args=[webhook])
    thread.start()
    setup.receiver.await_("/hold")
    setup.delivery.release_all() if released else setup.delivery.deliver(webhook)
    job = setup.read(webhook)
    if released:
        assert (job.state, job.wake_at) == (State.QUEUED, setup.clock())
    setup.receiver.released.set()
    thread.join()
    if released:
        assert setup.read(webhook) == job  # a late response is ignored
        setup.sweep()
    assert (len(setup.receiver.got()), setup.read(webhook).state) == (1 + released, State.COMPLETED)


@pytest.mark.parametrize("ends", ["after", "meanwhile"])
def test_a_webhook_before_the_end_is_postponed(
    setup: Setup, store: Store, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """A webhook that is due before the end of its job is postponed; the end makes it due, also one during that."""
    job = run(store, lease=1000.0)
    webhook, now, change = setup.follow(), setup.clock.advance(LEASE), setup.ledger.change

    def end_first(*args: Any, **values: Any) -> Any:
        if ends == "meanwhile" and get(store, "job-1") == job:
            end(store, job)
        return change(*args, **values)

    monkeypatch.setattr(setup.ledger, "change", end_first)
    assert setup.sweep() == []
    if ends == "after":
        assert setup.read(webhook).wake_at == now + LEASE
        end(store, job)
    assert len(setup.sweep()) == 1


@on_every_store
def test_the_event_is_stored_once(setup: Setup, store: Store) -> None:
    """The webhooks of a job share one stored event: none of their rows and steps contains the result."""
    result = json.dumps("r" * 10_000)
    apply(store, run(store), Transition.COMPLETE, wake_after=100.0, result=result)
    webhooks = [setup.follow(f"/status/500/{number}") for number in range(5)]
    assert [result.encode() in got.body for got in setup.sweep()] == [True] * 5
    for webhook in map(setup.read, webhooks):
        texts = [webhook.payload, webhook.result or "", *store.steps(webhook.id).values()]
        assert sum(map(len, texts)) < 1000
    (event_id,) = {json.loads(store.steps(webhook.id)["event"]) for webhook in webhooks}
    assert result in (store.keep_event(event_id, None, keep_for=1.0) or "")
