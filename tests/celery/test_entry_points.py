"""Whatever the entry point of a submission is, the worker claims its job in the ledger: equal jobs run once."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery import beat, signature

from onejob import Outcome, State
from tests.celery.harness import PATIENCE, await_, on_every_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.celery.harness import House


def send_raw(house: House, task: str, args: list[Any]) -> str:
    """Push a message as a program in another language would, by Celery's documented protocol 2."""
    task_id = str(uuid4())
    embed = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    with house.app.connection_for_write() as connection, connection.channel() as channel:
        connection.Producer(channel).publish(
            json.dumps([args, {}, embed]),
            routing_key="celery",
            content_type="application/json",
            content_encoding="utf-8",
            correlation_id=task_id,
            headers={"lang": "go", "task": task, "id": task_id, "root_id": task_id},
        )
    return task_id


def by_beat(house: House, key: str, acts: list[str], *, known: bool) -> str:
    """Send a due entry by Celery beat, with or without the task registered."""
    scheduler = beat.Scheduler(house.app, lazy=True)
    entry = scheduler.Entry(name="due", task="play", args=(key, acts), schedule=None, app=house.app)
    if known:
        return str(scheduler.apply_async(entry, advance=False).id)
    return str(scheduler.send_task("play", (key, acts)).id)


ENTRY_POINTS: dict[str, Callable[[House, str, list[str]], str]] = {
    "delay": lambda house, key, acts: house.play.delay(key, acts).id,
    "apply_async": lambda house, key, acts: house.play.apply_async(kwargs={"key": key, "acts": acts}).id,
    "task_id": lambda house, key, acts: house.play.apply_async((key, acts), task_id=str(uuid4())).id,
    "due": lambda house, key, acts: house.play.apply_async((key, acts), eta=datetime.now(UTC)).id,
    "signature": lambda house, key, acts: house.play.s(key, acts).delay().id,
    "by name": lambda house, key, acts: signature("play", args=(key, acts), app=house.app).delay().id,
    "partial": lambda house, key, acts: house.play.s(acts).delay(key).id,
    "send_task": lambda house, key, acts: house.app.send_task("play", (key, acts)).id,
    "beat": lambda house, key, acts: by_beat(house, key, acts, known=True),
    "beat, unknown": lambda house, key, acts: by_beat(house, key, acts, known=False),
    "another language": lambda house, key, acts: send_raw(house, "play", [key, acts]),
}


@pytest.mark.parametrize("source", ENTRY_POINTS)
def test_a_job_runs_once_through_any_entry_point(shared: House, source: str) -> None:
    """Two submissions through one entry point are one run, and both ids end with its result."""
    key = f"twice {source}"
    ids = [ENTRY_POINTS[source](shared, key, ["hold>return:done"]) for _ in range(2)]
    shared.await_mark(key)
    await_(lambda: all(shared.ledger.get_or_none(job_id) for job_id in ids))
    shared.open(key)
    assert [shared.play.AsyncResult(job_id).get(PATIENCE) for job_id in ids] == ["done", "done"]
    assert shared.runs(key) == 1
    shared.assert_free(key)


@on_every_store("shared")
def test_all_entry_points_share_one_job(shared: House) -> None:
    """Submissions through all entry points at once are one run, and every id ends with its result."""
    first = shared.play.delay("all entry points", ["hold>return:done"])
    shared.await_mark("all entry points")
    ids = [submit(shared, "all entry points", ["return:second"]) for submit in ENTRY_POINTS.values()]
    await_(lambda: all(shared.ledger.get_or_none(job_id) for job_id in ids))
    shared.open("all entry points")
    assert {shared.play.AsyncResult(job_id).get(PATIENCE) for job_id in [first.id, *ids]} == {"done"}
    assert shared.job(first).duplicate_count == len(ids)
    shared.assert_ran(first, State.COMPLETED, "all entry points", 1)


def test_a_foreign_duplicate_frees_nothing(shared: House) -> None:
    """A duplicate that only the worker detects ends without releasing the identity of the running job."""
    first = shared.play.delay("foreign", ["hold"])
    shared.await_mark("foreign")
    sent = shared.app.send_task("play", ("foreign", ["return"]))
    await_(lambda: shared.ledger.get_or_none(sent.id))
    third = shared.play.delay("foreign", ["return"])
    assert (third.id, third.outcome) == (first.id, Outcome.ATTACHED)
    shared.open("foreign")
    assert first.get(PATIENCE) == "foreign"
    shared.assert_ran(first, State.COMPLETED, "foreign", 1)


def test_a_foreign_message_with_wrong_arguments_fails(shared: House) -> None:
    """A message whose arguments do not fit its task fails as in Celery, starts nothing and blocks nothing."""
    sent = shared.app.send_task("play", ("wrong",))
    with pytest.raises(TypeError):
        sent.get(timeout=PATIENCE)
    assert shared.ledger.get_or_none(sent.id) is None
    shared.assert_free("wrong")


@pytest.mark.deep
def test_a_duplicate_under_its_own_id_shares_every_end(shared: House) -> None:
    """A duplicate that has an id of its own ends as the job that it follows: failed, dead-lettered or canceled."""
    pairs = {}
    for end in ("raise", "kill", "ignore"):
        first = shared.play.delay(end, [f"hold>{end}"])
        shared.await_mark(end)
        second = shared.play.apply_async((end, ["return"]), task_id=str(uuid4()))
        assert (second.outcome, second.job.id) == (Outcome.ATTACHED, first.id)
        shared.open(end)
        pairs[end] = first, second
    for end, (first, second) in pairs.items():
        follower = shared.await_state(second, State.FAILED, State.CANCELED)
        followed = shared.job(first)
        assert (follower.state, follower.error) == (followed.state, followed.error)
        assert first.id in follower.reason
        assert shared.runs(end) == (3 if end == "kill" else 1)


def test_a_countdown_holds_at_every_entry_point(shared: House) -> None:
    """`countdown` and `eta` mean the same, whether the datetime is aware, naive (UTC) or text."""
    timestamp = datetime.now(UTC) + timedelta(seconds=100)
    forms: list[dict[str, Any]] = [
        {"countdown": 100},
        {"eta": timestamp},
        {"eta": timestamp.isoformat()},
        {"eta": timestamp.replace(tzinfo=None)},
    ]
    for number, options in enumerate(forms):
        result = shared.play.apply_async((f"eta-{number}", ["return"]), **options)
        job = shared.job(result)
        assert 50 < job.run_at - job.created_at < 101
        result.revoke()


def test_options_of_the_message_are_kept(house: House) -> None:
    """The queue of a submission is used for every publication of its job: the first, a retry's and the sweeper's."""
    results = [
        house.play.apply_async(("routed", ["retry:0.1", "kill", "return"]), queue="special"),
        house.play.apply_async(("delayed", ["return"]), queue="special", countdown=0.1),
    ]
    assert house.broker.llen("celery") == 0
    house.worker("-c", "1", "-Q", "special")
    assert [result.get(PATIENCE) for result in results] == ["routed", "delayed"]
    assert [house.runs("routed"), house.runs("delayed")] == [3, 1]
    house.assert_quiet()
