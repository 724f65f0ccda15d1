"""Webhooks with real workers: delivered at least once, without delaying any job."""

from collections.abc import Callable
from typing import Any

import pytest

import onejob
from onejob import Outcome
from onejob.errors import ConfigurationError, InvalidArgumentsError
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import JobRow
from onejob.observability.metrics import WEBHOOK_TASK
from tests.cases import further
from tests.celery.app import WEBHOOK_URL
from tests.celery.harness import PATIENCE, Cluster, await_
from tests.quiet import provokes
from tests.services import free_port
from tests.webhooks.receiver import SETTINGS, Receiver

QUICK = {"test_webhooks": [0.2, 0.2]}


@pytest.fixture
def calling(new_cluster: Callable[..., Cluster], receiver: Receiver) -> Cluster:
    """Return a cluster without a worker that may call a receiver; the webhook of `play_webhook` goes to `/ok/task`."""
    return new_cluster(**SETTINGS, **QUICK, **{WEBHOOK_URL: receiver.url("/ok/task")})


def webhooks(cluster: Cluster) -> list[JobRow]:
    return cluster.jobs(task=WEBHOOK_TASK)


def submit(task: Any, key: str, what: str, url: str | None = None) -> Any:
    return task.apply_async((key, [what]), webhook_url=url)


@pytest.mark.parametrize("pool", ["prefork", *further("threads")])
def test_every_end_is_notified(calling: Cluster, receiver: Receiver, pool: str) -> None:
    """Each URL of a job, of its submitters and of its task, is notified of its end alone, signed, once each."""
    calling.worker("--pool", pool, "-c", "4")
    first = submit(calling.play_webhook, "a", "hold:a", receiver.url("/ok/1"))
    for _ in range(2):
        assert submit(calling.play_webhook, "a", "return", receiver.url("/ok/2")).id == first.id
    calling.open("a")
    for path in ("/ok/1", "/ok/2", "/ok/task"):
        event = receiver.await_(path)[0].verified()
        assert (event["type"], event["subject"], event["data"]["result"]) == ("onejob.job.completed", first.id, "a")
    calling.play_autoretry.apply_async(
        ("again", ["raise", "raise", "raise:no"]), webhook_url=receiver.url("/ok/failed")
    )
    event = receiver.await_("/ok/failed")[0].verified()
    assert (event["type"], event["data"]["attempt"]) == ("onejob.job.failed", 3)
    assert event["data"]["error"] == {"type": "ValueError", "message": "no"}
    calling.assert_quiet()
    assert (len(receiver.got()), {job.state for job in webhooks(calling)}) == (4, {State.COMPLETED})


def test_every_way_to_submit_has_webhooks(calling: Cluster, receiver: Receiver) -> None:
    """Jobs of a batch, members of a chain, replayed submissions, and a job that only the worker knew, are notified."""
    calling.worker()
    items = [(f"many-{number % 5}", ["return"]) for number in range(8)]
    many = calling.play.submit_many(items, webhook_url=receiver.url("/ok/many"))
    urls = [receiver.url(f"/ok/{name}") for name in ("first", "second")]
    chain = calling.play.s("chained", ["return"]).set(webhook_url=urls[0]) | calling.echo.s().set(webhook_url=urls[1])
    assert chain.apply_async().get(PATIENCE) == "chained"
    kept = submit(calling.play_unique_for, "kept", "return")
    kept.get(PATIENCE)
    assert submit(calling.play_unique_for, "kept", "return", receiver.url("/ok/kept")).outcome is Outcome.REPLAYED
    calling.app.send_task("play_webhook", ("foreign", ["return"]))
    assert receiver.await_("/ok/task")[0].verified()["data"]["result"] == "foreign"
    assert receiver.await_("/ok/kept")[0].verified()["subject"] == kept.id
    assert {each.verified()["subject"] for each in receiver.await_("/ok/many", 5)} == {result.id for result in many}
    assert len({receiver.await_(f"/ok/{name}")[0].verified()["subject"] for name in ("first", "second")}) == 2
    calling.assert_quiet()
    assert len(receiver.got()) == 9


def test_the_webhook_of_a_follower_reports_its_own_end(calling: Cluster, receiver: Receiver) -> None:
    """The subject of a webhook is the id that its submission got; a follower that is revoked alone is canceled."""
    calling.worker()
    live = calling.begin("live", ["hold:live"])
    for name in ("kept", "revoked"):
        duplicate: dict[str, Any] = {"args": ("live", ["return"]), "task_id": f"the follower {name}"}
        calling.play.apply_async(**duplicate, webhook_url=receiver.url(f"/ok/{name}"))
    calling.ledger.cancel("the follower revoked")
    revoked = receiver.await_("/ok/revoked")[0].verified()
    assert (revoked["type"], revoked["subject"]) == ("onejob.job.canceled", "the follower revoked")
    calling.open("live")
    kept = receiver.await_("/ok/kept")[0].verified()
    assert (kept["type"], kept["subject"], kept["data"]["result"]) == (
        "onejob.job.completed", "the follower kept", "live",
    )  # fmt: skip
    assert live.get(PATIENCE) == "live"
    calling.assert_quiet()


def test_a_url_that_cannot_be_called_is_refused(calling: Cluster) -> None:
    """A URL of a private address, or one without a signing secret, is refused before anything is stored."""
    url = "https://169.254.169.254/"
    for send in (calling.play.apply_async, lambda item, **options: calling.play.submit_many([item], **options)):
        with pytest.raises(InvalidArgumentsError, match="webhook_url"):
            send(("refused", ["return"]), webhook_url=url)
    unable = calling.another_app(onejob_webhook_secrets=[], **{WEBHOOK_URL: None})
    with pytest.raises(ConfigurationError, match="onejob_webhook_secrets"):
        submit(unable.tasks["play"], "refused", "return", "https://example.org/")
    assert calling.jobs() == []


def test_a_new_webhook_of_a_duplicate_uses_the_quota(calling: Cluster, receiver: Receiver) -> None:
    """In Python a new webhook of an existing job counts as a new job does; over the quota only that is refused."""
    one, two, three = (receiver.url(f"/ok/{name}") for name in ("one", "two", "three"))
    first = submit(calling.play, "1", "return", one)
    with onejob.submitter("a", quota="2/hour"):
        assert [submit(calling.play, "1", "return", url).id for url in (one, two, two)] == [first.id] * 3
        assert submit(calling.play, "2", "return").outcome == "admitted"
        with pytest.raises(onejob.errors.QuotaExceededError):
            submit(calling.play, "1", "return", three)
        assert [submit(calling.play, "1", "return", url).id for url in (None, two)] == [first.id] * 2
    assert len(webhooks(calling)) == 2


@provokes(Transition.RETRY, because="no receiver accepts")
def test_receivers_delay_no_job(calling: Cluster, receiver: Receiver) -> None:
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


@provokes(Transition.RELEASE, because="the worker shuts down")
def test_a_worker_that_stops_releases_webhooks(calling: Cluster, receiver: Receiver) -> None:
    """A worker that is shut down during a delivery releases it at once, and no crash is counted."""
    first = calling.worker()
    submit(calling.play, "stopped", "return", receiver.url("/hold"))
    receiver.await_("/hold")
    first.stop()
    receiver.released.set()
    calling.worker()
    receiver.await_("/hold", 2)
    calling.assert_quiet()
    (webhook,) = webhooks(calling)
    assert (webhook.state, webhook.attempt, webhook.crashes) == (State.COMPLETED, 2, 0)


@pytest.mark.deep
def test_a_worker_that_cannot_leaves_webhooks_to_others(calling: Cluster, receiver: Receiver) -> None:
    """A worker that cannot sign logs it once and delivers no webhooks; another worker delivers them."""
    unable = calling.worker(onejob_webhook_secrets=[], **{WEBHOOK_URL: None})
    for number in range(3):
        submit(calling.play, f"left-{number}", "return", receiver.url("/ok/left"))
    unable.await_text("this worker cannot deliver them")
    await_(lambda: all(was_left(calling, job) for job in webhooks(calling)))
    assert (receiver.got(), unable.text.count("this worker cannot deliver them")) == ([], 1)
    unable.stop()
    calling.worker()
    receiver.await_("/ok/left", 3)
    calling.assert_quiet()


def was_left(cluster: Cluster, webhook: JobRow) -> bool:
    """Return whether a sweep has handled a webhook whose job has ended, and set a later `wake_at`."""
    ended = cluster.job(str(webhook.follows_id)).finished_at
    return ended is not None and webhook.wake_at is not None and webhook.wake_at > ended + 1
