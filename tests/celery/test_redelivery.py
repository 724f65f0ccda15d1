"""Copies of a message are harmless: only a claim in the ledger starts a run, and each claim has a token of its own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from celery import chord

from onejob import Outcome, State
from tests.celery.harness import PATIENCE, await_, in_houses, on_both_stores

if TYPE_CHECKING:
    from onejob import AsyncResult
    from tests.celery.harness import House


def await_copies(house: House, result: AsyncResult) -> None:
    """Wait until the workers together have received a job's message twice."""
    line = f"[{result.id}] received"
    await_(lambda: sum(worker.text.count(line) for worker in house.workers) > 1)


@in_houses("sqlite-restless", "redis-restless", "sqlite-restless-threads")
def test_a_redelivered_message_starts_no_second_run(shared: House) -> None:
    """Jobs that run longer than the broker's visibility timeout run once each, on however many workers."""
    keys = [f"outlasts-{number}" for number in range(4)]
    results = [shared.play_late.delay(key, ["hold:all"]) for key in keys]
    for result in results:
        await_copies(shared, result)
    shared.open("all")
    assert [result.get(PATIENCE) for result in results] == keys
    for key, result in zip(keys, results, strict=True):
        assert shared.assert_ran(result, State.COMPLETED, key, 1).attempt == 1


@in_houses("sqlite-restless")
def test_a_far_time_never_meets_the_visibility_timeout(shared: House) -> None:
    """A job or a retry whose time lies beyond the visibility timeout waits in the ledger, and runs once when due."""
    submitted_at = time.monotonic()
    far = shared.play.apply_async(("far", ["return"]), countdown=3)
    assert shared.queued_messages() == 0
    retried = shared.play_late.delay("retried", ["retry:3", "return"])
    mark = shared.await_mark("far")[0]
    assert mark["at"] - submitted_at >= 3
    assert (far.get(PATIENCE), retried.get(PATIENCE)) == ("far", "retried")
    shared.assert_ran(far, State.COMPLETED, "far", 1)
    shared.assert_ran(retried, State.COMPLETED, "retried", 2)


@in_houses("sqlite-restless")
def test_a_foreign_message_with_a_far_time_starts_one_run(shared: House) -> None:
    """A message with a time of its own, that Celery holds and the broker repeats, starts one run."""
    sent = shared.app.send_task("play", ("foreign", ["return"]), countdown=4)
    result = shared.play.AsyncResult(sent.id)
    await_copies(shared, result)
    assert result.get(PATIENCE) == "foreign"
    shared.await_rest()
    shared.assert_ran(result, State.COMPLETED, "foreign", 1)


@on_both_stores("house")
def test_a_chain_goes_on_after_a_crash_at_its_worst_moment(house: House) -> None:
    """A child that dies between the end in the ledger and the dispatch of the chain loses no link and repeats none."""
    house.worker("-c", "2", hook="die-before-dispatch")
    chain = house.play.s("head", ["return"]) | house.note.s("onejob-tail") | house.plain.s("plain-tail")
    result = chain.delay()
    house.await_mark("plain-tail", "plain")
    house.await_rest()
    assert house.runs("head") == 1
    assert house.runs("onejob-tail") == 1
    assert house.marks("plain-tail", "plain")[0]["args"] == [["onejob-tail", "head"], "plain-tail"]
    assert result.get(timeout=PATIENCE) == [["onejob-tail", "head"], "plain-tail"]
    house.assert_free("head")
    house.assert_quiet()
    assert len(house.marks("plain-tail", "plain")) == 1


def test_a_chord_goes_on_after_a_crash_at_its_worst_moment(house: House) -> None:
    """A child that dies between the end in the ledger and the chord's count leaves no chord waiting."""
    house.worker("-c", "2", hook="die-before-dispatch")
    result = chord([house.play.s("one", ["return"]), house.play.s("two", ["return"])])(house.gather.s("chord"))
    assert sorted(result.get(timeout=PATIENCE)) == ["one", "two"]
    house.assert_quiet()
    assert len(house.marks("chord", "gather")) == 1
    assert (house.runs("one"), house.runs("two")) == (1, 1)


@on_both_stores("house")
def test_a_job_that_waits_longer_than_its_lease_stays_one(house: House) -> None:
    """A job that waits in the queue longer than its lease keeps its identity, and runs once when its turn comes."""
    house.worker("-c", "1", worker_prefetch_multiplier=8)
    first = house.play.delay("front", ["hold"])
    house.await_mark("front")
    waiting = house.play.delay("waiting", ["return"])
    await_(lambda: house.job(waiting).published)
    again = house.play.delay("waiting", ["return"])
    assert (again.id, again.outcome) == (waiting.id, Outcome.ATTACHED)
    house.open("front")
    assert [first.get(PATIENCE), waiting.get(PATIENCE)] == ["front", "waiting"]
    house.assert_ran(waiting, State.COMPLETED, "waiting", 1)
    house.assert_quiet()
