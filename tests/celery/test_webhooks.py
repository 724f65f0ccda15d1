"""Webhooks with real workers: told at least once, and never in the way of a job."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

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
    """Return a house without a worker that reaches the receiver, and tells the ends of `play_calling` to `/ok/task`."""
    settings = SETTINGS | QUICK | {WEBHOOK_URL: receiver.url("/ok/task")}
    house = new_house(tmp_path, getattr(request, "param", "sqlite"), **settings)
    house.app.set_current()
    yield house
    house.close()


@pytest.fixture
def _brief_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the webhooks that this process asks for have a lease that a test can wait for."""
    monkeypatch.setattr(submission, "LEASE", LEASE)


def webhooks(house: House) -> list[Job]:
    """Return the webhooks of a house."""
    return house.ledger.find(Query(task=WEBHOOK, limit=1000))


def was_left(house: House, webhook: Job) -> bool:
    """Tell whether a sweep has looked at a webhook whose job has ended, and put its alarm off."""
    ended = house.job(str(webhook.follows_id)).finished_at
    return ended is not None and webhook.wake_at is not None and webhook.wake_at > ended + 1


def ask(task: Any, key: str, what: str, url: str | None = None) -> Any:
    """Ask for a job whose end is told to a URL."""
    return task.apply_async((key, [what]), webhook_url=url)


@on_every_store("calling")
def test_ends_are_told_to_everybody(calling: House, receiver: Receiver) -> None:
    """Each submitter is told the end of the job that answers, and so is the task's own URL, all signed and once."""
    calling.worker()
    first = ask(calling.play_calling, "a", "hold:a", receiver.url("/ok/1"))
    second = ask(calling.play_calling, "a", "return", receiver.url("/ok/2"))
    ask(calling.play_calling, "a", "return", receiver.url("/ok/2"))
    assert (first.outcome, second.outcome) == (Outcome.ADMITTED, Outcome.ATTACHED)
    calling.open("a")
    first.get(PATIENCE)
    for path in ("/ok/1", "/ok/2", "/ok/task"):
        (got,) = receiver.await_(path)
        told = got.verified()
        assert (told["type"], told["subject"], told["data"]["result"]) == ("onejob.job.completed", first.id, "a")
    calling.assert_quiet()
    assert (len(receiver.got()), {job.state for job in webhooks(calling)}) == (3, {State.COMPLETED})


def test_a_failure_and_a_cancellation_are_told(calling: House, receiver: Receiver) -> None:
    """A job that fails for good and one that is canceled are told, each as what it came to."""
    calling.worker()
    ask(calling.play, "fails", "raise:no", receiver.url("/ok/failed"))
    (got,) = receiver.await_("/ok/failed")
    told = got.verified()
    assert (told["type"], told["data"]["error"]) == (
        "onejob.job.failed",
        {"type": "ValueError", "message": "no"},
    )
    waits = calling.play.apply_async(("waits", ["return"]), countdown=3600, webhook_url=receiver.url("/ok/canceled"))
    calling.ledger.cancel(waits.id)
    assert receiver.await_("/ok/canceled")[0].verified()["type"] == "onejob.job.canceled"
    calling.assert_quiet()


def test_a_kept_result_is_told_at_once(calling: House, receiver: Receiver) -> None:
    """Who asks for what has been done already is told so, and who is refused is told nothing."""
    calling.worker()
    first = ask(calling.play_keeping, "kept", "return")
    first.get(PATIENCE)
    again = ask(calling.play_keeping, "kept", "return", receiver.url("/ok/kept"))
    assert again.outcome is Outcome.REPLAYED
    assert receiver.await_("/ok/kept")[0].verified()["subject"] == first.id
    calling.assert_quiet()


def test_many_are_told(calling: House, receiver: Receiver) -> None:
    """The ends of many jobs that are submitted together are told, one each, and equal ones once."""
    calling.worker()
    items = [(f"many-{number % 20}", ["return"]) for number in range(30)]
    results = calling.play.submit_many(items, webhook_url=receiver.url("/ok/many"))
    got = receiver.await_("/ok/many", 20)
    calling.assert_quiet()
    assert {each.verified()["subject"] for each in got} == {result.id for result in results}
    assert len(receiver.got()) == 20


def test_a_task_is_told_whoever_asked(calling: House, receiver: Receiver) -> None:
    """The URL of a task is told of a job whose submitter could not see to it: the worker does, with its claim."""
    calling.worker()
    calling.app.send_task("play_calling", ("foreign", ["return"]))
    assert receiver.await_("/ok/task")[0].verified()["data"]["result"] == "foreign"
    calling.assert_quiet()


def test_what_cannot_be_told_is_refused(calling: House) -> None:
    """A URL that leads inside is refused before anything is stored, also for many."""
    for url in ("https://169.254.169.254/", "https://user@example.org/", "nonsense"):
        with pytest.raises(InvalidArgumentsError, match="webhook_url"):
            ask(calling.play, "refused", "return", url)
        with pytest.raises(InvalidArgumentsError, match="webhook_url"):
            calling.play.submit_many([("refused", ["return"])], webhook_url=url)
    assert calling.ledger.find(Query()) == []


def test_without_a_secret_it_is_refused(house: House) -> None:
    """Where nothing could be signed, a submission with a webhook says so."""
    with pytest.raises(ConfigurationError, match="onejob_webhook_secrets"):
        ask(house.play, "refused", "return", "https://example.org/")
    assert house.ledger.find(Query()) == []


@on_every_store("calling")
def test_receivers_delay_no_job(calling: House, receiver: Receiver) -> None:
    """While a hundred webhooks hang, and others drip, flood, refuse or lie, jobs and other webhooks go on."""
    calling.worker()
    bad = ["/drip/head", "/flood/body", "/redirect/307", "/status/500", "/garbage", "/close"]
    calling.play.submit_many(
        [(f"hangs-{number}", ["return"]) for number in range(100)], webhook_url=receiver.url("/hang")
    )
    for path in bad:
        ask(calling.play, f"bad{path}", "return", receiver.url(path, host="localhost"))
    ask(calling.play, "nobody", "return", f"http://127.0.0.2:{free_port()}/")
    receiver.await_("/hang", 2)
    results = [ask(calling.play, f"goes-on-{number}", "return") for number in range(20)]
    assert [result.get(PATIENCE) for result in results] == [f"goes-on-{number}" for number in range(20)]
    ask(calling.play, "heard", "return", receiver.url("/ok/heard", host="localhost"))
    receiver.await_("/ok/heard")
    assert not receiver.released.is_set()
    assert receiver.got("/ok/stolen") == []
    await_(lambda: sum(job.state is State.FAILED for job in webhooks(calling)) >= 4)


def test_a_refusal_ends_as_a_dead_letter_that_can_be_sent_again(calling: House, receiver: Receiver) -> None:
    """A webhook that is refused is tried on schedule with one id and the same bytes; dead, it can be redriven."""
    calling.worker()
    result = ask(calling.play, "refused", "return", receiver.url("/times/3"))
    (webhook,) = await_(partial(webhooks, calling))
    dead = calling.await_state(webhook.id, State.FAILED)
    assert "the receiver answered 500; that was attempt 3, the last" in dead.reason
    calling.ledger.redrive(webhook.id)
    calling.await_state(webhook.id, State.COMPLETED)
    got = receiver.got()
    assert (len(got), {(each.id, each.body) for each in got}) == (4, {(webhook.id, got[0].body)})
    assert got[3].verified()["subject"] == result.id
    calling.assert_quiet()


@pytest.mark.usefixtures("_brief_lease")
@on_every_store("calling")
def test_a_killed_worker_loses_no_webhook(calling: House, receiver: Receiver) -> None:
    """When a worker is killed in the middle of a delivery, another one delivers again, with the same id and bytes."""
    first = calling.worker()
    ask(calling.play, "killed", "return", receiver.url("/hold"))
    receiver.await_("/hold")
    first.sigkill()
    receiver.released.set()
    calling.worker()
    one, two = receiver.await_("/hold", 2)
    assert (one.id, one.body) == (two.id, two.body)
    calling.assert_quiet()
    (webhook,) = webhooks(calling)
    assert (webhook.state, webhook.attempt, webhook.crashes) == (State.COMPLETED, 2, 1)


def test_a_worker_that_stops_hands_webhooks_on(calling: House, receiver: Receiver) -> None:
    """A worker that is shut down in the middle of a delivery hands it back at once, and no crash is counted."""
    first = calling.worker()
    ask(calling.play, "stopped", "return", receiver.url("/hold"))
    receiver.await_("/hold")
    first.sigterm()
    first.await_end()
    receiver.released.set()
    calling.worker()
    receiver.await_("/hold", 2)
    calling.assert_quiet()
    (webhook,) = webhooks(calling)
    assert (webhook.state, webhook.attempt, webhook.crashes) == (State.COMPLETED, 2, 0)


def test_a_worker_that_cannot_leaves_webhooks_to_others(calling: House, receiver: Receiver) -> None:
    """A worker that cannot sign says so once and leaves webhooks alone, and one that can delivers them."""
    unable = calling.worker(onejob_webhook_secrets=[], **{WEBHOOK_URL: None})
    for number in range(3):
        ask(calling.play, f"left-{number}", "return", receiver.url("/ok/left"))
    unable.await_text("this worker leaves them to others")
    await_(lambda: all(was_left(calling, job) for job in webhooks(calling)))
    assert (receiver.got(), unable.text.count("this worker leaves them to others")) == ([], 1)
    unable.sigterm()
    unable.await_end()
    calling.worker()
    receiver.await_("/ok/left", 3)
    calling.assert_quiet()


def test_a_pool_of_threads_tells_ends(calling: House, receiver: Receiver) -> None:
    """A worker whose jobs run in threads delivers, too."""
    calling.worker("--pool=threads", "-c", "2")
    ask(calling.play, "threads", "return", receiver.url("/ok/threads"))
    assert json.loads(receiver.await_("/ok/threads")[0].body)["data"]["result"] == "threads"
    calling.assert_quiet()


def test_a_member_of_a_chain_is_told(calling: House, receiver: Receiver) -> None:
    """A signature carries its webhook, and each member of a canvas is told for itself."""
    calling.worker()
    first, second = (receiver.url(f"/ok/{name}") for name in ("first", "second"))
    chain = calling.play.s("chained", ["return"]).set(webhook_url=first) | calling.echo.s().set(webhook_url=second)
    assert chain.apply_async().get(PATIENCE) == "chained"
    subjects = {receiver.await_(f"/ok/{name}")[0].verified()["subject"] for name in ("first", "second")}
    assert len(subjects) == 2
    calling.assert_quiet()


def test_only_the_end_is_told(calling: House, receiver: Receiver) -> None:
    """A job that fails, is lost with its worker's child and is retried is told once, when it has ended."""
    calling.worker()
    result = calling.play_auto.apply_async(("again", ["raise", "kill", "return"]), webhook_url=receiver.url("/ok/end"))
    assert result.get(PATIENCE) == "again"
    assert receiver.await_("/ok/end")[0].verified()["data"]["attempt"] == 3
    calling.assert_quiet()
    assert len(receiver.got()) == 1
