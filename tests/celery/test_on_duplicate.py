"""`on_duplicate` with real workers: attach, replace, run_again, rescheduling, recorded duplicates, idempotency keys."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery

import onejob
from onejob import KeyReuseMismatchError, Outcome, State
from onejob.celery.app_state import app_state_of
from tests.celery.harness import PATIENCE, await_, on_every_store

if TYPE_CHECKING:
    from tests.celery.harness import House


def _run_data(shared: House, key: str) -> list[Any]:
    """Return the data that each run of a key was given."""
    return [mark["data"] for mark in shared.marks(key)]


# --- replace --------------------------------------------------------------------------------------------------------


@on_every_store("shared")
def test_the_newest_arguments_win(shared: House) -> None:
    """With `on_duplicate="replace"` a job that waits runs once, with the arguments of the last submission."""
    first = shared.play_newest.apply_async(("newest", ["return"], "old"), countdown=600)
    second = shared.play_newest.apply_async(("newest", ["return"], "newer"), countdown=600)
    third = shared.play_newest.apply_async(("newest", ["return"], "newest"))
    assert (second.outcome, third.outcome) == (Outcome.REPLACED, Outcome.REPLACED)
    assert first.id == second.id == third.id
    assert first.get(PATIENCE) == "newest"
    assert _run_data(shared, "newest") == ["newest"]


def test_a_countdown_begins_anew(shared: House) -> None:
    """Each submission with a countdown postpones the job, up to `max_wait` after the first one."""
    first = shared.play_newest.apply_async(("anew", ["return"]), countdown=300).job
    second = shared.play_newest.apply_async(("anew", ["return"]), countdown=500).job
    third = shared.play_newest.apply_async(("anew", ["return"]), countdown=5000).job
    assert first.run_at < second.run_at < third.run_at
    assert third.run_at == pytest.approx(first.created_at + 600)
    shared.ledger.cancel(first.id)


@on_every_store("shared")
def test_a_run_keeps_its_arguments(shared: House) -> None:
    """A running job is not replaced: the submission is attached, and its arguments are not run."""
    first = shared.play_newest.delay("begun", ["hold:begun"], "first")
    shared.await_mark("begun")
    second = shared.play_newest.delay("begun", ["return"], "second")
    assert (second.id, second.outcome) == (first.id, Outcome.ATTACHED)
    shared.open("begun")
    assert first.get(PATIENCE) == "begun"
    assert _run_data(shared, "begun") == ["first"]


def test_a_chain_behind_a_replaced_job_continues(shared: House) -> None:
    """A chain behind a job continues with the result of the newest arguments, also if its own were replaced."""
    chain = (shared.play_newest.s("behind", ["return"], "old").set(countdown=600) | shared.echo.s()).apply_async()
    newest = shared.play_newest.delay("behind", ["return"], "new")
    assert (newest.outcome, newest.id) == (Outcome.REPLACED, chain.parent.id)
    assert chain.get(PATIENCE) == "new"


# --- run_again ------------------------------------------------------------------------------------------------------


@on_every_store("shared")
def test_one_more_run_follows(shared: House) -> None:
    """Submissions during a run queue one more run after it, with the latest arguments, as a job of its own."""
    first = shared.play_again.delay("more", ["hold:more"], 1)
    shared.await_mark("more")
    second, third = (shared.play_again.delay("more", ["return"], data) for data in (2, 3))
    assert (second.outcome, third.outcome) == (Outcome.QUEUED_NEXT, Outcome.REPLACED)
    assert first.id != second.id == third.id
    shared.open("more")
    assert (first.get(PATIENCE), second.get(PATIENCE)) == ("more", 3)
    assert _run_data(shared, "more") == [1, 3]
    marks = shared.marks("more", None)
    assert [mark["event"] for mark in marks] == ["run", "end", "run", "end"]


@on_every_store("shared")
def test_the_next_run_follows_any_end(shared: House) -> None:
    """The next run also starts after a run that failed or was canceled."""
    first = shared.play_again.delay("after", ["hold:after>raise:no"])
    shared.await_mark("after")
    second = shared.play_again.delay("after", ["hold:canceled"])
    shared.open("after")
    shared.await_state(first, State.FAILED)
    shared.await_mark("after", times=2)
    third = shared.play_again.delay("after", ["return"])
    assert third.outcome is Outcome.QUEUED_NEXT
    second.revoke(terminate=True)
    assert third.get(PATIENCE) == "after"
    assert shared.job(second).state is State.CANCELED
    assert shared.runs("after") == 3


def test_a_message_can_request_one_more_run(shared: House) -> None:
    """A message that arrives while an equal job runs becomes the next run, under the message's own id."""
    first = shared.play_again.delay("message", ["hold:message"])
    shared.await_mark("message")
    second = shared.app.send_task("play_again", ("message", ["return"], "by message"))
    await_(lambda: (job := shared.ledger.get_or_none(second.id)) is not None and job.queued_next)
    shared.open("message")
    first.get(PATIENCE)
    assert shared.await_state(second.id, State.COMPLETED).result == '"by message"'
    assert shared.runs("message") == 2


def test_a_chain_waits_for_the_next_run(shared: House) -> None:
    """A member of a chain that is queued next ends with its own run's result, and the chain continues."""
    shared.play_again.delay("chained", ["hold:chained"])
    shared.await_mark("chained")
    chain = (shared.play_again.s("chained", ["return"], "next") | shared.echo.s()).apply_async()
    shared.open("chained")
    assert chain.get(PATIENCE) == "next"


# --- rescheduling ---------------------------------------------------------------------------------------------------


def test_the_higher_priority_wins(shared: House) -> None:
    """A duplicate with a higher priority gives it to the job, one with a lower does not; 0 is the highest on Redis."""
    far: dict[str, Any] = {"countdown": 600, "queue": "elsewhere"}
    first, *_, last = [shared.play.apply_async(("high", ["return"]), priority=n, **far) for n in (6, 3, 9)]
    job = last.job
    assert (job.id, job.priority_rank) == (first.id, -3)
    app_state_of(shared.app).publisher.publish(job)
    (queue,) = shared.broker.scan_iter("elsewhere*")
    assert json.loads(shared.broker.lindex(queue, 0) or "")["properties"]["priority"] == 3
    shared.broker.delete(queue)
    shared.ledger.cancel(job.id)


@pytest.mark.parametrize(("broker", "priority_rank"), [("redis://", -4), ("amqp://", 4), ("memory://", 4)])
def test_the_priority_rank_follows_the_broker(broker: str, priority_rank: int) -> None:
    """The larger number has the higher priority, except on Redis."""
    app = Celery("tests", broker=broker, set_as_current=False)
    publisher = app_state_of(app).publisher
    assert publisher.priority_rank({"priority": 4}) == priority_rank
    assert publisher.priority_rank({}) == 0


# --- duplicates -------------------------------------------------------------------------------------------------------


@on_every_store("shared")
def test_a_duplicate_names_its_submitter(shared: House) -> None:
    """A duplicate is recorded with its submitter, its entry point, its host and its outcome."""
    first = shared.play.delay("duplicate", ["hold:duplicate"])
    with onejob.submitter("user:42"):
        shared.play.delay("duplicate", ["other"])
    shared.play.delay("duplicate", ["hold:duplicate"])
    named, unnamed = shared.ledger.duplicates(first.id)
    assert (named.submitter, named.source, named.outcome) == ("user:42", "apply_async", Outcome.ATTACHED)
    assert (named.arguments_differ, unnamed.arguments_differ, unnamed.submitter) == (True, False, "")
    assert named.host == unnamed.host != ""
    shared.open("duplicate")
    first.get(PATIENCE)


@on_every_store("shared")
def test_a_redelivered_message_is_recorded(shared: House) -> None:
    """A message of a job that has ended runs nothing, and is recorded as a redelivery."""
    result = shared.play.delay("again and again", ["return"])
    result.get(PATIENCE)
    app_state_of(shared.app).publisher.publish(shared.job(result))
    await_(lambda: shared.ledger.duplicates(result.id))
    (duplicate,) = shared.ledger.duplicates(result.id)
    assert (duplicate.source, duplicate.outcome, duplicate.submission_nonce) == ("redelivery", Outcome.REJECTED, "")
    assert shared.job(result).duplicate_count == 0
    assert shared.runs("again and again") == 1


@pytest.mark.parametrize("name", ["", 7, "a\nb", "x" * 256, None])
def test_a_submitter_has_a_name(name: Any) -> None:
    """A submitter that is not named by a short printable text is refused."""
    with pytest.raises(onejob.InvalidArgumentsError, match="a submitter"), onejob.submitter(name):
        pass


# --- idempotency keys -----------------------------------------------------------------------------------------------


@on_every_store("shared")
def test_a_key_names_one_submission(shared: House) -> None:
    """Submitting again with an idempotency key gets the first answer, also when its job has failed."""
    first = shared.play.apply_async(("keyed", ["raise:no"]), idempotency_key="order-7")
    shared.await_state(first, State.FAILED)
    again = shared.play.apply_async(("keyed", ["raise:no"]), idempotency_key="order-7")
    assert (again.id, again.outcome) == (first.id, Outcome.REPLAYED)
    assert shared.runs("keyed") == 1
    assert shared.play.delay("keyed", ["return"]).get(PATIENCE) == "keyed"


@on_every_store("shared")
def test_a_key_has_one_set_of_arguments(shared: House) -> None:
    """A key with other arguments raises an error that names the first job and pickles, and submits nothing."""
    first = shared.play.apply_async(("one set", ["return"]), idempotency_key="order-8")
    with pytest.raises(KeyReuseMismatchError) as caught:
        shared.play.apply_async(("other set", ["return"]), idempotency_key="order-8")
    error = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own bytes
    assert (error.key, error.job_id) == ("order-8", first.id)
    first.get(PATIENCE)
    assert shared.runs("other set") == 0


def test_a_key_belongs_to_its_submitter(shared: House) -> None:
    """The same key of two submitters identifies two submissions: no submitter sees another's job."""
    with onejob.submitter("a"):
        first = shared.play.apply_async(("mine", ["return"]), idempotency_key="1")
    with onejob.submitter("b"):
        second = shared.play.apply_async(("yours", ["return"]), idempotency_key="1")
    assert first.id != second.id
    assert (first.get(PATIENCE), second.get(PATIENCE)) == ("mine", "yours")


@pytest.mark.parametrize("key", ["", 7, "a\x00b", "x" * 256])
def test_a_key_is_a_short_text(shared: House, key: Any) -> None:
    """A key that is no short printable text is refused, and nothing is submitted."""
    with pytest.raises(onejob.InvalidArgumentsError, match="an idempotency key"):
        shared.play.apply_async(("no key", ["return"]), idempotency_key=key)
    assert shared.runs("no key") == 0


# --- many at once ---------------------------------------------------------------------------------------------------


@on_every_store("shared")
def test_many_are_submitted_at_once(shared: House) -> None:
    """The results of a batch are in its order; equal submissions are one job, and each job runs once."""
    first = shared.echo.delay(3)
    items: list[Any] = [(number % 5,) for number in range(10)] + [{"value": 9}]
    results = shared.echo.submit_many(items)
    assert [result.get(PATIENCE) for result in results] == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 9]
    outcomes = [result.outcome for result in results]
    assert outcomes[:3] == [Outcome.ADMITTED] * 3
    assert results[3].id == first.id or outcomes[3] is Outcome.ADMITTED
    assert outcomes[5:8] == [Outcome.ATTACHED] * 3
    assert outcomes[10] is Outcome.ADMITTED


@pytest.mark.parametrize("item", [7, "text", (1, 2, 3), {"nothing": 1}, (float("nan"),)])
def test_an_invalid_item_is_refused_before_any_is_stored(shared: House, item: Any) -> None:
    """The error of an invalid item names its number, and no item is stored."""
    with pytest.raises((onejob.InvalidArgumentsError, onejob.InvalidPayloadError), match="item 1"):
        shared.echo.submit_many([("never stored",), item])
    stored = shared.echo.apply_async(("never stored",), countdown=600)
    assert stored.outcome is Outcome.ADMITTED
    shared.ledger.cancel(stored.id)


def test_a_refused_item_of_a_batch_is_a_result(shared: House) -> None:
    """In a batch, a duplicate that `on_duplicate="raise"` refuses is `rejected`, and the others are submitted."""
    items = [("many strict", ["hold:many"]), ("many strict", ["return"]), ("another strict", ["return"])]
    results = shared.play_strict.submit_many(items)
    assert [result.outcome for result in results] == [Outcome.ADMITTED, Outcome.REJECTED, Outcome.ADMITTED]
    shared.open("many")
    assert results[2].get(PATIENCE) == "another strict"
    assert results[0].get(PATIENCE) == "many strict"


@pytest.mark.parametrize("name", ["task_id", "idempotency_key"])
def test_a_batch_refuses_options_of_one_submission(shared: House, name: str) -> None:
    """Options that identify one submission are refused by `submit_many`."""
    with pytest.raises(onejob.InvalidArgumentsError, match=name):
        shared.echo.submit_many([("common",)], **{name: "one"})


def test_options_apply_to_all_items_of_a_batch(shared: House) -> None:
    """The options of `submit_many` are those of every message."""
    results = shared.echo.submit_many([("optional",), ("as well",)], countdown=600, queue="elsewhere", priority=4)
    for result in results:
        assert result.job.queue == "elsewhere"
        assert result.job.priority_rank == -4
        assert result.job.run_at == pytest.approx(result.job.created_at + 600)
        shared.ledger.cancel(result.id)
