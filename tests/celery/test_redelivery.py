"""Copies of a message are harmless: only a claim in the ledger starts a run, and each claim has a token of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery import chord

from onejob import Outcome, State
from onejob.jobs.lifecycle import Transition
from tests.celery.harness import LEASE, PATIENCE, await_, on_every_store
from tests.quiet import KILLED, provokes

if TYPE_CHECKING:
    from tests.celery.harness import House


@on_every_store("house")
def test_a_redelivered_message_starts_no_second_run(house: House) -> None:
    """Jobs that run longer than the broker's visibility timeout run once, on any number of workers of any pool."""
    house.redeliver_after(1)
    for pool in ("prefork", "threads"):
        house.worker("--pool", pool, "-c", "4")
    keys = [f"outlasts-{number}" for number in range(4)]
    results = [house.play_late.delay(key, ["hold:all"]) for key in keys]
    for result in results:
        await_(lambda: house.ledger.duplicates(result.id))  # noqa: B023 - the ledger has refused a copy
    house.open("all")
    assert [result.get(PATIENCE) for result in results] == keys
    for key, result in zip(keys, results, strict=True):
        (duplicate, *_) = house.ledger.duplicates(result.id)
        assert (duplicate.source, duplicate.outcome) == ("redelivery", Outcome.REJECTED)
        job = house.job(result)
        assert (job.state, job.attempt, job.duplicate_count, house.runs(key)) == (State.COMPLETED, 1, 0, 1)
    house.assert_free(keys[0], "play_late")
    house.assert_quiet()


def test_no_wait_is_redelivered(house: House) -> None:
    """Beyond the visibility timeout a job or a retry waits in the ledger, and a message in Celery: each runs once."""
    house.redeliver_after(1)
    house.two_workers("-c", "2")
    retried = house.play_late.delay("retried", ["retry:3", "return"])
    house.await_state(retried, State.RETRYING)
    far = house.play.apply_async(("far", ["return"]), countdown=3)
    await_(lambda: not house.queued_messages())
    foreign = house.app.send_task("play", ("foreign", ["return"]), countdown=4).id  # which Celery holds
    await_(lambda: sum(worker.text.count(f"[{foreign}] received") for worker in house.workers) > 1)
    assert (far.get(PATIENCE), retried.get(PATIENCE)) == ("far", "retried")
    job = house.assert_ran(far, State.COMPLETED, "far", 1)
    assert (job.started_at or 0.0) >= job.run_at
    house.assert_ran(retried, State.COMPLETED, "retried", 2)
    assert house.play.AsyncResult(foreign).get(PATIENCE) == "foreign"
    house.assert_ran(house.play.AsyncResult(foreign), State.COMPLETED, "foreign", 1)
    house.assert_quiet()


def test_a_message_with_a_priority_of_any_kind_runs(house: House) -> None:
    """A worker survives whatever a producer has written as the priority of a message, and runs its job."""
    sent = [
        house.app.send_task("play", (str(priority), ["return"]), priority=priority).id
        for priority in ("high", [1], -3, 300)
    ]
    house.worker("-c", "1")
    ends = [house.play.AsyncResult(each).get(PATIENCE) for each in sent]
    assert ends == ["high", "[1]", "-3", "300"]
    house.assert_quiet()


@on_every_store("house")
@provokes(Transition.NOTIFY_CANVAS, logs=[KILLED], because="the child dies after the end of its job")
def test_a_canvas_continues_after_a_crash_before_its_dispatch(house: House) -> None:
    """A child that dies between a job's end in the ledger and its dispatch loses and repeats no link and no chord."""
    house.use_lease(LEASE)
    house.worker("-c", "2", hook="die-before-dispatch")
    result = (house.play.s("head", ["return"]) | house.note.s("onejob-tail") | house.plain.s("plain-tail")).delay()
    assert result.get(timeout=PATIENCE) == [["onejob-tail", "head"], "plain-tail"]
    house.await_rest()
    house.assert_free("head")
    (house.directory / "done-die-before-dispatch").unlink()
    header = [house.play.s("one", ["return"]), house.play.s("two", ["return"])]
    assert sorted(chord(header)(house.gather.s("chord")).get(timeout=PATIENCE)) == ["one", "two"]
    house.assert_quiet()
    assert [house.runs(key) for key in ("head", "onejob-tail", "one", "two")] == [2, 1, 1, 1]
    assert (len(house.marks("plain-tail", "plain")), len(house.marks("chord", "gather"))) == (1, 1)
