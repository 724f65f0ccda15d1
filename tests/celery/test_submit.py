"""Submitting is one step in the ledger, whatever the entry point: one admission per identity, and its true outcome."""

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from celery import beat, chain, chord, group, signature
from celery.exceptions import Retry

import onejob
from onejob import OneJobError, Outcome, State, Task, current_job
from onejob.errors import (
    ConfigurationError,
    InvalidArgumentsError,
    InvalidPayloadError,
    JobNotFoundError,
    PartlySubmittedError,
    QuotaExceededError,
)
from onejob.jobs.lifecycle import Transition
from onejob.jobs.query import Query
from tests.celery.harness import PATIENCE, Cluster, await_
from tests.quiet import provokes
from tests.submissions import row_of

# --- entry points ---------------------------------------------------------------------------------------------------


def send_raw(cluster: Cluster, task: str, args: list[Any]) -> str:
    """Push a message as a program in another language would, by Celery's documented protocol 2."""
    task_id = str(uuid4())
    embed = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    with cluster.app.connection_for_write() as connection, connection.channel() as channel:
        connection.Producer(channel).publish(
            json.dumps([args, {}, embed]),
            routing_key="celery",
            content_type="application/json",
            content_encoding="utf-8",
            correlation_id=task_id,
            headers={"lang": "go", "task": task, "id": task_id, "root_id": task_id},
        )
    return task_id


def by_beat(cluster: Cluster, key: str, acts: list[str], *, known: bool) -> str:
    """Send a due entry by Celery beat, with or without the task registered."""
    scheduler = beat.Scheduler(cluster.app, lazy=True)
    entry = scheduler.Entry(name="due", task="play", args=(key, acts), schedule=None, app=cluster.app)
    if known:
        return str(scheduler.apply_async(entry, advance=False).id)
    return str(scheduler.send_task("play", (key, acts)).id)


ENTRY_POINTS: dict[str, Callable[[Cluster, str, list[str]], str]] = {
    "delay": lambda cluster, key, acts: cluster.play.delay(key, acts).id,
    "apply_async": lambda cluster, key, acts: cluster.play.apply_async(kwargs={"key": key, "acts": acts}).id,
    "task_id": lambda cluster, key, acts: cluster.play.apply_async((key, acts), task_id=str(uuid4())).id,
    "due": lambda cluster, key, acts: cluster.play.apply_async((key, acts), eta=datetime.now(UTC)).id,
    "signature": lambda cluster, key, acts: cluster.play.s(key, acts).delay().id,
    "by name": lambda cluster, key, acts: signature("play", args=(key, acts), app=cluster.app).delay().id,
    "partial": lambda cluster, key, acts: cluster.play.s(acts).delay(key).id,
    "another app": lambda cluster, key, acts: cluster.another_app().tasks["play"].delay(key, acts).id,
    "send_task": lambda cluster, key, acts: cluster.app.send_task("play", (key, acts)).id,
    "beat": lambda cluster, key, acts: by_beat(cluster, key, acts, known=True),
    "beat, unknown": lambda cluster, key, acts: by_beat(cluster, key, acts, known=False),
    "another language": lambda cluster, key, acts: send_raw(cluster, "play", [key, acts]),
}


def test_a_job_runs_once_through_any_entry_point(shared: Cluster) -> None:
    """Submissions through each and through all entry points are one run, and every id ends with its result."""
    first = shared.begin("all", ["hold>return:done"])
    ids = [submit(shared, "all", ["return:second"]) for submit in ENTRY_POINTS.values()]
    pairs = {source: [submit(shared, source, ["return:done"]) for _ in "12"] for source, submit in ENTRY_POINTS.items()}
    await_(lambda: all(shared.ledger.get_or_none(job_id) for job_id in ids))
    assert shared.job(first).duplicate_count == len(ids)
    shared.open("all")
    for job_id in (first.id, *ids, *[job_id for pair in pairs.values() for job_id in pair]):
        assert shared.play.AsyncResult(job_id).get(PATIENCE) == "done"
    shared.assert_ran(first, State.COMPLETED, "all", 1)
    for source, pair in pairs.items():
        runs = [job_id for job_id in {*pair} if shared.job(job_id).follows_id is None]
        assert shared.runs(source) == len(runs), source
    assert shared.ledger.history(first.id)[0].detail == "apply_async"
    assert {duplicate.source for duplicate in shared.ledger.duplicates(first.id)} == {"apply_async", "message"}


@provokes(logs=["InvalidArgumentsError("], because="the message lacks an argument")
def test_a_foreign_message_with_wrong_arguments_fails(shared: Cluster) -> None:
    """A message whose arguments do not fit its task fails as in Celery, starts nothing and blocks nothing."""
    sent = shared.app.send_task("play", ("wrong",))
    with pytest.raises(TypeError):
        sent.get(timeout=PATIENCE)
    assert shared.ledger.get_or_none(sent.id) is None
    shared.assert_free("wrong")


def test_options_of_the_message_are_kept(cluster: Cluster) -> None:
    """The queue of a submission is used for every publication of its job: the first, a retry's and the sweeper's."""
    results = [
        cluster.play.apply_async(("routed", ["retry:0.1", "kill", "return"]), queue="special"),
        cluster.play.apply_async(("delayed", ["return"]), queue="special", countdown=0.1),
    ]
    assert cluster.broker.llen("celery") == 0
    cluster.worker("-c", "1", "-Q", "special")
    assert [result.get(PATIENCE) for result in results] == ["routed", "delayed"]
    assert [cluster.runs("routed"), cluster.runs("delayed")] == [3, 1]
    assert (cluster.job(results[0]).queue, json.loads(cluster.job(results[0]).options).get("headers")) == (
        "special",
        {},
    )
    cluster.assert_quiet()


def test_a_countdown_holds_at_every_entry_point(cluster: Cluster) -> None:
    """`countdown` and `eta` mean the same, as any kind of datetime; an equal submission without one makes it due."""
    timestamp = datetime.now(UTC) + timedelta(seconds=1000)
    forms: list[dict[str, Any]] = [
        {"countdown": 1000}, {"eta": timestamp}, {"eta": timestamp.isoformat()},
        {"eta": timestamp.replace(tzinfo=None)},
    ]  # fmt: skip
    for number, options in enumerate(forms):
        far = cluster.play.apply_async((f"eta-{number}", ["return"]), **options)
        assert 500 < (far.job.run_at - far.job.created_at).total_seconds() < 1001
        assert cluster.play.delay(f"eta-{number}", ["return"]).id == far.id
        assert cluster.broker.llen("celery") == number + 1


# --- what is refused ------------------------------------------------------------------------------------------------

WRONG: list[tuple[Any, Any]] = [
    ((1, 2, 3, 4), {}), ((), {}), ((1,), {"a": 1}), ((1,), {"unknown": 1}), ((), {"b": 1}),
    ("12", {}), (b"12", {}), ({1, 2}, {}), ({"a": 1, "b": 2}, {}), ((1, 2), [("c", 3)]),
]  # fmt: skip
NO_JSON = ({1, 2}, object(), float("nan"), float("inf"), "\ud800", "x" * 300_000)
NO_ITEMS = (7, "text", (1, 2, 3), {"nothing": 1}, (float("nan"),))


def test_wrong_arguments_leave_nothing_behind(cluster: Cluster) -> None:
    """Arguments that do not fit the task, or have no JSON, raise an error at the caller; nothing is stored or sent."""
    for args, kwargs in WRONG:
        for call in (cluster.add.apply_async, lambda *given: asyncio.run(cluster.add.aapply_async(*given))):
            with pytest.raises(TypeError) as raised:
                call(args, kwargs)
            assert isinstance(raised.value, InvalidArgumentsError)
    for value in NO_JSON:
        with pytest.raises(InvalidPayloadError):
            cluster.echo.delay(value)
    with pytest.raises(InvalidPayloadError):  # also outside of the identity
        cluster.play.delay("outside", ["return"], object())
    for item in NO_ITEMS:
        with pytest.raises((InvalidArgumentsError, InvalidPayloadError), match="item 1"):
            cluster.echo.submit_many([("never stored",), item])
    for name in ("task_id", "idempotency_key"):
        with pytest.raises(InvalidArgumentsError, match=name):
            cluster.echo.submit_many([("common",)], **{name: "one"})
    assert (cluster.jobs(), cluster.queued_messages()) == ([], 0)


# --- many at once ---------------------------------------------------------------------------------------------------


def test_many_are_submitted_at_once(cluster: Cluster) -> None:
    """The results of a batch are in its order, with its options; a duplicate of a strict task is `rejected`."""
    first = cluster.play_raise.delay("3", [])
    options = {"queue": "elsewhere", "priority": 4, "countdown": 600}
    results = cluster.play_raise.submit_many([("1", []), ("3", []), ("1", []), {"key": "2", "acts": []}], **options)
    rejected = Outcome.REJECTED
    assert [each.outcome for each in results] == [Outcome.ADMITTED, rejected, rejected, Outcome.ADMITTED]
    assert [each.id for each in results[1:3]] == [first.id, results[0].id]
    for job in (row_of(results[0]), row_of(results[3])):
        assert (job.queue, job.priority_rank) == ("elsewhere", -4)
        assert job.run_at == pytest.approx(job.created_at + 600)


# --- calls without a submission ---------------------------------------------------------------------------------------


CALLS: dict[str, Callable[[Any, Any, str], Any]] = {
    "a call": lambda task, _, key: task(key),
    "apply": lambda task, _, key: task.apply((key,)).get(),
    "a signature": lambda task, _, key: task.s(key)(),
    "a signature's apply": lambda task, _, key: task.s(key).apply().get(),
    "task_always_eager": lambda _, eager, key: eager.delay(key).get(),
    "eager with an id": lambda _, eager, key: eager.apply_async(kwargs={"key": key}, task_id="eagerly").get(),
}


def test_a_direct_call_runs_and_touches_no_job(cluster: Cluster) -> None:
    """A direct or eager call runs the body at once, while an equal job waits, and leaves that job as it is."""
    eager = cluster.another_app(task_always_eager=True).tasks["anywhere"]
    for key, call in CALLS.items():
        result = cluster.anywhere.apply_async((key,), countdown=3600)
        before = cluster.job(result)
        assert call(cluster.anywhere, eager, key) == key
        assert cluster.runs(key) == 1, key
        assert cluster.job(result) == before, key
        assert cluster.anywhere.delay(key).outcome is Outcome.ATTACHED, key
    assert cluster.ledger.get_or_none("eagerly") is None


def _retry_once(task: Any) -> list[Any]:
    if not task.request.retries:
        raise task.retry(countdown=0)
    return [task.request.id, task.request.retries]


def test_an_eager_result_has_what_a_submission_has(cluster: Cluster) -> None:
    """An eager call's result has an outcome and can be awaited; its job, which does not exist, is an error."""
    result: Any = cluster.another_app(task_always_eager=True).tasks["anywhere"].delay("eager-result")
    assert (result.outcome, result.get(), asyncio.run(result.aget(1))) == (Outcome.ADMITTED, *["eager-result"] * 2)
    with pytest.raises(JobNotFoundError, match=result.id):
        result.job  # noqa: B018
    with pytest.raises(JobNotFoundError):
        asyncio.run(result.ajob())


def test_an_eager_run_has_a_request_and_can_retry(cluster: Cluster) -> None:
    """An eager run, like one of a worker that is embedded in a program, has the request of its call, and retries."""
    eager = cluster.another_app(task_always_eager=True)
    ran = eager.task(base=Task, bind=True, shared=False, max_retries=1, name="eager_retry")(_retry_once)
    assert ran.apply(task_id="eagerly").get() == ["eagerly", 1]


def test_a_body_may_call_a_task(shared: Cluster) -> None:
    """A body that calls a task like a function, its own one too, runs it inside its own job."""
    for task, data, value in (
        ("anywhere", ["inside"], "inside"),
        ("play", ["called by itself", ["return:inner"]], "inner"),
    ):
        result = shared.play.delay(f"calls-{task}", [f"call:{task}"], data)
        assert result.get(PATIENCE) == value
        shared.assert_ran(result, State.COMPLETED, f"calls-{task}", 1)
        assert [mark["job"] for mark in shared.marks("called by itself")] == [result.id] * (task == "play")


def test_there_is_no_current_job_outside_of_one(cluster: Cluster) -> None:
    """Outside of a running job `current_job()` raises an error, and `retry` raises as in Celery and submits nothing."""
    for call in (current_job, lambda: cluster.play("direct", ["return"])):
        with pytest.raises(OneJobError, match="no onejob job is running"):
            call()
    with pytest.raises(Retry):
        cluster.play.retry()
    assert cluster.jobs() == []


# --- submitters: own jobs and quotas ----------------------------------------------------------------------------------


def tenant(name: str, **options: Any) -> Any:
    """Set a submitter with own jobs."""
    return onejob.submitter(name, own_jobs=True, **options)


def test_own_jobs_are_separate(cluster: Cluster) -> None:
    """Equal calls of submitters with own jobs, and of others, are a job for each; none reaches another's by its id."""
    found = []
    for name in ("one", "two", "one"):
        with tenant(name):
            found.append(cluster.play.delay("same", ["return"]))
    found += [cluster.play.delay("same", ["return"]) for _ in range(2)]
    assert [each.outcome for each in found] == ["admitted", "admitted", "attached", "admitted", "attached"]
    assert found[0].id == found[2].id
    assert [each.job.submitter for each in found] == ["one", "two", "one", "", ""]
    foreign, before = found[-1].id, cluster.job(found[-1])
    with tenant("one"):
        with pytest.raises(InvalidArgumentsError, match="omit it"):
            cluster.play.apply_async(("own", ["return"]), task_id=foreign)
        own = cluster.play.apply_async(("own", ["return"]), task_id="chosen")
        assert cluster.play.apply_async(("own", ["return"]), task_id="chosen").id == own.id == "chosen"
    assert cluster.job(foreign) == before


def test_a_submitter_has_a_printable_name(cluster: Cluster) -> None:
    """The name of a submitter is a short printable text, and a duplicate is recorded with it; its quota is a limit."""
    for name in ("", 7, "a\nb", "a\x00b", "x" * 256, None):
        for options in ({}, {"own_jobs": True}):
            with pytest.raises(InvalidArgumentsError, match="printable"), onejob.submitter(name, **options):  # type: ignore[arg-type]
                pass
    with pytest.raises(ConfigurationError, match="20/day"), tenant("a", quota="many"):
        pass
    first = cluster.play.delay("duplicate", ["hold"])
    with onejob.submitter("user:42"):
        cluster.play.delay("duplicate", ["other"])
    (named,) = cluster.ledger.duplicates(first.id)
    assert named.submitter == "user:42"
    assert named.source == "apply_async"
    assert named.outcome == Outcome.ATTACHED
    assert named.arguments_differ


def test_a_canvas_belongs_to_its_submitter(shared: Cluster) -> None:
    """The members of a canvas that workers submit belong to its submitter, and are its own, also after a retry."""

    def canvas() -> list[Any]:
        members = group(shared.play.si(f"member-{number}", ["return"]) for number in range(2))
        head, auto = (
            shared.play.si("head", ["retry:0", "return"]),
            shared.play_autoretry.si("auto", ["raise:no", "return"]),
        )
        tails = [shared.note.s(key) for key in ("tail", "auto's tail", "all")]
        return [chain(head, tails[0]), chain(auto, tails[1]), chord(members, tails[2])]

    results = []
    for name in ("canvas-1", "canvas-2"):
        with tenant(name, quota="9/day"):
            results += [each.delay() for each in canvas()]
    for result in results:
        result.get(timeout=PATIENCE)
    jobs = shared.jobs()
    for name in ("canvas-1", "canvas-2"):
        assert len({job.identity for job in jobs if job.submitter == name}) == 7
    assert shared.runs("tail") == shared.runs("auto's tail") == shared.runs("all") == 2


# --- quotas ---------------------------------------------------------------------------------------------------------


def test_a_quota_limits_new_jobs(cluster: Cluster) -> None:
    """Above a quota, also one of the settings or of an identity, nothing is stored; a duplicate is still answered."""
    with onejob.submitter("a", quota="2/hour", identity_quota="1/hour"):
        first = cluster.play.apply_async(("1", ["return"]), expires=600)
        cluster.play.delay("2", ["return"])
        with pytest.raises(QuotaExceededError) as caught:
            cluster.play.delay("3", ["return"])
        with pytest.raises(QuotaExceededError):
            cluster.play.submit_many([("3", ["return"]), ("4", ["return"])])
        with pytest.raises(PartlySubmittedError, match=r"1 of 2 .*\(2/hour") as partly:
            cluster.play.submit_many([("1", ["return"]), ("3", ["return"])])
        attached, refused = partly.value.results
        assert isinstance(attached, onejob.AsyncResult)
        assert (attached.id, attached.outcome, type(refused)) == (first.id, Outcome.ATTACHED, QuotaExceededError)
        keyed = cluster.play.apply_async(("1", ["return"]), idempotency_key="k")
        assert (keyed.id, cluster.job(first).expires_at) == (first.id, None)
        cluster.ledger.cancel(first.id)
        with pytest.raises(QuotaExceededError, match="same identity"):
            cluster.play.delay("1", ["return"])
        assert cluster.play.apply_async(("1", ["return"]), idempotency_key="k").outcome == "replayed"
    assert (caught.value.option, caught.value.limit, caught.value.reset_at[:2]) == ("quota", "2/hour", "20")
    assert 3000 < caught.value.retry_after <= 3600
    limited: Any = cluster.another_app(onejob_quota="1/hour").tasks["play"]
    with onejob.submitter("b"):
        limited.delay("3", ["return"])
        with pytest.raises(QuotaExceededError):
            limited.delay("4", ["return"])
    assert limited.delay("4", ["return"]).outcome == "admitted"
    assert len(cluster.jobs()) == 4


def test_coroutines_are_admitted_as_far_as_the_quota_has_left(cluster: Cluster) -> None:
    """Of coroutines that submit at once the first new jobs are admitted, and the others get the error."""

    async def submit() -> list[Any]:
        calls = [cluster.play.asubmit(str(number), ["return"]) for number in (7, 8, 7, 9)]
        return await asyncio.gather(*calls, return_exceptions=True)

    with onejob.submitter("b", quota="2/hour"):
        results = asyncio.run(submit())
    assert [isinstance(each, QuotaExceededError) for each in results] == [False, False, False, True]
    assert len(cluster.jobs()) == 2


@provokes(Transition.PUBLISH, because="Redis has no memory for messages")
def test_a_batch_that_fills_the_store_is_admitted_in_part(own_cluster: Callable[..., Cluster]) -> None:
    """A batch during which Redis runs out of memory says which items were admitted, and only these use the quota."""
    cluster = own_cluster("redis")
    items = [(f"item-{number}", ["return"]) for number in range(1000)]
    with onejob.submitter("a", quota="1000/hour"):
        cluster.play.delay("first", ["return"])
        cluster.broker.config_set("maxmemory", cluster.broker.info("memory")["used_memory"] + 600_000)
        with pytest.raises(PartlySubmittedError, match=r"of 999 .* not written: .* maxmemory") as caught:
            cluster.play.submit_many(items[1:])
        cluster.broker.config_set("maxmemory", 0)
        refused = [
            item for item, each in zip(items[1:], caught.value.results, strict=True) if isinstance(each, Exception)
        ]
        assert 0 < len(refused) < 999
        assert cluster.ledger.counts(Query())[State.QUEUED] == 1000 - len(refused)
        assert len(cluster.play.submit_many(refused)) == len(refused)
        with pytest.raises(QuotaExceededError):
            cluster.play.delay("last", ["return"])
