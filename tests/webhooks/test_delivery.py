"""Webhooks as jobs: claimed, sent, tried again and told, whatever receivers and workers do."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from onejob.jobs.lifecycle import FINAL, State, Transition
from onejob.jobs.model import Job
from onejob.ledger.explain import explain
from onejob.ledger.sweep import sweep
from onejob.webhooks.client import WebhookClient
from onejob.webhooks.cloudevent import MEDIA_TYPE
from onejob.webhooks.delivery import PUT_OFF, Delivery
from onejob.webhooks.dispatcher import LINE, LINE_PER_HOST, THREADS, THREADS_PER_HOST, DeliveryQueue
from onejob.webhooks.job import LEASE, WEBHOOK, WebhookCall, webhook_to
from onejob.webhooks.settings import SCHEDULE
from tests.contract.support import ManualClock, apply, assert_legal, end, events, get, read, run, start, submit
from tests.services import eventually, free_port
from tests.webhooks.receiver import OLDER, SECRET, Receiver

if TYPE_CHECKING:
    from onejob.ledger.ledger import Ledger
    from onejob.stores.protocol import Store
    from onejob.webhooks.settings import WebhookSettings

ERROR = '{"type": "ValueError", "message": "no", "traceback": "a secret path"}'


@dataclass
class Post:
    """A ledger, a way to deliver what is due, and somebody who receives it."""

    ledger: Ledger
    delivery: Delivery
    receiver: Receiver
    clock: ManualClock

    def follow(self, path: str = "/ok", followed: str = "job-1") -> Job:
        """Have the end of a job told to a path of the receiver."""
        job = self.ledger.follow(webhook_to(self.receiver.url(path), self.ledger.get(followed)), follows_id=followed)
        assert job is not None
        return job

    def sweep(self) -> None:
        """Sweep once, and deliver what is due on the spot."""
        sweep(self.ledger, _no_broker, dispatchers={WEBHOOK: self.delivery.deliver})

    def read(self, job: Job) -> Job:
        """A job as it is now."""
        return self.ledger.get(job.id)


def _no_broker(job: Job) -> None:
    if job.task == WEBHOOK:
        msg = "a webhook was published"
        raise AssertionError(msg)


@pytest.fixture
def post(ledger: Ledger, settings: WebhookSettings, receiver: Receiver, clock: ManualClock) -> Post:
    """Return a post office on each kind of store."""
    return Post(ledger, Delivery(ledger, settings, WebhookClient(settings), "node-1"), receiver, clock)


# --- what is told ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", [Transition.COMPLETE, Transition.FAIL, Transition.ABANDON])
def test_an_end_is_told(post: Post, store: Store, event: Transition) -> None:
    """Each kind of end is told at the next sweep: one signed event, about the job as anybody may see it."""
    job = run(store)
    webhook = post.follow()
    post.sweep()
    assert post.receiver.got() == []
    values = {Transition.COMPLETE: {"result": '{"total": 7}'}, Transition.FAIL: {"error": ERROR}}.get(event, {})
    ended = apply(store, job, event, wake_in=100.0, reason="so it ended", **values)
    post.sweep()
    (got,) = post.receiver.got()
    told = got.verified()
    assert (got.headers["content-type"], got.id) == (MEDIA_TYPE, webhook.id)
    assert {name: told[name] for name in ("specversion", "id", "source", "type", "subject", "datacontenttype")} == {
        "specversion": "1.0", "id": webhook.id, "source": "urn:onejob:tests", "type": f"onejob.jobs.model.{ended.state}",
        "subject": "job-1", "datacontenttype": "application/json",
    }  # fmt: skip
    assert datetime.fromisoformat(told["time"]).timestamp() == post.clock()
    data = told["data"]
    assert (data["id"], data["state"], data["reason"]) == ("job-1", ended.state, "so it ended")
    assert data["result"] == ({"total": 7} if event is Transition.COMPLETE else None)
    assert data["error"] == ({"type": "ValueError", "message": "no"} if event is Transition.FAIL else None)
    assert b"secret" not in got.body
    assert b"args" not in got.body
    done = post.read(webhook)
    assert (done.state, json.loads(done.result or ""), done.attempt) == (State.COMPLETED, {"status": 204}, 1)
    assert_legal(store.history(webhook.id), done)


def test_an_end_before_a_run_is_told(post: Post, store: Store) -> None:
    """A job that is canceled before it ran is told, too."""
    submit(store)
    post.follow()
    post.ledger.cancel("job-1", reason="nobody wants it")
    post.sweep()
    assert post.receiver.got()[0].verified()["type"] == "onejob.job.canceled"


def test_an_end_that_was_is_told_at_once(post: Post, store: Store) -> None:
    """Who asks after the end is told at the next sweep."""
    end(store, run(store))
    post.follow()
    post.sweep()
    assert post.receiver.got()[0].verified()["data"]["state"] == "completed"


def test_each_url_is_told_once(post: Post, store: Store) -> None:
    """Each URL has a webhook of its own, and equal ones are one."""
    job = run(store)
    ids = [post.follow(path).id for path in ("/ok/a", "/ok/b", "/ok/a")]
    assert ids[0] == ids[2] != ids[1]
    end(store, job)
    post.sweep()
    assert sorted(got.path for got in post.receiver.got()) == ["/ok/a", "/ok/b"]


def test_another_job_with_the_same_id_is_told_anew(post: Post, store: Store) -> None:
    """A job that was purged and one that gets its id later do not share a webhook."""
    end(store, run(store, nonce="first"))
    first = post.follow()
    store.delete(["job-1"], sources=FINAL)
    end(store, run(store, nonce="second"))
    assert post.follow().id != first.id


def test_several_secrets_sign(post: Post, settings: WebhookSettings, store: Store) -> None:
    """While secrets are changed over, receivers with either can verify, and nobody else."""
    both = replace(settings, secrets=(SECRET, OLDER))
    end(store, run(store))
    Delivery(post.ledger, both, WebhookClient(both), "node-1").deliver(post.follow())
    (got,) = post.receiver.got()
    assert got.verified(SECRET) == got.verified(OLDER)
    with pytest.raises(WebhookVerificationError):
        got.verified("whsec_" + "x" * 40)


def test_a_forgery_is_seen(post: Post, store: Store) -> None:
    """A receiver that verifies refuses another body, another id, and a webhook that is kept and sent again later."""
    end(store, run(store))
    post.follow()
    post.sweep()
    (got,) = post.receiver.got()
    hook = Webhook(SECRET)
    with pytest.raises(WebhookVerificationError, match="No matching"):
        hook.verify(got.body.replace(b"completed", b"failed"), got.headers)
    with pytest.raises(WebhookVerificationError, match="No matching"):
        hook.verify(got.body, got.headers | {"webhook-id": "another"})
    old = str(int(got.headers["webhook-timestamp"]) - 301)
    with pytest.raises(WebhookVerificationError, match="too old"):
        hook.verify(got.body, got.headers | {"webhook-timestamp": old})


# --- trying again ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/status/500", "/status/404", "/redirect/307", "/close", "/garbage"])
def test_a_failure_is_tried_again_on_schedule(post: Post, store: Store, path: str) -> None:
    """An attempt that fails is repeated on schedule, with the same id and bytes; after the last it is a dead letter."""
    end(store, run(store))
    job = webhook = post.follow(path)
    for number, pause in enumerate((*SCHEDULE, 0.0), start=1):
        post.sweep()
        post.sweep()
        assert len(post.receiver.got(path)) == number
        job = post.read(webhook)
        assert job.state is (State.RETRYING if pause else State.FAILED), job
        if pause:
            assert 0.9 * pause <= job.run_at - post.clock() <= 1.1 * pause
            post.clock.advance(job.run_at - post.clock())
    got = post.receiver.got()
    assert {(each.id, each.body) for each in got} == {(webhook.id, got[0].body)}
    assert "that was attempt 10, the last" in job.reason
    assert json.loads(job.error or "")["traceback"] == ""
    assert_legal(store.history(webhook.id), job)


def test_nobody_there_is_tried_again(post: Post, store: Store) -> None:
    """While nobody listens the webhook waits, and is delivered when somebody does."""
    end(store, run(store))
    url = f"http://127.0.0.1:{free_port()}/ok"
    webhook = post.ledger.follow(webhook_to(url, read(store)), follows_id="job-1")
    assert webhook is not None
    post.sweep()
    assert "cannot be reached: Connection refused; again in 5 s" in post.read(webhook).reason


def test_gone_is_final(post: Post, store: Store) -> None:
    """A receiver that answers 410 is not asked again: the webhook is a dead letter at once."""
    end(store, run(store))
    webhook = post.follow("/status/410")
    post.sweep()
    job = post.read(webhook)
    assert (job.state, job.attempt) == (State.FAILED, 1)
    assert "answered 410" in job.reason
    assert "wants no more" in job.reason


@pytest.mark.parametrize(("path", "wait"), [("/status/429/60", 60), ("/status/503/60", 60), ("/status/503/1", 5)])
def test_a_receiver_is_given_the_time_it_asks_for(post: Post, store: Store, path: str, wait: float) -> None:
    """`Retry-After` of a busy receiver counts when it is longer than the schedule."""
    end(store, run(store))
    webhook = post.follow(path)
    post.sweep()
    assert 0.9 * wait <= post.read(webhook).run_at - post.clock() <= 1.1 * wait


def test_the_reason_is_short_and_printable(post: Post, store: Store) -> None:
    """Of what a receiver says, a short printable line is kept."""
    end(store, run(store))
    webhook = post.follow("/status/500")
    post.sweep()
    reason = post.read(webhook).reason
    assert reason.startswith("the receiver answered 500: no??[31m thanks xxx")
    assert reason.isprintable()
    assert len(reason) < 200


def test_what_is_sent_outlives_the_job(post: Post, store: Store) -> None:
    """A job that is purged, or sent again, after the first attempt changes nothing in what is told."""
    for number, change in enumerate(("purge", "redrive")):
        job_id, path = f"job-{number}", f"/times/1/{number}"
        end(store, run(store, job_id), Transition.FAIL)
        webhook = post.follow(path, job_id)
        post.sweep()
        if change == "purge":
            store.delete([job_id], sources=FINAL)
        else:
            post.ledger.redrive(job_id)
        post.clock.advance(6.0)
        post.sweep()
        first, second = post.receiver.got(path)
        assert (first.body, first.id) == (second.body, second.id)
        assert post.read(webhook).state is State.COMPLETED


def test_a_job_that_is_gone_cannot_be_told(post: Post, store: Store) -> None:
    """A webhook whose job was purged before the first attempt says so."""
    end(store, run(store))
    webhook = post.follow()
    store.delete(["job-1"], sources=FINAL)
    post.sweep()
    assert post.receiver.got() == []
    assert "job job-1 was purged before its end was told" in post.read(webhook).reason


def test_a_dead_webhook_can_be_sent_again(post: Post, store: Store) -> None:
    """A dead webhook that is redriven is sent at once, with the id and the bytes of the first attempt."""
    end(store, run(store))
    webhook = post.follow("/status/410")
    post.sweep()
    store.delete(["job-1"], sources=FINAL)
    post.ledger.redrive(webhook.id)
    post.sweep()
    first, second = post.receiver.got()
    assert (first.id, first.body) == (second.id, second.body)
    assert post.read(webhook).state is State.FAILED


# --- workers --------------------------------------------------------------------------------------------------------


def test_a_lost_worker_is_no_lost_webhook(post: Post, store: Store) -> None:
    """A webhook whose worker died is delivered again when its lease is over, with the same id."""
    end(store, run(store))
    webhook = post.follow()
    start(store, webhook.id)
    post.sweep()
    assert post.receiver.got() == []
    post.clock.advance(LEASE)
    post.sweep()
    assert [got.id for got in post.receiver.got()] == [webhook.id]
    assert events(store, webhook.id) == ["wait", "claim", "crash", "claim", "complete"]


def test_what_is_under_way_is_handed_back(post: Post, store: Store) -> None:
    """A worker that stops hands back what it is delivering: it is due at once, and the late answer counts no more."""
    end(store, run(store))
    webhook = post.follow("/hold")
    thread = threading.Thread(target=post.sweep)
    thread.start()
    post.receiver.await_("/hold")
    post.delivery.hand_back()
    job = post.read(webhook)
    assert (job.state, job.wake_at) == (State.QUEUED, post.clock())
    post.receiver.released.set()
    thread.join()
    assert post.read(webhook) == job
    post.sweep()
    assert (len(post.receiver.got()), post.read(webhook).state) == (2, State.COMPLETED)


def test_two_workers_deliver_once(post: Post, store: Store) -> None:
    """Whoever else is given the same webhook meanwhile sends nothing."""
    end(store, run(store))
    webhook = post.follow("/hold")
    thread = threading.Thread(target=post.delivery.deliver, args=[webhook])
    thread.start()
    post.receiver.await_("/hold")
    post.delivery.deliver(webhook)
    post.receiver.released.set()
    thread.join()
    assert (len(post.receiver.got()), post.read(webhook).state) == (1, State.COMPLETED)


def test_a_webhook_that_comes_too_early_sleeps_on(post: Post, store: Store) -> None:
    """A webhook whose alarm rings before the end of its job sends nothing, and the end rings again."""
    job = run(store)
    webhook = post.follow()
    early = replace(webhook, wake_at=post.clock())
    post.delivery.deliver(early)
    assert post.read(webhook).wake_at == post.clock() + PUT_OFF
    end(store, job)
    post.sweep()
    assert len(post.receiver.got()) == 1


def test_an_end_between_two_looks_is_not_missed(post: Post, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that ends while its webhook is put off is told at once."""
    job = run(store)
    webhook = post.follow()
    put_off = post.ledger.change

    def end_first(*args: Any, **values: Any) -> Any:
        if get(store, "job-1") == job:
            end(store, job)
        return put_off(*args, **values)

    monkeypatch.setattr(post.ledger, "change", end_first)
    post.delivery.deliver(webhook)
    assert len(post.receiver.got()) == 1


def test_why_tells_its_life(post: Post, store: Store) -> None:
    """The life of a webhook can be read in sentences."""
    end(store, run(store))
    webhook = post.follow("/status/410")
    post.sweep()
    lines = explain(post.read(webhook), store.history(webhook.id))
    assert "it waits for the end of job-1" in lines[1]
    assert "answered 410" in lines[-1]


# --- the courier ----------------------------------------------------------------------------------------------------


def parcel(number: int, host: str) -> Job:
    """Return a webhook job, which no ledger knows."""
    job = Job.from_row(dict.fromkeys(Job.__dataclass_fields__, 0) | {"id": str(number), "state": "queued"})
    return replace(job, payload=json.dumps({"kwargs": WebhookCall("job", f"https://{host}/")._asdict()}))


class Gate:
    """A delivery that waits for its host's gate."""

    def __init__(self, *slow: str) -> None:
        self._slow = slow
        self._lock = threading.Lock()
        self.opened = threading.Event()
        self.begun: list[str] = []
        self.applied: list[str] = []

    def __call__(self, job: Job) -> None:
        host = WebhookCall.of(job).url.split("/")[2]
        with self._lock:
            self.begun.append(host)
        if host in self._slow:
            self.opened.wait(60)
        with self._lock:
            self.applied.append(host)


def test_a_slow_host_takes_few_threads() -> None:
    """While one host hangs, with as many webhooks as are taken, those of others are delivered."""
    gate = Gate("slow")
    delivery_queue = DeliveryQueue(gate)
    taken = [delivery_queue.take(parcel(number, "slow")) for number in range(2 * LINE_PER_HOST)]
    assert sum(taken) <= LINE_PER_HOST + THREADS_PER_HOST
    for number in range(1000, 1010):
        assert delivery_queue.take(parcel(number, "quick"))
    eventually(lambda: gate.applied.count("quick") == 10, 40)
    assert gate.begun.count("slow") == THREADS_PER_HOST
    gate.opened.set()
    eventually(lambda: gate.applied.count("slow") == sum(taken), 40)


def test_there_are_few_threads() -> None:
    """However many hosts hang, there are only so many threads, and what finds no place is refused."""
    hosts = [f"h{number}" for number in range(LINE + 2 * THREADS)]
    gate = Gate(*hosts)
    delivery_queue = DeliveryQueue(gate)
    taken = sum(delivery_queue.take(parcel(number, host)) for number, host in enumerate(hosts))
    eventually(lambda: len(gate.begun) == THREADS, 40)
    assert LINE <= taken <= LINE + THREADS
    gate.opened.set()
    eventually(lambda: len(gate.applied) == taken, 40)
    eventually(lambda: not [each for each in threading.enumerate() if each.name == "onejob-courier"], 40)


def test_a_job_that_comes_again_is_one() -> None:
    """A job that is in the line, or under way, is not taken twice."""
    gate = Gate("slow")
    delivery_queue = DeliveryQueue(gate)
    assert all(delivery_queue.take(parcel(1, "slow")) for _ in range(10))
    eventually(lambda: gate.begun == ["slow"], 40)
    assert delivery_queue.take(parcel(1, "slow"))
    gate.opened.set()
    eventually(lambda: gate.applied == ["slow"], 40)
    delivery_queue.stop(0)
    assert gate.begun == ["slow"]


def test_a_courier_that_stopped_takes_nothing() -> None:
    """A courier that stops forgets its line, waits for what is under way, and takes nothing more."""
    gate = Gate("slow")
    delivery_queue = DeliveryQueue(gate)
    for number in range(10):
        delivery_queue.take(parcel(number, "slow"))
    eventually(lambda: len(gate.begun) == THREADS_PER_HOST, 40)
    delivery_queue.stop(0)
    assert not delivery_queue.take(parcel(99, "quick"))
    gate.opened.set()
    delivery_queue.stop(40)
    assert gate.applied == ["slow"] * THREADS_PER_HOST


def test_a_fault_of_ours_ends_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    """A delivery that raises is told in the log, and the next one follows."""
    done = []

    def deliver(job: Job) -> None:
        if job.id == "0":
            raise ZeroDivisionError
        done.append(job.id)

    delivery_queue = DeliveryQueue(deliver)
    for number in range(5):
        delivery_queue.take(parcel(number, "host"))
    eventually(lambda: len(done) == 4, 40)
    assert eventually(lambda: "webhook 0 failed by a fault of ours" in caplog.text, 40)
