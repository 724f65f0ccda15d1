"""What a duplicate becomes in messages, chains and workers: `on_duplicate`, uniqueness windows and idempotency keys."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chain, group

import onejob
from onejob import DuplicateJobError, Outcome, State
from onejob.celery.app_state import app_state_of
from onejob.errors import InvalidArgumentsError, KeyRequiredError
from onejob.jobs.query import Query
from tests.celery.harness import PATIENCE, Cluster, await_, on_every_store
from tests.celery.test_options import app_with, define
from tests.submissions import row_of


def data_of(shared: Cluster, key: str) -> list[Any]:
    return [mark["data"] for mark in shared.marks(key)]


def test_the_newest_arguments_win(shared: Cluster) -> None:
    """With `on_duplicate="replace"` a job that waits, in a chain, too, runs once, with the newest arguments."""
    chained = (shared.play_replace.s("newest", ["return"], "old").set(countdown=600) | shared.echo.s()).apply_async()
    second = shared.play_replace.apply_async(("newest", ["return"], "newer"), countdown=600)
    third = shared.play_replace.apply_async(("newest", ["return"], "newest"))
    assert (second.outcome, third.outcome) == (Outcome.REPLACED, Outcome.REPLACED)
    assert chained.parent.id == second.id == third.id
    assert chained.get(PATIENCE) == "newest"
    assert data_of(shared, "newest") == ["newest"]


@on_every_store("shared")
def test_one_more_run_follows(shared: Cluster) -> None:
    """Submissions during a run, also by messages and chains, queue one more run after it, with the latest arguments."""
    again, keys = shared.play_run_again, ("calls", "message", "chain")
    firsts = [again.delay(key, ["hold:all"], 1) for key in keys]
    for key in keys:
        shared.await_mark(key)
    second, third = (again.delay("calls", ["return"], data) for data in (2, 3))
    assert (second.outcome, third.outcome) == (Outcome.QUEUED_NEXT, Outcome.REPLACED)
    assert firsts[0].id != second.id == third.id
    sent = shared.app.send_task("play_run_again", ("message", ["return"], 3))
    await_(lambda: (job := shared.ledger.get_or_none(sent.id)) is not None and job.queued_next)
    last = (again.s("chain", ["return"], 3) | shared.echo.s()).apply_async()
    shared.open("all")
    assert [result.get(PATIENCE) for result in (*firsts, third, last)] == [*keys, 3, 3]
    shared.await_rest()
    for key in keys:
        assert data_of(shared, key) == [1, 3], key
        assert [mark["event"] for mark in shared.marks(key, None)] == ["run", "end", "run", "end"], key


def test_a_duplicate_can_be_an_error(shared: Cluster) -> None:
    """With `on_duplicate="raise"` a duplicate raises an error with its job; in a chain it follows that job."""
    first = shared.begin("strict", ["hold:strict"], task="play_raise")
    for options in ({}, {"task_id": "an id of its own"}):
        with pytest.raises(DuplicateJobError) as caught:
            shared.play_raise.apply_async(("strict", ["return"]), **options)
        assert (caught.value.job_id, caught.value.state, caught.value.task) == (first.id, "running", "play_raise")
    assert shared.play_raise.apply_async(("strict", ["return"]), task_id=first.id) == first
    member = shared.play_raise.si("strict", ["return"])
    chained = [(member | shared.echo.s()).apply_async(), (shared.echo.si("first") | member).apply_async()]
    await_(lambda: shared.ledger.get_or_none(chained[1].id))
    shared.open("strict")
    assert [each.get(PATIENCE) for each in (first, *chained)] == ["strict"] * 3
    assert shared.play_raise.delay("strict", ["return"]).get(PATIENCE) == "strict"


def test_a_submission_may_decide_for_itself(shared: Cluster) -> None:
    """`on_duplicate` of a call, of a signature or of many items is that of these submissions, instead of the task's."""
    args: Any = (("one", ["return"]), ("strict one", ["return"]))
    first, strict = shared.begin("one", ["hold:one"]), shared.begin("strict one", ["hold:one"], task="play_raise")
    signature = shared.play.s(*args[0])
    calls: list[Callable[[], Any]] = [
        lambda: shared.play.apply_async(args[0], on_duplicate="raise"),
        signature.clone().set(on_duplicate="raise").delay,
        lambda: signature.apply_async(on_duplicate="raise"),
    ]
    for call in calls:
        with pytest.raises(DuplicateJobError) as caught:
            call()
        assert caught.value.job_id == first.id
    assert signature.delay().outcome is Outcome.ATTACHED
    many = shared.play.submit_many([args[0], ("another", ["return"])], on_duplicate="raise")
    assert [each.outcome for each in many] == [Outcome.REJECTED, Outcome.ADMITTED]
    assert shared.play_raise.apply_async(args[1], on_duplicate="attach").id == strict.id
    member = shared.play.si(*args[0]).set(on_duplicate="raise")
    members = group(member, shared.echo.si("two")).apply_async()
    linked = shared.echo.apply_async(("first",), link=member)
    assert linked.get(PATIENCE) == "first"
    await_(lambda: not shared.job(linked).canvas_pending)  # the link is attached, and not rejected
    strictly = shared.echo.apply_async(("second",), link=shared.play_raise.si(*args[1]))
    await_(lambda: shared.job(strictly).state is State.COMPLETED and not shared.job(strictly).canvas_pending)
    shared.open("one")
    assert members.get(PATIENCE) == ["one", "two"]
    shared.await_rest()
    assert (shared.runs("one"), shared.runs("strict one")) == (1, 1)


@pytest.mark.parametrize("value", ["replace", "run_again", "rais", "", 1, ["raise"]])
def test_a_submission_may_not_change_the_jobs_of_others(value: Any, tmp_path: Path) -> None:
    """What would change a job that others have submitted is an option of its task; nothing is stored."""
    task: Any = define(app_with(onejob_store=f"sqlite:///{tmp_path}/kept.db"), unique_on=["a"])
    first = task.delay(1, 10)
    calls: list[Callable[[], Any]] = [
        lambda: task.apply_async((1, 11), on_duplicate=value),
        lambda: task.submit_many([(1, 11)], on_duplicate=value),
        lambda: task.s(1, 11).set(on_duplicate=value).delay(),
        lambda: asyncio.run(task.aapply_async((1, 11), on_duplicate=value)),
    ]
    for call in calls:
        with pytest.raises(InvalidArgumentsError, match="A submission may have 'attach' or 'raise'"):
            call()
    assert [job.duplicate_count for job in app_state_of(task.app).ledger.find(Query())] == [0]
    task.apply_async((1, 11), on_duplicate="attach")
    assert first.job.duplicate_count == 1


def test_a_kept_result_answers(shared: Cluster) -> None:
    """While its window lasts, a success answers equal submissions and chains with its id and result, falsy ones too."""
    values: list[Any] = [None, 0, "", [], {"a": [1.5, "\u00e9"]}]
    firsts = [shared.keeps.delay(repr(value), value) for value in values]
    for first, value in zip(firsts, values, strict=True):
        assert first.get(PATIENCE) == value
        again = shared.keeps.delay(repr(value), "something else")
        assert (again.outcome, again.id, again.get(PATIENCE)) == (Outcome.REPLAYED, first.id, value)
        assert (shared.keeps.s(repr(value), "new") | shared.echo.s()).apply_async().get(PATIENCE) == value
        assert shared.runs(repr(value)) == 1


def test_the_higher_priority_wins(cluster: Cluster) -> None:
    """A duplicate with a higher priority gives it to the job, one with a lower does not; 0 is the highest on Redis."""
    far: dict[str, Any] = {"countdown": 600, "queue": "elsewhere"}
    first, *_, last = [cluster.play.apply_async(("high", ["return"]), priority=n, **far) for n in (6, 3, 9)]
    assert (last.job.id, row_of(last).priority_rank) == (first.id, -3)
    app_state_of(cluster.app).publisher.publish(row_of(last))
    (queue,) = cluster.broker.scan_iter("elsewhere*")
    assert json.loads(cluster.broker.lindex(queue, 0) or "")["properties"]["priority"] == 3
    for broker, rank in {"redis://": -4, "amqp://": 4, "memory://": 4}.items():
        app = Celery("tests", broker=broker, set_as_current=False)
        routing = app_state_of(app).routing
        assert (routing.priority_rank({"priority": 4}), routing.priority_rank({})) == (rank, 0)


def test_arguments_that_are_not_used_are_meant_with_attach(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A duplicate with other arguments is no mistake for a task, or a call, that says `"attach"`: nothing is logged."""
    task = define(app_with(onejob_store=f"sqlite:///{tmp_path}/notes.db"), unique_on=["a"], on_duplicate="attach")
    assert task.delay(1, 10).id == task.delay(1, 11).id
    silent: Any = define(app_with(onejob_store=f"sqlite:///{tmp_path}/calls.db"), unique_on=["a"])
    assert silent.delay(1, 10).id == silent.apply_async((1, 11), on_duplicate="attach").id
    assert "are not used" not in caplog.text


# --- idempotency keys -----------------------------------------------------------------------------------------------


UNNAMED: dict[str, Callable[[Any], Any]] = {
    "delay": lambda task: task.delay("unnamed", ["return"]),
    "submit": lambda task: task.submit("unnamed", ["return"]),
    "a signature": lambda task: task.s("unnamed", ["return"]).delay(),
    "a message with a countdown": lambda task: task.apply_async(("unnamed", ["return"]), countdown=600),
}


def test_a_job_that_is_its_own_duplicate_is_named_once(cluster: Cluster) -> None:
    """A running job that submits an equal call gets itself: a warning, once per task, names the ways out."""
    worker = cluster.worker("-c", "1")
    for key in ("first", "second"):
        call = [key, ["return"]]
        result = cluster.play.delay(key, ["submit:play"], call)
        assert result.get(PATIENCE) == result.id
        cluster.assert_ran(result, State.COMPLETED, key, 1)
    assert worker.text.count("is equal to itself") == 1


def test_a_call_without_a_required_key_is_refused(cluster: Cluster) -> None:
    """A submission without the key that its task requires is refused by every entry point, and stores nothing."""
    for call in UNNAMED.values():
        with pytest.raises(KeyRequiredError, match="requires an idempotency key"):
            call(cluster.play_requires_key)
    with pytest.raises(onejob.errors.InvalidArgumentsError, match="use apply_async for each"):
        cluster.play_requires_key.submit_many([("many", ["return"])])
    assert cluster.jobs() == []
    eager = define(app_with(task_always_eager=True), requires_key=True)
    with pytest.raises(KeyRequiredError):
        eager.delay(1)
    assert eager.apply_async((1,), idempotency_key="e").get() == 3


def test_retries_messages_and_members_need_no_key(shared: Cluster) -> None:
    """A retry, a message with an id of its own, and the members of a canvas are named already: they run."""
    keyed = shared.play_requires_key
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
