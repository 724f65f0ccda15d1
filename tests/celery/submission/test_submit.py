"""What a submission leaves in the ledger, in the broker and in its submitter's quota: no sweep runs here."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import celery
import pytest
from kombu.transport import memory

import onejob
from onejob import Outcome, State
from onejob.celery.app_state import app_state_of
from onejob.celery.messages.handover import BrokerHandover, StoreHandover
from onejob.celery.messages.routing import UNPUBLISHABLE
from onejob.celery.submission.call import Call, Prepared, prepare
from onejob.celery.submission.submit import admit, check_accepted, submit
from onejob.errors import (
    DuplicateJobError,
    InvalidArgumentsError,
    KeyReuseMismatchError,
    PartlySubmittedError,
    QuotaExceededError,
    StoreError,
    StoreRefusedError,
    StoreUnavailableError,
    TaskIdReusedError,
)
from onejob.jobs.model import Admission, JobRow
from onejob.jobs.query import Query
from onejob.ledger.ledger import Ledger
from onejob.testing import isolated
from tests.cases import for_each
from tests.webhooks.receiver import SECRET

LARGE = StoreRefusedError("large")
HOOK = "https://example.com/ended"
WAYS: dict[str, Callable[..., Any]] = {
    "one": lambda task, key, **options: task.apply_async((key,), **options).id,
    "many": lambda task, key, **options: task.submit_many([(key,)], **options)[0].id,
}
"""Ways to submit a job, by their names; they return its id."""


@pytest.fixture
def app() -> Iterator[Any]:
    """Return an app on a ledger and a broker of its own."""
    app: Any = celery.Celery("shop", broker="memory://", set_as_current=False)

    def play(key: object, other: object = None) -> None:
        """Do nothing."""

    for name in ("play", "other"):
        app.task(play, base=onejob.Task, name=name, unique_on=["key"], shared=False)
    app.task(play, base=onejob.Task, name="tagged", unique_on=["key"], shared=False, tags=["billing"])
    app.task(play, base=onejob.Task, name="newest", on_duplicate="run_again", unique_on=["key"], shared=False)
    app.task(play, base=onejob.Task, name="attaching", on_duplicate="attach", unique_on=["key"], shared=False)
    app.task(play, base=onejob.Task, name="calling", unique_on=["key"], shared=False, webhook_url=HOOK)
    app.conf.onejob_webhook_secrets = [SECRET]
    with isolated(app, lease=30):
        yield app


def ledger_of(app: Any) -> Ledger:
    return app_state_of(app).ledger


def messages() -> list[str]:
    """Return the ids of the messages in the broker."""
    return [each["headers"]["id"] for queue in memory.Channel.queues.values() for each in queue.queue]


def jobs(app: Any, task: str = "play") -> list[tuple[str, State]]:
    return [(job.id, job.state) for job in ledger_of(app).find(Query(task=task))]


def prepared(app: Any, *args: Any, task: str = "play") -> Prepared:
    return prepare(app_state_of(app), Call(app.tasks[task], args))


def refuse_messages(app: Any, number: int = 1) -> None:
    """Have the next messages refused by their transport, as one that is too large is."""
    publisher: Any = app_state_of(app).publisher
    send, left = publisher.publish_all, [number]

    def publish_all(jobs: Any, producer: Any = None, **_: Any) -> dict[str, Exception]:
        refused, left[0] = jobs[: left[0]], max(left[0] - len(jobs), 0)
        sent: dict[str, Exception] = send([job for job in jobs if job not in refused], producer)
        return {job.id: ValueError("too large") for job in refused} | sent

    publisher.publish_all = publish_all


@pytest.mark.parametrize("quota", [None, "9/hour"])
@pytest.mark.parametrize(("task", "hook"), [("play", None), ("play", HOOK), ("calling", None), ("calling", HOOK)])
@pytest.mark.parametrize("way", WAYS)
def test_a_submission_sends_one_message(app: Any, way: str, task: str, hook: str | None, quota: str | None) -> None:
    """A new job has one message, and its webhook; a duplicate, and a job for later, however soon that is, have none."""
    with onejob.submitter("a", quota=quota):
        submit = partial(WAYS[way], app.tasks[task], **({"webhook_url": hook} if hook else {}))
        first = submit(1)
        assert submit(1) == first
        submit(2, countdown=0.5)
    assert messages() == [first]
    assert len(jobs(app, "onejob.webhook")) == (2 if hook or task == "calling" else 0)


@pytest.mark.parametrize("hook", [None, HOOK])
@pytest.mark.parametrize("quota", [None, "2/hour"])
@pytest.mark.parametrize("way", WAYS)
def test_a_job_that_cannot_be_sent_is_withdrawn(app: Any, way: str, quota: str | None, hook: str | None) -> None:
    """When its message cannot be sent, the error is raised, no live job is left, and the quota has counted it."""
    refuse_messages(app)
    with onejob.submitter("a", quota=quota):
        submit = partial(WAYS[way], app.tasks["play"], **({"webhook_url": hook} if hook else {}))
        with pytest.raises(ValueError, match="too large"):
            submit(1)
        assert [state for _, state in jobs(app)] == ([State.FAILED] if hook else [])
        assert messages() == []
        assert [submit(1)] == messages()
        if quota:
            with pytest.raises(QuotaExceededError):
                submit(2)


TAGGED: dict[str, Callable[..., Any]] = {
    **WAYS,
    "signature": lambda task, key, **options: task.s(key).set(**options).apply_async().id,
    "stored signature": lambda task, key, **options: (
        celery.signature(json.loads(json.dumps(task.s(key).set(**options))), app=task.app).delay().id
    ),
    "chain": lambda task, key, **options: (task.si(key).set(**options) | task.si(0)).apply_async().parent.id,
    "coroutine": lambda task, key, **options: asyncio.run(task.aapply_async((key,), **options)).id,
    "coroutine of many": lambda task, key, **options: asyncio.run(task.asubmit_many([(key,)], **options))[0].id,
}  # fmt: skip


@pytest.mark.parametrize("way", TAGGED)
def test_tags_are_stored_and_not_sent(app: Any, way: str) -> None:
    """Every way to submit keeps the tags of the task and of the call, each once and in order; no message has them."""
    task, submit = app.tasks["tagged"], TAGGED[way]
    found = [submit(task, 1, tags=["import", "billing", "ü 7", "import"]), submit(task, 2, tags=None), submit(task, 3)]
    expected = [("billing", "import", "ü 7"), ("billing",), ("billing",)]
    assert [ledger_of(app).get(job_id).tags for job_id in found] == expected
    assert [job.id for job in ledger_of(app).find(Query(tag="ü 7"))] == found[:1]
    sent = str([each for queue in memory.Channel.queues.values() for each in queue.queue])
    assert set(found) - set(messages()) == set()
    assert "billing" not in sent
    assert "tags" not in sent
    with pytest.raises(InvalidArgumentsError, match="at most 10, with the 1 of the task"):
        submit(task, 4, tags=[f"{number}" for number in range(10)])


def test_tags_are_those_of_the_arguments(app: Any) -> None:
    """Tags decide about no duplicate. A job keeps its own, unless it takes over the arguments of a duplicate."""
    play, newest = app.tasks["play"], app.tasks["newest"]
    first = play.apply_async((1,), tags=["first"])
    assert play.apply_async((1, "other"), tags=["second"]).job.tags == first.job.tags == ("first",)
    job_id = newest.apply_async((1,), tags=["first"]).id
    assert newest.apply_async((1,), tags=["second"]).job.tags == ("first",)
    assert newest.apply_async((1, "other"), tags=["third"]).job.tags == ("third",)
    ledger = ledger_of(app)
    ledger.claim(job_id, nonce="1", node="node")
    queued = newest.apply_async((1, "next"), tags=["fourth"])
    assert (queued.outcome, queued.job.tags, ledger.get(job_id).tags) == ("queued_next", ("fourth",), ("third",))


def test_a_quota_counts_new_jobs(app: Any) -> None:
    """A quota is used by a new job, not by a duplicate, and refuses one too many, of which nothing is left."""
    with onejob.submitter("a", quota="3/hour"):
        first = app.tasks["play"].delay(1)
        assert app.tasks["play"].delay(1).id == first.id
        assert len({each.id for each in app.tasks["play"].submit_many([(1,), (2,)])}) == 2
        assert app.tasks["play"].delay(3).outcome is Outcome.ADMITTED
        for way in WAYS.values():
            with pytest.raises(QuotaExceededError):
                way(app.tasks["play"], 4)
        with pytest.raises(QuotaExceededError):
            app.tasks["play"].submit_many([(4,), (5,)])
    assert sorted(messages()) == sorted(job_id for job_id, _ in jobs(app))
    assert len(messages()) == 3


def test_an_id_belongs_to_one_task(app: Any) -> None:
    """A submission under the id of another task's job or follower raises, and sends nothing."""
    app.tasks["play"].apply_async((1,), task_id="job")
    app.tasks["play"].apply_async((1,), task_id="follower")
    sent = messages()
    for task_id in ("job", "follower"):
        with pytest.raises(TaskIdReusedError) as caught:
            app.tasks["other"].apply_async((1,), task_id=task_id)
        assert (caught.value.job_id, caught.value.task, caught.value.existing_task) == (task_id, "other", "play")
        assert app.tasks["play"].apply_async((1,), task_id=task_id).id == task_id
    assert messages() == sent == ["job"]


@pytest.mark.parametrize("way", ["one", "batch"])
def test_a_key_counts_beside_an_id(app: Any, way: str) -> None:
    """A known id with a key and other arguments is the error of the key; a new key names the job that answered."""
    first = submitted(app, way, 1, task_id="own")
    for key in ("new", "of the first"):
        again = submitted(app, way, 1, task_id="own", key=key)
        assert (again.job.id, again.outcome) == (first.job.id, Outcome.ATTACHED)
        with pytest.raises(KeyReuseMismatchError, match=f"{key}.*own"):
            submitted(app, way, 2, task_id="own", key=key)
        with pytest.raises(KeyReuseMismatchError, match=f"{key}.*own"):
            submitted(app, way, 2, key=key)
        assert submitted(app, way, 1, key=key).job.id == "own"
    with pytest.raises(KeyReuseMismatchError, match=r"another.*own"):
        submitted(app, way, 2, task_id="own", key="another")
    assert submitted(app, way, 2, key="another").outcome is Outcome.ADMITTED
    assert submitted(app, way, 3, task_id="own").job.id == "own", "without a key the first arguments count"


def submitted(app: Any, way: str, number: int, **given: Any) -> Admission:
    """Submit a call alone, or in a batch with another one, and return its admission."""
    calls = [Call(app.tasks["play"], (number,), **given), *([Call(app.tasks["play"], ("beside",))] * (way == "batch"))]
    result = admit(app_state_of(app), [prepare(app_state_of(app), call) for call in calls])[0]
    if isinstance(result, Exception):
        raise result
    check_accepted(calls[0], result)
    return result


UNUSED = "its other arguments are not used"


@pytest.mark.parametrize("task", ["play", "calling"])
@pytest.mark.parametrize("way", [*WAYS, "each"])
def test_arguments_that_no_run_uses_are_warned_of(
    app: Any, caplog: pytest.LogCaptureFixture, way: str, task: str
) -> None:
    """A duplicate with other arguments is warned of, once per task; the same id, key or call again is not."""
    calls: list[dict[str, Any]] = [{"task_id": "the-same"}, {"idempotency_key": "the-same"}]
    for number, options in enumerate(calls):
        app.tasks[task].apply_async((number, "first"), **options)
        with suppress(KeyReuseMismatchError):
            app.tasks[task].apply_async((number, "second"), **options)
    app.tasks[task].delay(0, "first")
    for other in ("first", "second"):
        app.tasks["attaching"].delay(0, other)  # whose option says that they do not matter
    assert UNUSED not in caplog.text
    submit: dict[str, Callable[[str], object]] = {
        "one": lambda other: app.tasks[task].delay(0, other),
        "many": lambda other: app.tasks[task].submit_many([(0, other)]),
        "each": lambda other: admit(app_state_of(app), [prepared(app, 0, other, task=task)]),
    }
    for other in ("third", "fourth"):
        submit[way](other)
    assert caplog.text.count(UNUSED) == 1
    assert "a duplicate of job the-same is answered" in caplog.text
    assert f"unique_on of task {task}" in caplog.text


def test_a_webhook_that_a_duplicate_adds_is_charged(app: Any) -> None:
    """A webhook that a duplicate adds uses the quota of its submitter, as a new job does."""
    app.tasks["play"].delay(1)
    with onejob.submitter("ann", quota="1/hour"):
        app.tasks["play"].delay(2)
        with pytest.raises(QuotaExceededError, match="1/hour"):
            app.tasks["play"].apply_async((1,), webhook_url=HOOK)


@pytest.mark.parametrize("hook", [None, HOOK])
def test_a_message_is_sent_by_the_given_producer(app: Any, hook: str | None) -> None:
    """A `producer` that a submission is given sends its message."""
    publisher: Any = app_state_of(app).publisher
    publisher.publish_all = Mock(return_value={})
    with app.producer_pool.acquire() as producer:
        app.tasks["play"].apply_async((1,), producer=producer, **({"webhook_url": hook} if hook else {}))
    assert [call.args[1] for call in publisher.publish_all.mock_calls] == [producer]


@for_each("shared, given, is_own, pushes", [
    ("here", None, True, True), ("here", "a producer", True, True), ("here", "a producer", False, False),
    (None, None, True, False), (None, "a producer", True, False),
])  # fmt: skip
def test_the_store_pushes_where_it_shares_the_broker(
    app: Any, shared: str | None, given: Any, *, is_own: bool, pushes: bool
) -> None:
    """A store gets the message of a new job if it is the broker's own server, and the caller names no other one."""
    publisher = app_state_of(app).publisher
    with pytest.MonkeyPatch.context() as patch:
        store = SimpleNamespace(address=shared, slot=0)
        patch.setitem(vars(publisher), "handover", StoreHandover(store, Mock(), Mock()) if shared else BrokerHandover())
        patch.setattr(publisher, "is_own", lambda _: is_own)
        found = given_to_the_store(app, patch, producer=given)
    assert isinstance(getattr(found, "__self__", None), StoreHandover) == pushes


def given_to_the_store(app: Any, patch: pytest.MonkeyPatch, **options: Any) -> Any:
    """Submit a job, and return what the store got for its message."""
    submit_many = ledger_of(app).submit_many
    recorded = Mock(side_effect=lambda submissions, **_: submit_many(submissions))
    patch.setattr(app_state_of(app).publisher, "publish_all", lambda *_, **__: {})
    patch.setattr(ledger_of(app), "submit_many", recorded)
    admit(app_state_of(app), [prepared(app, 1)], **options)
    return recorded.call_args.kwargs["handover_of"]


# --- several that are submitted together ----------------------------------------------------------------------------


def each(app: Any, count: int = 3, **options: Any) -> list[Any]:
    """Submit so many jobs together, and return the results."""
    return admit(app_state_of(app), [prepared(app, number) for number in range(count)], **options)


def kinds(results: list[Any]) -> list[str]:
    """Return the outcomes of submissions, or the names of their errors."""
    return [type(result).__name__ if isinstance(result, Exception) else str(result.outcome) for result in results]


def test_each_has_its_own_result(app: Any) -> None:
    """Of jobs that are submitted together each has its answer, each new one its message, one over the quota neither."""
    with onejob.submitter("a", quota="2/hour"):
        results = each(app)
        assert kinds(results) == ["admitted", "admitted", "QuotaExceededError"]
        assert messages() == [results[0].job.id, results[1].job.id]
        assert kinds(each(app, 2)) == ["attached", "attached"]
    assert len(messages()) == 2


def test_what_cannot_be_sent_has_its_error(app: Any) -> None:
    """A message that cannot be sent is the error of its own submission, of which no job is left."""
    refuse_messages(app)
    results = each(app)
    assert kinds(results) == ["ValueError", "admitted", "admitted"]
    assert results[0].__notes__ == [UNPUBLISHABLE]
    assert sorted(messages()) == sorted(job_id for job_id, _ in jobs(app))
    assert len(messages()) == 2


def test_an_answer_that_is_refused_is_one_callers_error(app: Any) -> None:
    """A caller that may not have the job that answers gets that error, and the others their jobs; none get none."""
    state = app_state_of(app)
    app.tasks["play"].apply_async((9,), task_id="job")
    other = prepare(state, Call(app.tasks["other"], (1,), task_id="job"))
    assert kinds(admit(app_state_of(app), [other, prepared(app, 8)])) == ["TaskIdReusedError", "admitted"]
    calls = [Call(app.tasks["play"], (1,), check_answer=check) for check in (Mock(side_effect=PermissionError), None)]
    assert kinds(admit(app_state_of(app), [prepare(state, call) for call in calls])) == ["PermissionError", "attached"]
    assert (app.tasks["play"].submit_many([]), admit(app_state_of(app), [])) == ([], [])


def test_a_withdrawn_job_with_a_duplicate_is_kept(app: Any) -> None:
    """A job whose message cannot be sent has an end that its duplicates see."""
    refuse_messages(app)
    with pytest.raises(ValueError, match="too large"):
        app.tasks["play"].submit_many([(1,), (1,)])
    assert [state for _, state in jobs(app)] == [State.FAILED]


def test_a_claimed_job_is_not_withdrawn(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that a worker has claimed before it is known that its message cannot be sent is admitted, and runs."""
    refuse_messages(app)
    ledger = ledger_of(app)
    change = ledger.change

    def claimed_before(job: JobRow, *args: Any, **options: Any) -> Any:
        ledger.claim(job.id, nonce="first", node="worker")
        return change(job, *args, **options)

    monkeypatch.setattr(ledger, "change", claimed_before)
    assert kinds(each(app)) == ["admitted"] * 3
    assert sorted(state for _, state in jobs(app)) == [State.QUEUED, State.QUEUED, State.RUNNING]


def test_a_store_that_goes_away_at_a_withdrawal_is_one_callers_error(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a job whose message cannot be sent cannot be withdrawn, the other calls of its batch have their jobs."""
    refuse_messages(app)
    monkeypatch.setattr(app_state_of(app).ledger, "change", Mock(side_effect=StoreUnavailableError("away")))
    assert kinds(each(app)) == ["StoreUnavailableError", "admitted", "admitted"]


@pytest.mark.parametrize(("errors", "count", "expected"), [
    ([StoreUnavailableError("away")], 3, ["StoreUnavailableError"] * 3),
    ([LARGE], 1, ["StoreRefusedError"]),
    ([LARGE, None, LARGE], 3, ["admitted", "StoreRefusedError", "admitted"]),
    ([StoreError("no right"), None], 3, ["StoreError"] * 3),
    (["partly"], 3, ["admitted", "StoreRefusedError", "StoreRefusedError"]),
])  # fmt: skip
def test_what_the_store_refuses_fails_alone(app: Any, errors: list[Any], count: int, expected: list[str]) -> None:
    """What a store refuses is the error of its own submission; only an outage is that of all, which may be repeated."""
    ledger: Any = ledger_of(app)
    submit_many, left, handover_of = ledger.submit_many, [*errors], app_state_of(app).publisher.handover.of

    def refusing(submissions: Any, **options: Any) -> Any:
        assert options == {"wait_for_locks": True, "handover_of": handover_of}
        error = left.pop(0) if left else None
        if error == "partly":
            refused = [StoreRefusedError("full")] * (len(submissions) - 1)
            raise PartlySubmittedError((*submit_many(submissions[:1], **options), *refused))
        if error is not None:
            raise error
        return submit_many(submissions, **options)

    ledger.submit_many = refusing
    results = each(app, count)
    assert kinds(results) == expected
    assert messages() == [result.job.id for result in results if not isinstance(result, Exception)]


def test_the_admitted_part_of_a_batch_is_charged_and_sent(app: Any) -> None:
    """When the store refuses some of a batch, the others are sent and charged, and the error has all results."""
    ledger: Any = ledger_of(app)
    submit_many = ledger.submit_many

    def refusing(submissions: Any, **options: Any) -> Any:
        refused = [StoreRefusedError("full")] * (len(submissions) - 1)
        raise PartlySubmittedError((*refused, *submit_many(submissions[-1:], **options)))

    with onejob.submitter("a", quota="3/hour"):
        ledger.submit_many = refusing
        with pytest.raises(PartlySubmittedError) as caught:
            app.tasks["play"].submit_many([(1,), (2,), (3,)])
        ledger.submit_many = submit_many
        assert kinds([*caught.value.results]) == ["StoreRefusedError", "StoreRefusedError", "admitted"]
        assert messages() == [jobs(app)[0][0]]
        app.tasks["play"].submit_many([(1,), (2,)])
        with pytest.raises(QuotaExceededError):
            app.tasks["play"].delay(4)


# --- what a call returns --------------------------------------------------------------------------------------------


def test_a_result_is_ignored_as_the_call_says(app: Any) -> None:
    """A result says whether its caller ignores it: as the call says, or else as the task does."""
    task = app.tasks["play"]
    assert [task.apply_async((1,), **options).ignored for options in ({}, {"ignore_result": True})] == [False, True]
    assert [each.ignored for each in task.submit_many([(2,)], ignore_result=True)] == [True]


@for_each("options, count", [({}, 1), ({"add_to_parent": True}, 1), ({"add_to_parent": False}, 0)])
def test_a_run_knows_what_it_has_submitted(
    app: Any, options: dict[str, Any], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result is one of the children of the run that has submitted it, unless the call says otherwise."""
    trail: list[Any] = []
    run: Any = SimpleNamespace(add_trail=trail.append, request=SimpleNamespace(id="run", root_id=None, headers=None))
    monkeypatch.setattr(type(app), "current_worker_task", run)
    result = submit(app_state_of(app), Call(app.tasks["play"], (1,), options=options))
    assert trail == [result] * count
    assert json.loads(ledger_of(app).get(result.id).options)["parent_id"] == "run"


def test_a_rejected_call_is_an_error_with_its_reason(app: Any) -> None:
    """A key that is used again names itself and the job that it belongs to; a refused duplicate names its task, too."""
    task = app.tasks["play"]
    first = task.apply_async((1,), idempotency_key="the key")
    with pytest.raises(KeyReuseMismatchError, match="'the key'.*" + first.id):
        task.apply_async((2,), idempotency_key="the key")
    refused = Call(task, (1,), on_duplicate="raise")
    with pytest.raises(DuplicateJobError, match="play") as caught:
        submit(app_state_of(app), refused)
    assert (caught.value.job_id, caught.value.state) == (first.id, State.QUEUED)
