"""Copies of a message are harmless: only a claim in the ledger starts a run, and each claim has a token of its own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from celery import chord

from onejob import Outcome, State
from tests.celery.harness import LEASE, PATIENCE, await_, on_every_store

if TYPE_CHECKING:
    from onejob import AsyncResult
    from tests.celery.harness import House


def await_copies(house: House, result: AsyncResult) -> None:
    """Wait until the workers together have received a job's message twice."""
    line = f"[{result.id}] received"
    await_(lambda: sum(worker.text.count(line) for worker in house.workers) > 1)


@on_every_store("house")
def test_a_redelivered_message_starts_no_second_run(house: House) -> None:
    """A job that runs longer than the broker's visibility timeout runs once, on however many workers."""
    house.redeliver_after(1)
    house.two_workers("-c", "4")
    result = house.play_late.delay("outlasts", ["hold"])
    house.await_mark("outlasts")
    await_copies(house, result)
    house.open("outlasts")
    assert result.get(PATIENCE) == "outlasts"
    job = house.assert_ran(result, State.COMPLETED, "outlasts", 1)
    assert job.attempt == 1
    house.assert_quiet()


def test_a_redelivered_message_starts_no_second_run_in_threads(house: House) -> None:
    """Under the threads pool, too, a job that runs longer than the visibility timeout runs once."""
    house.redeliver_after(1)
    house.worker("--pool", "threads", "-c", "4")
    result = house.play_late.delay("threads", ["hold"])
    house.await_mark("threads")
    await_copies(house, result)
    house.open("threads")
    assert result.get(PATIENCE) == "threads"
    house.assert_ran(result, State.COMPLETED, "threads", 1)
    house.assert_quiet()


def test_a_long_countdown_is_not_redelivered(house: House) -> None:
    """A job whose time lies beyond the visibility timeout waits in the ledger, and runs once when it is due."""
    house.redeliver_after(1)
    house.two_workers("-c", "2")
    submitted_at = time.monotonic()
    result = house.play.apply_async(("far", ["return"]), countdown=3)
    assert house.queued_messages() == 0
    mark = house.await_mark("far")[0]
    assert mark["at"] - submitted_at >= 3
    assert result.get(PATIENCE) == "far"
    house.assert_ran(result, State.COMPLETED, "far", 1)
    house.assert_quiet()


@pytest.mark.deep
def test_a_foreign_message_with_a_far_time_starts_one_run(house: House) -> None:
    """A message with a time of its own, that Celery holds and the broker repeats, starts one run."""
    house.redeliver_after(1)
    house.two_workers("-c", "2")
    sent = house.app.send_task("play", ("far-foreign", ["return"]), countdown=4)
    result = house.play.AsyncResult(sent.id)
    await_copies(house, result)
    assert result.get(PATIENCE) == "far-foreign"
    house.await_rest()
    house.assert_ran(result, State.COMPLETED, "far-foreign", 1)
    house.assert_quiet()


def test_a_retry_beyond_the_visibility_timeout_runs_once(house: House) -> None:
    """A retry whose countdown is longer than the visibility timeout starts one further run."""
    house.redeliver_after(1)
    house.two_workers("-c", "2")
    result = house.play_late.delay("retried", ["retry:3", "return"])
    assert result.get(PATIENCE) == "retried"
    house.assert_ran(result, State.COMPLETED, "retried", 2)
    house.assert_quiet()


@on_every_store("house")
def test_a_chain_continues_after_a_crash_before_its_dispatch(house: House) -> None:
    """A child that dies between the end in the ledger and the dispatch of the chain loses no link and repeats none."""
    house.use_lease(LEASE)
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


def test_a_chord_continues_after_a_crash_before_its_count(house: House) -> None:
    """A child that dies between the end in the ledger and the chord's count leaves no chord waiting."""
    house.use_lease(LEASE)
    house.worker("-c", "2", hook="die-before-dispatch")
    result = chord([house.play.s("one", ["return"]), house.play.s("two", ["return"])])(house.gather.s("chord"))
    assert sorted(result.get(timeout=PATIENCE)) == ["one", "two"]
    house.assert_quiet()
    assert len(house.marks("chord", "gather")) == 1
    assert (house.runs("one"), house.runs("two")) == (1, 1)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_many_copies_of_many_jobs(house: House, pool: str) -> None:
    """Under a visibility timeout shorter than every job, each of many jobs runs once."""
    house.redeliver_after(1)
    house.worker("--pool", pool, "-c", "8")
    keys = [f"many-{number}" for number in range(4)]
    results = [house.play_late.delay(key, ["hold:all"]) for key in keys]
    for result in results:
        await_copies(house, result)
    house.open("all")
    assert [result.get(PATIENCE) for result in results] == keys
    assert [house.runs(key) for key in keys] == [1] * len(keys)
    assert house.play_late.delay(keys[0], ["return"]).outcome is Outcome.ADMITTED
    house.assert_quiet()


@on_every_store("house")
def test_a_job_that_waits_longer_than_its_lease_stays_one(house: House) -> None:
    """A job that waits in the queue longer than its lease keeps its identity, and runs once when it is consumed."""
    house.worker("-c", "1", worker_prefetch_multiplier=8)
    first = house.play.delay("front", ["hold"])
    house.await_mark("front")
    waiting = house.play_brief.delay("waiting", ["return"])
    await_(lambda: house.job(waiting).published)
    again = house.play_brief.delay("waiting", ["return"])
    assert (again.id, again.outcome) == (waiting.id, Outcome.ATTACHED)
    house.open("front")
    assert [first.get(PATIENCE), waiting.get(PATIENCE)] == ["front", "waiting"]
    house.assert_ran(waiting, State.COMPLETED, "waiting", 1)
    house.assert_quiet()
