"""Webhooks as jobs: claimed, sent, retried and recorded, whatever receivers and workers do."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from onejob.jobs.lifecycle import FINAL, State, Transition
from onejob.jobs.policy import RETENTION
from onejob.ledger.explain import explain
from onejob.webhooks import transport
from onejob.webhooks.client import WebhookClient
from onejob.webhooks.cloudevent import MEDIA_TYPE
from onejob.webhooks.delivery import LOOKUP_BUSY_SECONDS, Delivery
from onejob.webhooks.fair_slots import FairSlots
from onejob.webhooks.job import LEASE, WEBHOOK, webhook_submission
from onejob.webhooks.settings import SCHEDULE
from tests.cases import for_each
from tests.conftest import every_store
from tests.contract.support import ManualClock, apply, assert_legal, end, events, get, read, run, start, submit, sweep
from tests.services import free_port
from tests.webhooks.receiver import OLDER, SECRET, Receiver

if TYPE_CHECKING:
    from onejob.jobs.model import Job
    from onejob.ledger.ledger import Ledger
    from onejob.stores.protocol import Store
    from onejob.webhooks.settings import WebhookSettings

ERROR = '{"type": "ValueError", "message": "no", "traceback": "a secret path"}'


@dataclass
class Setup:
    """A ledger, the delivery of its webhooks, and their receiver."""

    ledger: Ledger
    delivery: Delivery
    receiver: Receiver
    clock: ManualClock

    def follow(self, path: str = "/ok", job_id: str = "job-1") -> Job:
        """Create the webhook that reports the end of a job to a path of the receiver."""
        job = self.ledger.follow(
            webhook_submission(self.receiver.url(path), self.ledger.get(job_id)), follows_id=job_id
        )
        assert job is not None
        return job

    def ended(self, path: str = "/ok", job_id: str = "job-1") -> Job:
        """Return a webhook of a job that has ended."""
        end(self.ledger.store, run(self.ledger.store, job_id))
        return self.follow(path, job_id)

    def sweep(self) -> None:
        """Sweep once, and deliver what is due in this thread."""
        sweep(self.ledger, _no_broker, dispatchers={WEBHOOK: self.delivery.deliver})

    def read(self, job: Job) -> Job:
        """Return the current state of a job."""
        return self.ledger.get(job.id)


def _no_broker(job: Job) -> None:
    if job.task == WEBHOOK:
        msg = "a webhook was published"
        raise AssertionError(msg)


@pytest.fixture
def setup(ledger: Ledger, settings: WebhookSettings, receiver: Receiver, clock: ManualClock) -> Setup:
    """Return the setup on each kind of store."""
    return Setup(ledger, Delivery(ledger, settings, WebhookClient(settings), "node-1"), receiver, clock)


# --- the event ---------------------------------------------------------------------------------------------------


@every_store
@pytest.mark.parametrize("event", [Transition.COMPLETE, Transition.FAIL, Transition.ABANDON])
def test_each_end_is_reported(setup: Setup, store: Store, event: Transition) -> None:
    """The next sweep after any kind of end sends one signed event with the public view of the job."""
    job = run(store)
    webhook = setup.follow()
    setup.sweep()
    assert setup.receiver.got() == []
    values = {Transition.COMPLETE: {"result": '{"total": 7}'}, Transition.FAIL: {"error": ERROR}}.get(event, {})
    ended = apply(store, job, event, wake_in=100.0, reason="the reason", **values)
    setup.sweep()
    (got,) = setup.receiver.got()
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
    assert b"secret" not in got.body
    assert b"args" not in got.body
    done = setup.read(webhook)
    assert (done.state, json.loads(done.result or ""), done.attempt) == (State.COMPLETED, {"status": 204}, 1)
    assert_legal(store.history(webhook.id), done)


@pytest.mark.parametrize("begins", ["before the run", "after the end"])
def test_other_ends_are_reported(setup: Setup, store: Store, begins: str) -> None:
    """A cancellation before the first run is reported, and an earlier end to a webhook that is created after it."""
    if begins == "after the end":
        setup.ended()
    else:
        submit(store)
        setup.follow()
        setup.ledger.cancel("job-1", reason="not needed")
    setup.sweep()
    state = "completed" if begins == "after the end" else "canceled"
    assert setup.receiver.got()[0].verified()["type"] == f"onejob.job.{state}"


def test_each_url_receives_one_event(setup: Setup, store: Store) -> None:
    """Each URL has one webhook, however often it is submitted."""
    job = run(store)
    ids = [setup.follow(path).id for path in ("/ok/a", "/ok/b", "/ok/a")]
    assert ids[0] == ids[2] != ids[1]
    end(store, job)
    setup.sweep()
    assert sorted(got.path for got in setup.receiver.got()) == ["/ok/a", "/ok/b"]


def test_another_service_does_not_deliver(setup: Setup) -> None:
    """A sweeper without the job's task does not deliver its webhook: it would sign with a secret of its own."""
    webhook = setup.ended()
    dispatchers = {WEBHOOK: setup.delivery.deliver}
    sweep(setup.ledger, _no_broker, tasks=frozenset({WEBHOOK, "other.task"}), dispatchers=dispatchers)
    assert (setup.receiver.got(), setup.read(webhook)) == ([], webhook)
    setup.sweep()
    assert len(setup.receiver.got()) == 1


def test_a_later_job_with_the_same_id_has_its_own_webhook(setup: Setup, store: Store) -> None:
    """A purged job and a later job with the same id do not share a webhook."""
    end(store, run(store, nonce="first"))
    first = setup.follow()
    store.delete(["job-1"], sources=FINAL)
    end(store, run(store, nonce="second"))
    assert setup.follow().id != first.id


def test_several_secrets_sign(setup: Setup, settings: WebhookSettings, store: Store) -> None:
    """With two secrets configured, receivers can verify with either of them, and with no other."""
    both = replace(settings, secrets=(SECRET, OLDER))
    end(store, run(store))
    Delivery(setup.ledger, both, WebhookClient(both), "node-1").deliver(setup.follow())
    (got,) = setup.receiver.got()
    assert got.verified(SECRET) == got.verified(OLDER)
    with pytest.raises(WebhookVerificationError):
        got.verified("whsec_" + "x" * 40)


def test_a_forgery_fails_verification(setup: Setup) -> None:
    """Verification rejects a changed body, a changed id, and a replay after five minutes."""
    setup.ended()
    setup.sweep()
    (got,) = setup.receiver.got()
    hook = Webhook(SECRET)
    with pytest.raises(WebhookVerificationError, match="No matching"):
        hook.verify(got.body.replace(b"completed", b"failed"), got.headers)
    with pytest.raises(WebhookVerificationError, match="No matching"):
        hook.verify(got.body, got.headers | {"webhook-id": "another"})
    old = str(int(got.headers["webhook-timestamp"]) - 301)
    with pytest.raises(WebhookVerificationError, match="too old"):
        hook.verify(got.body, got.headers | {"webhook-timestamp": old})


# --- retries --------------------------------------------------------------------------------------------------------


@for_each("path", ["/status/500", "/status/404", "/redirect/307", "/close", "/garbage"])
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
    got = setup.receiver.got(path)
    assert {(each.id, each.body) for each in got} == {(webhook.id, got[0].body)}
    assert "that was attempt 10, the last" in job.reason
    assert json.loads(job.error or "")["traceback"] == ""
    assert_legal(store.history(webhook.id), job)


def test_a_refused_connection_is_retried(setup: Setup, store: Store) -> None:
    """A refused connection is a failed attempt, which is retried."""
    end(store, run(store))
    url = f"http://127.0.0.1:{free_port()}/ok"
    webhook = setup.ledger.follow(webhook_submission(url, read(store)), follows_id="job-1")
    assert webhook is not None
    setup.sweep()
    assert "cannot be reached: Connection refused; next attempt in 5 s" in setup.read(webhook).reason


@for_each("path, wait", [("/status/429/60", 60), ("/status/503/60", 60), ("/status/503/1", 5)])
def test_retry_after_delays_the_next_attempt(setup: Setup, path: str, wait: float) -> None:
    """`Retry-After` of a 429 or 503 applies when it is longer than the schedule."""
    webhook = setup.ended(path, path)
    setup.sweep()
    assert 0.9 * wait <= setup.read(webhook).run_at - setup.clock() <= 1.1 * wait


def test_the_reason_is_short_and_printable(setup: Setup) -> None:
    """The reason contains a short, printable excerpt of the response."""
    webhook = setup.ended("/status/500")
    setup.sweep()
    reason = setup.read(webhook).reason
    assert reason.startswith("the receiver answered 500: no??[31m thanks xxx")
    assert (reason.isprintable(), len(reason) < 200) == (True, True)


def test_the_event_outlives_the_job(setup: Setup, store: Store) -> None:
    """Retries send the event of the first attempt, even when the job has since been purged or redriven."""
    for number, change in enumerate(("purge", "redrive")):
        job_id, path = f"job-{number}", f"/times/1/{number}"
        end(store, run(store, job_id), Transition.FAIL)
        webhook = setup.follow(path, job_id)
        setup.sweep()
        if change == "purge":
            store.delete([job_id], sources=FINAL)
        else:
            setup.ledger.redrive(job_id)
        setup.clock.advance(6.0)
        setup.sweep()
        first, second = setup.receiver.got(path)
        assert (first.body, first.id) == (second.body, second.id)
        assert setup.read(webhook).state is State.COMPLETED


def test_a_job_purged_before_the_first_attempt_fails_it(setup: Setup, store: Store) -> None:
    """A webhook whose job was purged before the first attempt sends nothing, and its reason says so."""
    webhook = setup.ended()
    store.delete(["job-1"], sources=FINAL)
    setup.sweep()
    assert setup.receiver.got() == []
    assert "job job-1 was purged before the first attempt" in setup.read(webhook).reason


def test_gone_is_final(setup: Setup) -> None:
    """After a 410 there is no further attempt: the webhook is a dead letter at once, and `why` says so in sentences."""
    webhook = setup.ended("/status/410")
    setup.sweep()
    job = setup.read(webhook)
    assert (job.state, job.attempt) == (State.FAILED, 1)
    assert "answered 410" in job.reason
    assert "410 means no further attempts" in job.reason
    lines = explain(setup.ledger, webhook.id).sentences
    assert "it waits for the end of job-1" in lines[1]
    assert any("It failed at" in line and "answered 410" in line for line in lines)


@every_store
def test_a_dead_webhook_can_be_redriven(setup: Setup, store: Store) -> None:
    """A redriven webhook is sent at once, with the id and the bytes of the first attempt, until it is purged itself."""
    webhook = setup.ended("/status/410")
    setup.sweep()
    store.delete(["job-1"], sources=FINAL)
    setup.clock.advance(RETENTION[State.FAILED])
    setup.ledger.redrive(webhook.id)
    setup.sweep()
    first, second = setup.receiver.got()
    assert (first.id, first.body) == (second.id, second.body)
    assert setup.read(webhook).state is State.FAILED


# --- workers --------------------------------------------------------------------------------------------------------


def test_a_lost_worker_loses_no_webhook(setup: Setup, store: Store) -> None:
    """A webhook whose worker died is delivered when its lease has expired, with the same id."""
    webhook = setup.ended()
    start(store, webhook.id)
    setup.sweep()
    assert setup.receiver.got() == []
    setup.clock.advance(LEASE)
    setup.sweep()
    assert [got.id for got in setup.receiver.got()] == [webhook.id]
    assert events(store, webhook.id) == ["wait", "claim", "crash", "claim", "complete"]


def test_a_delivery_in_flight_is_released(setup: Setup) -> None:
    """A worker that stops releases its deliveries: they are due at once, and a late response is ignored."""
    webhook = setup.ended("/hold")
    thread = threading.Thread(target=setup.sweep)
    thread.start()
    setup.receiver.await_("/hold")
    setup.delivery.release_all()
    job = setup.read(webhook)
    assert (job.state, job.wake_at) == (State.QUEUED, setup.clock())
    setup.receiver.released.set()
    thread.join()
    assert setup.read(webhook) == job
    setup.sweep()
    assert (len(setup.receiver.got()), setup.read(webhook).state) == (2, State.COMPLETED)


def test_two_workers_deliver_once(setup: Setup) -> None:
    """A second delivery of a webhook in flight sends nothing."""
    webhook = setup.ended("/hold")
    thread = threading.Thread(target=setup.delivery.deliver, args=[webhook])
    thread.start()
    setup.receiver.await_("/hold")
    setup.delivery.deliver(webhook)
    setup.receiver.released.set()
    thread.join()
    assert (len(setup.receiver.got()), setup.read(webhook).state) == (1, State.COMPLETED)


def test_a_webhook_before_the_end_is_postponed(setup: Setup, store: Store) -> None:
    """A webhook that is due before the end of its job is postponed and sends nothing; the end makes it due."""
    job = run(store, lease=1000.0)
    webhook = setup.follow()
    now = setup.clock.advance(LEASE)
    setup.sweep()
    assert setup.read(webhook).wake_at == now + LEASE
    assert setup.receiver.got() == []
    end(store, job)
    setup.sweep()
    assert len(setup.receiver.got()) == 1


def test_an_end_during_postponement_is_not_missed(setup: Setup, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a job that ends while its webhook is being postponed is reported by the next sweep."""
    job = run(store, lease=1000.0)
    setup.follow()
    setup.clock.advance(LEASE)
    change = setup.ledger.change

    def end_first(*args: Any, **values: Any) -> Any:
        if get(store, "job-1") == job:
            end(store, job)
        return change(*args, **values)

    monkeypatch.setattr(setup.ledger, "change", end_first)
    setup.sweep()
    setup.sweep()
    assert len(setup.receiver.got()) == 1


# --- the stored event ----------------------------------------------------------------------------------------------


@every_store
def test_the_event_is_stored_once(setup: Setup, store: Store) -> None:
    """The webhooks of a job share one stored event: none of their rows and steps contains the result."""
    result = json.dumps("r" * 10_000)
    apply(store, run(store), Transition.COMPLETE, wake_in=100.0, result=result)
    webhooks = [setup.follow(f"/status/500/{number}") for number in range(5)]
    setup.sweep()
    assert len(setup.receiver.got()) == 5
    assert all(result.encode() in got.body for got in setup.receiver.got())
    for webhook in map(setup.read, webhooks):
        texts = [webhook.payload, webhook.result or "", *store.steps(webhook.id).values()]
        assert sum(map(len, texts)) < 1000
    (event_id,) = {json.loads(store.steps(webhook.id)["event"]) for webhook in webhooks}
    assert result in (store.keep_event(event_id, None, keep_for=1.0) or "")


def test_a_later_change_of_the_job_changes_no_event(setup: Setup, settings: WebhookSettings, store: Store) -> None:
    """All attempts send the same bytes, also if duplicates are counted and the settings change in between."""
    apply(store, run(store), Transition.COMPLETE, wake_in=100.0, result="1", identity_for=1000.0, keeps_identity=True)
    webhook = setup.follow("/times/1")
    setup.sweep()
    submit(store, "job-2", identity="identity-of-job-1")
    assert read(store).duplicate_count == 1
    other = replace(settings, source="urn:other")
    setup.clock.advance(6.0)
    Delivery(setup.ledger, other, WebhookClient(other), "node-2").deliver(setup.read(webhook))
    first, second = setup.receiver.got()
    assert (first.id, first.body) == (second.id, second.body)


def test_a_missing_event_is_a_failed_attempt(setup: Setup, store: Store) -> None:
    """A webhook whose event is no longer stored sends nothing, and its reason says so."""
    webhook = setup.ended("/status/410")
    setup.sweep()
    setup.clock.advance(100 * 86_400)
    setup.ledger.redrive(webhook.id)
    setup.sweep()
    assert len(setup.receiver.got()) == 1
    assert "the event of job job-1 is no longer stored" in setup.read(webhook).reason


# --- submitters ----------------------------------------------------------------------------------------------------


def test_the_secrets_of_the_submitter_sign(setup: Setup, settings: WebhookSettings, store: Store) -> None:
    """A submitter's own secrets sign its webhooks, and no other secret does; the app's sign those of the others."""
    own = replace(settings, submitter_secrets={"shop": (OLDER,)})
    end(store, run(store))
    job, url = read(store), setup.receiver.url
    for name in ("shop", "other"):
        webhook = webhook_submission(url(f"/ok/{name}"), job, submitter=name, signer=own.signer_of(name))
        followed = setup.ledger.follow(webhook, follows_id="job-1")
        assert followed is not None
        assert followed.submitter == name
        Delivery(setup.ledger, own, WebhookClient(own), "node-1").deliver(followed)
    for name, secret, other in (("shop", OLDER, SECRET), ("other", SECRET, OLDER)):
        (got,) = setup.receiver.got(f"/ok/{name}")
        got.verified(secret)
        with pytest.raises(WebhookVerificationError):
            got.verified(other)


def test_a_signer_without_a_secret_sends_nothing(setup: Setup, store: Store) -> None:
    """A worker that does not know the submitter's secret signs with no other one: the attempt fails."""
    end(store, run(store))
    webhook = webhook_submission(setup.receiver.url(), read(store), submitter="shop", signer="shop")
    followed = setup.ledger.follow(webhook, follows_id="job-1")
    assert followed is not None
    setup.sweep()
    assert setup.receiver.got() == []
    assert "has no secret for 'shop'" in setup.read(followed).reason


def test_submitters_with_secrets_share_no_webhook(store: Store) -> None:
    """The same URL of the same job is one webhook per signer, and otherwise one, whoever names it."""
    job, url = run(store), "https://hooks.example/"
    ids = [webhook_submission(url, job, submitter=name).id for name in ("a", "b")]
    assert ids[0] == ids[1]
    assert len({*ids, *(webhook_submission(url, job, signer=name).id for name in ("a", "b"))}) == 3


def test_a_busy_lookup_is_no_attempt(setup: Setup, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A webhook for which no DNS lookup can be started is due again soon, without a failed attempt."""
    end(store, run(store))
    url = setup.receiver.url(host="localhost")
    webhook = setup.ledger.follow(webhook_submission(url, read(store)), follows_id="job-1")
    assert webhook is not None
    monkeypatch.setattr(transport, "LOOKUPS", FairSlots(0, per_host=2))
    for _ in range(len(SCHEDULE) + 2):
        setup.sweep()
        job = setup.read(webhook)
        assert (job.state, job.retries, job.error) == (State.QUEUED, 0, None)
        setup.clock.advance(LOOKUP_BUSY_SECONDS)
    monkeypatch.undo()
    setup.sweep()
    assert setup.read(webhook).state is State.COMPLETED
