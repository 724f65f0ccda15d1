"""Webhooks with real workers: delivered at least once, without delaying any job."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import onejob
from onejob import ConfigurationError, InvalidArgumentsError, Outcome
from onejob.jobs.lifecycle import State
from onejob.jobs.records import Query
from onejob.webhooks import job as submission
from onejob.webhooks.job import WEBHOOK
from tests.celery.app import WEBHOOK_URL
from tests.celery.harness import LEASE, PATIENCE, await_, on_every_store
from tests.services import free_port
from tests.webhooks.receiver import SETTINGS, Receiver, receiving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from onejob.jobs.model import Job
    from tests.celery.harness import House

QUICK = {"onejob_webhook_schedule": [0.2, 0.2]}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Return a receiver on loopback."""
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def calling(
    request: pytest.FixtureRequest, new_house: Callable[..., House], tmp_path: Path, receiver: Receiver
) -> Iterator[House]:
    """Return a house without a worker that may call the receiver; the webhook of `play_calling` goes to `/ok/task`."""
    settings = SETTINGS | QUICK | {WEBHOOK_URL: receiver.url("/ok/task")}
    house = new_house(tmp_path, getattr(request, "param", "sqlite"), **settings)
    house.app.set_current()
    yield house
    house.close()


@pytest.fixture
def _brief_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the webhooks that this process creates a lease that a test can wait for."""
    monkeypatch.setattr(submission, "LEASE", LEASE)


def webhooks(house: House) -> list[Job]:
    """Return the webhooks of a house."""
    return house.ledger.find(Query(task=WEBHOOK, limit=1000))


def was_left(house: House, webhook: Job) -> bool:
    """Tell whether a sweep has handled a webhook whose job has ended, and set a later `wake_at`."""
    ended = house.job(str(webhook.follows_id)).finished_at
    return ended is not None and webhook.wake_at is not None and webhook.wake_at > ended + 1


def submit(task: Any, key: str, what: str, url: str | None = None) -> Any:
    """Submit a job with a webhook URL."""
    return task.apply_async((key, [what]), webhook_url=url)


@on_every_store("calling")
def test_every_submitter_is_notified(calling: House, receiver: Receiver) -> None:
    """Each submitter's URL and the task's own URL are notified of the job's end, signed, once each."""
    calling.worker()
    first = submit(calling.play_calling, "a", "hold:a", receiver.url("/ok/1"))
    second = submit(calling.play_calling, "a", "return", receiver.url("/ok/2"))
    submit(calling.play_calling, "a", "return", receiver.url("/ok/2"))
    assert (first.outcome, second.outcome) == (Outcome.ADMITTED, Outcome.ATTACHED)
    calling.open("a")
    first.get(PATIENCE)
    for path in ("/ok/1", "/ok/2", "/ok/task"):
        (got,) = receiver.await_(path)
        event = got.verified()
        assert (event["type"], event["subject"], event["data"]["result"]) == ("onejob.job.completed", first.id, "a")
    calling.assert_quiet()
    assert (len(receiver.got()), {job.state for job in webhooks(calling)}) == (3, {State.COMPLETED})


def test_failures_and_cancellations_are_notified(calling: House, receiver: Receiver) -> None:
    """A job that fails and one that is canceled are notified with their final states."""
    calling.worker()
    submit(calling.play, "fails", "raise:no", receiver.url("/ok/failed"))
    (got,) = receiver.await_("/ok/failed")
    event = got.verified()
    assert (event["type"], event["data"]["error"]) == (
        "onejob.job.failed",
        {"type": "ValueError", "message": "no"},
    )
    waits = calling.play.apply_async(("waits", ["return"]), countdown=3600, webhook_url=receiver.url("/ok/canceled"))
    calling.ledger.cancel(waits.id)
    assert receiver.await_("/ok/canceled")[0].verified()["type"] == "onejob.job.canceled"
    calling.assert_quiet()


def test_a_kept_result_is_notified_at_once(calling: House, receiver: Receiver) -> None:
    """A replayed submission is notified at once, and a rejected one is not notified."""
    calling.worker()
    first = submit(calling.play_keeping, "kept", "return")
    first.get(PATIENCE)
    again = submit(calling.play_keeping, "kept", "return", receiver.url("/ok/kept"))
    assert again.outcome is Outcome.REPLAYED
    assert receiver.await_("/ok/kept")[0].verified()["subject"] == first.id
    calling.assert_quiet()


@on_every_store("calling")
def test_a_new_webhook_of_a_duplicate_uses_the_quota(calling: House, receiver: Receiver) -> None:
    """In Python a new webhook of an existing job counts as a new job does; over the quota only that is refused."""
    one, two, three = (receiver.url(f"/ok/{name}") for name in ("one", "two", "three"))
    first = submit(calling.play, "1", "return", one)
    with onejob.submitter("a", quota="2/hour"):
        assert [submit(calling.play, "1", "return", url).id for url in (one, two, two)] == [first.id] * 3
        assert submit(calling.play, "2", "return").outcome == "admitted"
        with pytest.raises(onejob.QuotaExceededError):
            submit(calling.play, "1", "return", three)
        assert [submit(calling.play, "1", "return", url).id for url in (None, two)] == [first.id] * 2
    assert len(webhooks(calling)) == 2


def test_submit_many_notifies_each_job(calling: House, receiver: Receiver) -> None:
    """Jobs that are submitted together are notified once each, and equal ones once."""
    calling.worker()
    items = [(f"many-{number % 20}", ["return"]) for number in range(30)]
    results = calling.play.submit_many(items, webhook_url=receiver.url("/ok/many"))
    got = receiver.await_("/ok/many", 20)
    calling.assert_quiet()
    assert {each.verified()["subject"] for each in got} == {result.id for result in results}
    assert len(receiver.got()) == 20


def test_the_worker_creates_a_missing_task_webhook(calling: House, receiver: Receiver) -> None:
    """If a submitter could not create the task's webhook, the worker creates it with its claim."""
    calling.worker()
    calling.app.send_task("play_calling", ("foreign", ["return"]))
    assert receiver.await_("/ok/task")[0].verified()["data"]["result"] == "foreign"
    calling.assert_quiet()


def test_an_internal_url_is_refused(calling: House) -> None:
    """A URL of a private address is refused before anything is stored, also by `submit_many`."""
    for url in ("https://169.254.169.254/", "https://user@example.org/", "nonsense"):
        with pytest.raises(InvalidArgumentsError, match="webhook_url"):
            submit(calling.play, "refused", "return", url)
        with pytest.raises(InvalidArgumentsError, match="webhook_url"):
            calling.play.submit_many([("refused", ["return"])], webhook_url=url)
    assert calling.ledger.find(Query()) == []


def test_without_a_secret_it_is_refused(house: House) -> None:
    """Without a signing secret, a submission with a webhook raises an error."""
    with pytest.raises(ConfigurationError, match="onejob_webhook_secrets"):
        submit(house.play, "refused", "return", "https://example.org/")
    assert house.ledger.find(Query()) == []


@on_every_store("calling")
def test_receivers_delay_no_job(calling: House, receiver: Receiver) -> None:
    """While a hundred webhooks hang, and others are slow, oversized or invalid, jobs and other webhooks proceed."""
    calling.worker()
    bad = ["/drip/head", "/flood/body", "/redirect/307", "/status/500", "/garbage", "/close"]
    calling.play.submit_many(
        [(f"hangs-{number}", ["return"]) for number in range(100)], webhook_url=receiver.url("/hang")
    )
    for path in bad:
        submit(calling.play, f"bad{path}", "return", receiver.url(path, host="localhost"))
    submit(calling.play, "unreachable", "return", f"http://127.0.0.2:{free_port()}/")
    receiver.await_("/hang", 2)
    results = [submit(calling.play, f"goes-on-{number}", "return") for number in range(20)]
    assert [result.get(PATIENCE) for result in results] == [f"goes-on-{number}" for number in range(20)]
    submit(calling.play, "delivered", "return", receiver.url("/ok/delivered", host="localhost"))
    receiver.await_("/ok/delivered")
    assert not receiver.released.is_set()
    assert receiver.got("/ok/stolen") == []
    await_(lambda: sum(job.state is State.FAILED for job in webhooks(calling)) >= 4)


def test_a_refusal_ends_as_a_dead_letter_that_can_be_sent_again(calling: House, receiver: Receiver) -> None:
    """A refused webhook is retried on schedule with one id and the same bytes; as a dead letter it can be redriven."""
    calling.worker()
    result = submit(calling.play, "refused", "return", receiver.url("/times/3"))
    (webhook,) = await_(partial(webhooks, calling))
    dead = calling.await_state(webhook.id, State.FAILED)
    assert "the receiver answered 500; that was attempt 3, the last" in dead.reason
    calling.ledger.redrive(webhook.id)
    calling.await_state(webhook.id, State.COMPLETED)
    got = receiver.got()
    assert (len(got), {(each.id, each.body) for each in got}) == (4, {(webhook.id, got[0].body)})
    assert got[3].verified()["subject"] == result.id
    calling.assert_quiet()


@pytest.mark.deep
@pytest.mark.usefixtures("_brief_lease")
@on_every_store("calling")
def test_a_killed_worker_loses_no_webhook(calling: House, receiver: Receiver) -> None:
    """When a worker is killed in the middle of a delivery, another one delivers again, with the same id and bytes."""
    calling.use_lease(LEASE)
    first = calling.worker()
    submit(calling.play, "killed", "return", receiver.url("/hold"))
    receiver.await_("/hold")
    first.sigkill()
    receiver.released.set()
    calling.worker()
    one, two = receiver.await_("/hold", 2)
    assert (one.id, one.body) == (two.id, two.body)
    calling.assert_quiet()
    (webhook,) = webhooks(calling)
    assert (webhook.state, webhook.attempt, webhook.crashes) == (State.COMPLETED, 2, 1)


def test_a_worker_that_stops_releases_webhooks(calling: House, receiver: Receiver) -> None:
    """A worker that is shut down during a delivery releases it at once, and no crash is counted."""
    first = calling.worker()
    submit(calling.play, "stopped", "return", receiver.url("/hold"))
    receiver.await_("/hold")
    first.sigterm()
    first.await_end()
    receiver.released.set()
    calling.worker()
    receiver.await_("/hold", 2)
    calling.assert_quiet()
    (webhook,) = webhooks(calling)
    assert (webhook.state, webhook.attempt, webhook.crashes) == (State.COMPLETED, 2, 0)


@pytest.mark.deep
def test_a_worker_that_cannot_leaves_webhooks_to_others(calling: House, receiver: Receiver) -> None:
    """A worker that cannot sign logs it once and delivers no webhooks; another worker delivers them."""
    unable = calling.worker(onejob_webhook_secrets=[], **{WEBHOOK_URL: None})
    for number in range(3):
        submit(calling.play, f"left-{number}", "return", receiver.url("/ok/left"))
    unable.await_text("this worker cannot deliver them")
    await_(lambda: all(was_left(calling, job) for job in webhooks(calling)))
    assert (receiver.got(), unable.text.count("this worker cannot deliver them")) == ([], 1)
    unable.sigterm()
    unable.await_end()
    calling.worker()
    receiver.await_("/ok/left", 3)
    calling.assert_quiet()


def test_a_threads_pool_delivers(calling: House, receiver: Receiver) -> None:
    """A worker with a threads pool delivers webhooks, too."""
    calling.worker("--pool=threads", "-c", "2")
    submit(calling.play, "threads", "return", receiver.url("/ok/threads"))
    assert json.loads(receiver.await_("/ok/threads")[0].body)["data"]["result"] == "threads"
    calling.assert_quiet()


def test_each_member_of_a_chain_is_notified(calling: House, receiver: Receiver) -> None:
    """A signature carries its webhook, and each member of a canvas has its own."""
    calling.worker()
    first, second = (receiver.url(f"/ok/{name}") for name in ("first", "second"))
    chain = calling.play.s("chained", ["return"]).set(webhook_url=first) | calling.echo.s().set(webhook_url=second)
    assert chain.apply_async().get(PATIENCE) == "chained"
    subjects = {receiver.await_(f"/ok/{name}")[0].verified()["subject"] for name in ("first", "second")}
    assert len(subjects) == 2
    calling.assert_quiet()


def test_only_the_end_is_notified(calling: House, receiver: Receiver) -> None:
    """A job that fails, crashes and is retried is notified once, when it has ended."""
    calling.worker()
    result = calling.play_auto.apply_async(("again", ["raise", "kill", "return"]), webhook_url=receiver.url("/ok/end"))
    assert result.get(PATIENCE) == "again"
    assert receiver.await_("/ok/end")[0].verified()["data"]["attempt"] == 3
    calling.assert_quiet()
    assert len(receiver.got()) == 1
