"""What a duplicate becomes: `on_duplicate`, uniqueness windows, idempotency keys, and what is recorded of it."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, chain, group
from celery.exceptions import TaskRevokedError

import onejob
from onejob import DuplicateJobError, KeyRequiredError, KeyReuseMismatchError, Outcome, State
from onejob.celery.app_state import app_state_of
from tests.celery.harness import PATIENCE, await_, on_every_store
from tests.celery.test_options import app_with, define

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.celery.harness import House


def _run_data(shared: House, key: str) -> list[Any]:
    """Return the data that each run of a key was given."""
    return [mark["data"] for mark in shared.marks(key)]


# --- replace --------------------------------------------------------------------------------------------------------


def test_the_newest_arguments_win(shared: House) -> None:
    """With `on_duplicate="replace"` a job that waits, in a chain, too, runs once, with the newest arguments."""
    chained = (shared.play_newest.s("newest", ["return"], "old").set(countdown=600) | shared.echo.s()).apply_async()
    second = shared.play_newest.apply_async(("newest", ["return"], "newer"), countdown=600)
    third = shared.play_newest.apply_async(("newest", ["return"], "newest"))
    assert (second.outcome, third.outcome) == (Outcome.REPLACED, Outcome.REPLACED)
    assert chained.parent.id == second.id == third.id
    assert chained.get(PATIENCE) == "newest"
    assert _run_data(shared, "newest") == ["newest"]


def test_a_countdown_begins_anew(house: House) -> None:
    """Each submission with a countdown postpones the job, up to `max_wait` after the first one."""
    first, second, third = (
        house.play_newest.apply_async(("anew", ["return"]), countdown=countdown).job for countdown in (300, 500, 5000)
    )
    assert first.run_at < second.run_at < third.run_at
    assert third.run_at == pytest.approx(first.created_at + 600, abs=1.0)


def test_the_last_save_runs(shared: House) -> None:
    """A submission during a run keeps nothing from running: the newest arguments run last, after that run."""
    first = shared.play_newest.delay("begun", ["hold:begun"], "first")
    shared.await_mark("begun")
    second, last = (shared.play_newest.delay("begun", ["return"], text) for text in ("second", "last"))
    assert (second.outcome, last.outcome) == (Outcome.QUEUED_NEXT, Outcome.REPLACED)
    shared.open("begun")
    assert (first.get(PATIENCE), last.get(PATIENCE)) == ("begun", "last")
    assert _run_data(shared, "begun") == ["first", "last"]


@pytest.mark.parametrize(("on_duplicate", "warnings"), [(None, 1), ("attach", 0)])
def test_arguments_that_are_not_used_are_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, on_duplicate: str | None, warnings: int
) -> None:
    """A duplicate whose other arguments do not run is logged once per task, unless the task says `"attach"`."""
    app = Celery("notes", broker="memory://", set_as_current=False)
    app.conf.onejob_store = f"sqlite:///{tmp_path}/notes.db"

    @app.task(
        base=onejob.Task, name=f"notes.save_{warnings}", unique_on=["note"], on_duplicate=on_duplicate, shared=False
    )
    def save(note: int, text: str) -> None: ...

    first = save.apply_async((1, "a"), countdown=600)
    for text in ("a", "b", "c"):
        save.apply_async((1, text), countdown=600)
    save.submit_many([(1, "d"), (1, "d")], countdown=600)
    messages = [each.getMessage() for each in caplog.records if "other arguments are not used" in each.getMessage()]
    assert len(messages) == warnings
    assert all(part in text for text in messages for part in (first.id, "notes.save", "on_duplicate='replace'"))
    app_state_of(app).close()


# --- run_again and raise --------------------------------------------------------------------------------------------


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
    assert [mark["event"] for mark in shared.marks("more", None)] == ["run", "end", "run", "end"]


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


def test_a_message_or_a_chain_can_request_one_more_run(shared: House) -> None:
    """A message or a chain's member that arrives while an equal job runs becomes the next run, under its own id."""
    first = shared.play_again.delay("message", ["hold:both"])
    shared.play_again.delay("chained", ["hold:both"])
    for key in ("message", "chained"):
        shared.await_mark(key)
    second = shared.app.send_task("play_again", ("message", ["return"], "by message"))
    chained = (shared.play_again.s("chained", ["return"], "next") | shared.echo.s()).apply_async()
    await_(lambda: (job := shared.ledger.get_or_none(second.id)) is not None and job.queued_next)
    shared.open("both")
    first.get(PATIENCE)
    assert shared.await_state(second.id, State.COMPLETED).result == '"by message"'
    assert chained.get(PATIENCE) == "next"
    assert (shared.runs("message"), shared.runs("chained")) == (2, 2)


def test_a_duplicate_can_be_an_error(shared: House) -> None:
    """With `on_duplicate="raise"` a duplicate raises an error that pickles; in a chain it follows the existing job."""
    first = shared.play_strict.delay("strict", ["hold:strict"])
    shared.await_mark("strict")
    with pytest.raises(DuplicateJobError) as caught:
        shared.play_strict.delay("strict", ["return"])
    there = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own bytes
    assert (there.job_id, there.state, there.task) == (first.id, "running", "play_strict")
    chained = (shared.play_strict.s("strict", ["return"]) | shared.echo.s()).apply_async()
    shared.open("strict")
    assert chained.get(PATIENCE) == first.get(PATIENCE) == "strict"
    assert shared.play_strict.delay("strict", ["return"]).get(PATIENCE) == "strict"


# --- windows --------------------------------------------------------------------------------------------------------


def test_a_kept_result_answers(shared: House) -> None:
    """While its window lasts, a success answers equal submissions and chains with its id and result, falsy ones too."""
    values: list[Any] = [None, 0, "", [], {"a": [1.5, "\u00e9"]}]
    firsts = [shared.keeps.delay(repr(value), value) for value in values]
    for first, value in zip(firsts, values, strict=True):
        assert first.get(PATIENCE) == value
        again = shared.keeps.delay(repr(value), "something else")
        assert (again.outcome, again.id, again.get(PATIENCE)) == (Outcome.REPLAYED, first.id, value)
        assert (shared.keeps.s(repr(value), "new") | shared.echo.s()).apply_async().get(PATIENCE) == value
        assert shared.runs(repr(value)) == 1


def test_a_window_ends(shared: House) -> None:
    """When the window is over, or the job has failed, an equal submission is a new job; a calendar has its own end."""
    brief, daily = shared.keeps_briefly.delay("brief"), shared.keeps_daily.delay("daily")
    failed = shared.play_keeping.delay("fails", ["raise:no"])
    for result in (brief, daily, failed):
        result.get(PATIENCE, propagate=False)
    assert shared.job(brief).identity_until is not None
    await_(lambda: shared.keeps_briefly.delay("brief").outcome is Outcome.ADMITTED)
    assert shared.await_state(brief, State.COMPLETED).holds_identity is False
    again = shared.play_keeping.delay("fails", ["return"])
    assert (again.outcome, again.get(PATIENCE)) == (Outcome.ADMITTED, "fails")
    assert shared.play_keeping.delay("fails", ["return"]).outcome is Outcome.REPLAYED
    job = shared.job(daily)
    assert job.created_at < (job.identity_until or 0.0) <= job.created_at + 25 * 3600


def test_a_job_can_be_unique_until_it_starts(shared: House) -> None:
    """With `unique_until="started"` an equal submission is attached before the run and admitted during it."""
    first = shared.play_until_started.apply_async(("starts", ["hold:starts"]), countdown=600)
    assert shared.play_until_started.apply_async(("starts", ["return"]), countdown=600).outcome is Outcome.ATTACHED
    assert shared.play_until_started.delay("starts", ["return"]).outcome is Outcome.ATTACHED
    shared.await_mark("starts")
    second = shared.play_until_started.delay("starts", ["return"])
    assert second.outcome is Outcome.ADMITTED
    assert second.get(PATIENCE) == "starts"
    shared.open("starts")
    assert first.get(PATIENCE) == "starts"
    assert shared.runs("starts") == 2


# --- rescheduling, and what is recorded -----------------------------------------------------------------------------


def test_the_higher_priority_wins(house: House) -> None:
    """A duplicate with a higher priority gives it to the job, one with a lower does not; 0 is the highest on Redis."""
    far: dict[str, Any] = {"countdown": 600, "queue": "elsewhere"}
    first, *_, last = [house.play.apply_async(("high", ["return"]), priority=n, **far) for n in (6, 3, 9)]
    job = last.job
    assert (job.id, job.priority_rank) == (first.id, -3)
    app_state_of(house.app).publisher.publish(job)
    (queue,) = house.broker.scan_iter("elsewhere*")
    assert json.loads(house.broker.lindex(queue, 0) or "")["properties"]["priority"] == 3
    for broker, rank in {"redis://": -4, "amqp://": 4, "memory://": 4}.items():
        publisher = app_state_of(Celery("tests", broker=broker, set_as_current=False)).publisher
        assert (publisher.priority_rank({"priority": 4}), publisher.priority_rank({})) == (rank, 0)


def test_a_duplicate_names_its_submitter(house: House) -> None:
    """A duplicate is recorded with its submitter, its entry point, its host and its outcome."""
    first = house.play.delay("duplicate", ["hold:duplicate"])
    with onejob.submitter("user:42"):
        house.play.delay("duplicate", ["other"])
    house.play.delay("duplicate", ["hold:duplicate"])
    named, unnamed = house.ledger.duplicates(first.id)
    assert (named.submitter, named.source, named.outcome) == ("user:42", "apply_async", Outcome.ATTACHED)
    assert (named.arguments_differ, unnamed.arguments_differ, unnamed.submitter) == (True, False, "")
    assert named.host == unnamed.host != ""


# --- identities -----------------------------------------------------------------------------------------------------


def test_equal_calls_are_one_job_and_others_are_not(house: House) -> None:
    """However the same call is written, it is the same job; a number and its text, None and its text are different."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((10,), {}), ((), {"a": 10}), ((10, 2), {}), ((10,), {"b": 2}), ((), {"b": 2, "a": 10}),
    ]  # fmt: skip
    assert len({house.add.apply_async(args, kwargs).id for args, kwargs in calls}) == 1
    values = [1, "1", None, "None", True, 1.5, "1.5"]
    results = [house.play.apply_async((value, ["return:x"]), countdown=3600) for value in values]
    assert [result.outcome for result in results] == [Outcome.ADMITTED] * len(values)
    for result in results:
        result.revoke()
        with pytest.raises(TaskRevokedError):
            result.get(PATIENCE)


# --- idempotency keys -----------------------------------------------------------------------------------------------


def test_a_key_names_one_submission(shared: House) -> None:
    """Submitting again with a key gets the first answer, also when its job has failed; its identity is not held."""
    first = shared.play.apply_async(("keyed", ["raise:no"]), idempotency_key="order-7")
    shared.await_state(first, State.FAILED)
    again = shared.play.apply_async(("keyed", ["raise:no"]), idempotency_key="order-7")
    assert (again.id, again.outcome) == (first.id, Outcome.REPLAYED)
    assert shared.runs("keyed") == 1
    assert shared.play.delay("keyed", ["return"]).get(PATIENCE) == "keyed"


def test_a_key_has_one_set_of_arguments_and_one_submitter(house: House) -> None:
    """A key with other arguments raises an error that names the first job; a key of another submitter is another."""
    first = house.play.apply_async(("one set", ["return"]), idempotency_key="order-8")
    with pytest.raises(KeyReuseMismatchError) as caught:
        house.play.apply_async(("other set", ["return"]), idempotency_key="order-8")
    error = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own bytes
    assert (error.key, error.job_id) == ("order-8", first.id)
    with onejob.submitter("a"):
        mine = house.play.apply_async(("mine", ["return"]), idempotency_key="order-8")
    with onejob.submitter("b"):
        yours = house.play.apply_async(("yours", ["return"]), idempotency_key="order-8")
    assert len({first.id, mine.id, yours.id}) == len(house.jobs()) == 3


def test_keys_and_submitters_are_short_texts(house: House) -> None:
    """A key, or the name of a submitter, that is no short printable text is refused, and nothing is submitted."""
    for wrong in ("", 7, "a\x00b", "a\nb", "x" * 256):
        with pytest.raises(onejob.InvalidArgumentsError, match="an idempotency key"):
            house.play.apply_async(("no key", ["return"]), idempotency_key=wrong)
    for name in ("", 7, "a\nb", "x" * 256, None):
        with pytest.raises(onejob.InvalidArgumentsError, match="a submitter"), onejob.submitter(name):  # type: ignore[arg-type]
            pass
    assert house.jobs() == []


UNNAMED: dict[str, Callable[[Any], Any]] = {
    "delay": lambda task: task.delay("unnamed", ["return"]),
    "apply_async": lambda task: task.apply_async(("unnamed", ["return"])),
    "submit": lambda task: task.submit("unnamed", ["return"]),
    "a signature": lambda task: task.s("unnamed", ["return"]).delay(),
    "a message with a countdown": lambda task: task.apply_async(("unnamed", ["return"]), countdown=600),
}


def test_a_call_without_a_required_key_is_refused(house: House) -> None:
    """A submission without the key that its task requires is refused by every entry point, and stores nothing."""
    for call in UNNAMED.values():
        with pytest.raises(KeyRequiredError, match="requires an idempotency key") as caught:
            call(house.play_keyed)
        error = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own bytes
        assert error.task == house.play_keyed.name
        assert isinstance(error, TypeError)
    with pytest.raises(onejob.InvalidArgumentsError, match="use apply_async for each"):
        house.play_keyed.submit_many([("many", ["return"])])
    assert house.jobs() == []
    eager = define(app_with(task_always_eager=True), requires_key=True)
    with pytest.raises(KeyRequiredError):
        eager.delay(1)
    assert eager.apply_async((1,), idempotency_key="e").get() == 3


def test_retries_messages_and_members_need_no_key(shared: House) -> None:
    """A retry, a message with an id of its own, and the members of a canvas are named already: they run."""
    keyed = shared.play_keyed
    call: dict[str, Any] = {"args": ("keyed retry", ["retry", "return"]), "idempotency_key": "r"}
    assert keyed.apply_async(**call).get(PATIENCE) == "keyed retry"
    assert keyed.apply_async(**call).outcome is Outcome.REPLAYED
    shared.app.send_task(keyed.name, ("from elsewhere", ["return"]))
    members = group(keyed.si(f"member {number}", ["return"]) for number in "12").apply_async()
    assert sorted(members.get(PATIENCE)) == ["member 1", "member 2"]
    named = keyed.si("link 1", ["return"]).set(idempotency_key="l")
    assert chain(named, keyed.si("link 2", ["return"])).apply_async().get(PATIENCE) == "link 2"
    shared.await_mark("from elsewhere")
    runs = {"keyed retry": 2, "from elsewhere": 1, "member 1": 1, "member 2": 1, "link 1": 1, "link 2": 1}
    assert {key: shared.runs(key) for key in runs} == runs
