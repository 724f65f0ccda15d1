"""Chains, groups, chords and replacements end with the right results, whichever of their members are duplicates."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError, TaskRevokedError
from celery.result import AsyncResult as CeleryResult

from onejob import Outcome, State
from onejob.client.operation import Operation
from onejob.client.operator import Operator
from onejob.errors import JobFailedError, NoDeadLetterError
from onejob.jobs.lifecycle import Transition
from tests.celery.harness import LEASE, PATIENCE, Cluster, await_, on_every_store, two_waiters
from tests.quiet import KILLED, provokes
from tests.services import start_redis


def test_chains_with_a_common_job(shared: Cluster) -> None:
    """Chains of which some job, the head or a later one, equals one that runs, go on with its result when it ends."""
    first = shared.begin("common", ["hold>return:value"])
    heads = [shared.play.si("common", ["return"]) | shared.note.s(f"tail-{n}") | shared.plain.s("") for n in (0, 1)]
    results = [head.delay() for head in heads]
    later = chain(shared.anywhere.si("to the tail"), shared.play.si("common", ["return"]), shared.note.s("end")).delay()
    await_(lambda: shared.job(first).duplicate_count == 3)
    assert not any(result.ready() for result in (*results, later))
    shared.open("common")
    assert [result.get(timeout=PATIENCE) for result in results] == [[[f"tail-{n}", "value"], ""] for n in (0, 1)]
    assert later.get(timeout=PATIENCE) == ["end", "value"]
    assert [shared.runs(key) for key in ("tail-0", "tail-1", "end")] == [1, 1, 1]
    shared.assert_ran(first, State.COMPLETED, "common", 1)


@on_every_store("shared")
def test_groups_and_chords_with_equal_members(shared: Cluster) -> None:
    """A group or a header with equal members runs each different job once, and every member has the result."""
    members = {
        name: [shared.play.s(f"{name} {key}", ["hold:all>attempt"]) for key in ("repeated", "unique", "repeated")]
        for name in ("group", "chord")
    }
    alone, together = group(members["group"]).delay(), chord(members["chord"])(shared.gather.s("body"))
    for name in members:
        shared.await_mark(f"{name} repeated")
    shared.open("all")
    for result in (alone, together):
        first, single, second = result.get(timeout=PATIENCE)
        assert first == second != single
    assert alone.successful()
    assert [shared.runs(f"{name} {key}") for name in members for key in ("repeated", "unique")] == [1] * 4
    assert len(shared.marks("body", "gather")) == 1
    shared.assert_free("group repeated")


def test_a_group_without_a_result_backend(cluster: Cluster) -> None:
    """A group of onejob tasks needs no result backend: its results come from the ledger."""
    cluster.config["result_backend"] = None
    cluster.app.conf.update(result_backend=None)
    cluster.worker()
    result = group(cluster.play.s(key, ["return"]) for key in ("a", "b", "a")).delay()
    assert result.get(timeout=PATIENCE) == ["a", "b", "a"]
    cluster.assert_quiet()


@two_waiters
@on_every_store("shared")
def test_a_chord_with_a_member_that_runs_already(shared: Cluster) -> None:
    """A chord whose header holds a job that runs already waits for it, takes its result, and ends."""
    first = shared.begin("member", ["hold>return:early"])
    header = [shared.play.s("member", ["return:late"]), shared.play.s("fresh", ["return:fresh"])]
    result: Any = chord(header)(shared.note.s("body"))
    assert shared.play.AsyncResult(result.parent.results[1].id).get(PATIENCE) == "fresh"
    assert not result.ready()
    shared.open("member")
    assert result.get(timeout=PATIENCE) == ["body", ["early", "fresh"]]
    shared.assert_ran(first, State.COMPLETED, "member", 1)
    assert shared.runs("body") == 1


# A child that dies may take the next job's message with it, which is run again when its lease is over.
ENDS = {
    "raise": "play_short_lease",
    "kill": "play_short_lease",
    "ignore": "play_short_lease",
    "reject": "play_short_lease",
    "unstorable": "play_short_lease",
    "hold:never": "play_time_limit",
}


@provokes(
    Transition.NOTIFY_CANVAS, logs=["ChordError(", "Hard time limit", KILLED], because="members fail in every way"
)
def test_a_chord_whose_member_does_not_succeed(shared: Cluster) -> None:
    """However a member ends, the chord ends: no body runs, and its errback and that of the job are called once each."""
    results, own = {}, [end for end in ENDS if end != "ignore"]
    for end, task in ENDS.items():
        body = shared.gather.s(f"body-{end}").on_error(shared.errback.s(key=f"errback-{end}"))
        member = shared.app.tasks[task].s(end, [end])
        if end in own:
            member.link_error(shared.errback.s(key=f"own-{end}"))
        results[end] = chord([shared.play_short_lease.s(f"good-{end}", ["return"]), member])(body)
    for end, result in results.items():
        with pytest.raises(ChordError):
            result.get(timeout=PATIENCE, follow_parents=False)
        assert shared.runs(end) == (3 if end == "kill" else 1)
    for end in own:
        shared.await_mark(f"own-{end}", "errback")
    shared.await_rest()
    assert [shared.marks(f"body-{end}", "gather") for end in ENDS] == [[]] * len(ENDS)
    assert {end: len(shared.marks(f"errback-{end}", "errback")) for end in ENDS} == dict.fromkeys(ENDS, 1)
    assert {end: len(shared.marks(f"own-{end}", "errback")) for end in own} == dict.fromkeys(own, 1)


@provokes(Transition.NOTIFY_CANVAS, logs=["ChordError("], because="a member ends without a worker, or is terminated")
def test_a_chord_whose_member_is_canceled(shared: Cluster) -> None:
    """A member that is terminated, or revoked while it waits, ends the chord: no body runs, one errback is called."""
    for end in ("terminated", "revoked"):
        member = shared.play.s(end, ["hold:never"]).set(countdown=3600 if end == "revoked" else None)
        body = shared.gather.s(f"{end} body").on_error(shared.errback.s(key=f"{end} errback"))
        result: Any = chord([shared.play.s(f"calm {end}", ["return"]), member])(body)
        calm, canceled = (shared.play.AsyncResult(each.id) for each in result.parent.results)
        shared.await_settled(shared.await_state(calm, State.COMPLETED))  # it could claim the call of the errback, too
        if end == "terminated":
            shared.await_mark(end)
            shared.app.control.terminate(canceled.id)
        else:
            canceled.revoke()
        with pytest.raises(ChordError):
            result.get(timeout=PATIENCE, follow_parents=False)
        shared.await_rest()
        assert shared.runs(end) == (end == "terminated")
        assert shared.marks(f"{end} body", "gather") == []
        assert len(shared.marks(f"{end} errback", "errback")) == 1


def test_links_of_every_submission_are_called(shared: Cluster) -> None:
    """`link` and `link_error` of a duplicate are called as those of the first submission are, each once."""
    submissions: list[tuple[str, str, Any]] = [("linked", "return:value", "plain"), ("link-error", "raise", "errback")]
    for key, act, callback in submissions:
        option = "link" if act.startswith("return") else "link_error"
        for who in ("first", "second"):
            link = shared.plain.s(f"{key}-{who}") if callback == "plain" else shared.errback.s(key=f"{key}-{who}")
            shared.play.apply_async((key, [f"hold:{key}>{act}"]), **{option: link})
        shared.await_mark(key)
        shared.open(key)
        for who in ("first", "second"):
            shared.await_mark(f"{key}-{who}", callback)
        shared.await_rest()
        assert [len(shared.marks(f"{key}-{who}", callback)) for who in ("first", "second")] == [1, 1]
        assert shared.runs(key) == 1


def test_a_chain_stops_at_a_failure(shared: Cluster) -> None:
    """A chain does not continue after a job that failed, nor after a duplicate of it."""
    heads = [shared.play.si("stop", ["hold>raise"]) for _ in range(2)]
    results = [(head | shared.note.s(f"never-{number}")).delay() for number, head in enumerate(heads)]
    shared.await_mark("stop")
    shared.open("stop")
    for result in results:
        with pytest.raises(ValueError, match="stop"):
            result.parent.get(timeout=PATIENCE)
    shared.await_rest()
    assert shared.runs("never-0") == shared.runs("never-1") == 0


@provokes(logs=["StrangeError"], because="a job fails with a class of its own")
def test_a_replaced_member_continues_the_chain(shared: Cluster) -> None:
    """A chain after a job that replaces itself, or after a duplicate of it, goes on, or stops, as the replacement."""
    for act in ("replace:play", "replace:plain", "replace:anywhere,note", "replace:strange"):
        data = ["stand-in", ["return"]] if act == "replace:play" else ["stand-in"]
        own = (shared.play.s(act, [f"hold>{act}"], data) | shared.note.s(f"then {act}")).delay()
        shared.await_mark(act)
        behind = (shared.play.s(act, ["return"]) | shared.note.s(f"behind {act}")).delay()
        shared.open(act)
        if act == "replace:strange":
            for result in (own, behind):
                with pytest.raises(JobFailedError):
                    result.parent.get(timeout=PATIENCE)
                assert shared.job(result.parent).state is State.FAILED
        else:
            value = own.parent.get(timeout=PATIENCE)
            assert own.get(timeout=PATIENCE) == [f"then {act}", value]
            assert behind.get(timeout=PATIENCE) == [f"behind {act}", value]
            assert shared.runs(f"then {act}") == 1
        assert shared.runs(act) == 1


def test_a_chord_behind_a_group_behind_a_chain(shared: Cluster) -> None:
    """A nested canvas of onejob tasks with duplicates on each level, and of consecutive equal ones, has its results."""
    first = chain(shared.play.si("deep", ["return:1"]), shared.play.si("deep", ["return:2"]))
    middle = group(shared.note.s("left"), shared.note.s("right"), shared.note.s("left"))
    result = (first | middle | shared.gather.s("all")).delay()
    assert result.get(timeout=PATIENCE) == [["left", "2"], ["right", "2"], ["left", "2"]]
    assert (shared.runs("deep"), len(shared.marks("all", "gather"))) == (2, 1)


NOWHERE = "redis://127.0.0.1:1/0"


@provokes(
    Transition.NOTIFY_CANVAS,
    logs=["network:ConnectionError", "Exception raised outside body", "Pool callback raised"],  # by Celery 5.4
    because="the result backend is away",
)
def test_a_result_backend_that_is_away_repeats_no_link(cluster: Cluster) -> None:
    """A link that was dispatched is not dispatched again; a chord's member is, after pauses, and has the error."""
    cluster.use_lease(LEASE)
    retries = {"retry_policy": {"max_retries": 0, "timeout": 0.1}}
    cluster.worker("-c", "1", result_backend=NOWHERE, result_backend_transport_options=retries)
    result = cluster.play.apply_async(("linked", ["return"]), link=cluster.plain.s("link"))
    cluster.await_mark("link", "plain")
    await_(lambda: not cluster.job(result).canvas_pending)
    assert cluster.job(result).state is State.COMPLETED
    member = cluster.play.s("member", ["return"]).apply_async(chord=cluster.gather.s("body"), group_id="group")
    await_(lambda: cluster.job(member).publish_error)
    job = await_(lambda: (job := cluster.job(member)).published >= 1 and job)
    assert job.state == State.COMPLETED
    assert job.canvas_pending
    assert "Error" in job.publish_error
    assert cluster.ledger.history(member.id)[-1].event == "notify_canvas"
    assert len(cluster.marks("link", "plain")) == 1


@provokes(
    Transition.RELEASE,
    Transition.PUBLISH,
    logs=["network:ConnectionError", "Exception raised outside body", "Pool callback raised"],
    because="the result backend is away",
)
def test_a_result_backend_that_is_away_costs_no_job(cluster: Cluster) -> None:
    """A job whose start Celery cannot record is tried again a lease later, and that is no crash."""
    cluster.use_lease(LEASE)
    retries = {"retry_policy": {"max_retries": 0, "timeout": 0.1}}
    cluster.worker(
        "-c", "1", result_backend=NOWHERE, result_backend_transport_options=retries, task_track_started=True
    )  # fmt: skip
    result = cluster.play.delay("unrecorded", ["return"])
    job = await_(lambda: (job := cluster.job(result)).attempt >= 2 and job)
    assert (job.crashes, cluster.events(result)[:3]) == (0, ["submit", "claim", "release"])
    assert cluster.runs("unrecorded") == 0


@pytest.mark.deep
@provokes(
    Transition.NOTIFY_CANVAS,
    logs=["Hard time limit", KILLED, "ConnectionError", "TimeLimitExceeded"],
    because="the result backend is away",
)
def test_an_errback_outlives_an_outage_of_the_result_backend(cluster: Cluster, tmp_path: Path) -> None:
    """If the result backend is away when a job exceeds its hard time limit, its errback is called later, once."""
    backend = start_redis(tmp_path)
    cluster.config |= {
        "result_backend": backend.url,
        "result_backend_transport_options": {"retry_policy": {"timeout": 1.0, "max_retries": 1}},
    }
    cluster.use_lease(LEASE)
    cluster.worker("-c", "2")
    result = cluster.play_time_limit.apply_async(
        ("limited", ["hold:never"]), link_error=cluster.errback.s(key="errback")
    )
    cluster.await_mark("limited")
    backend.stop()
    assert cluster.await_state(result, State.FAILED).canvas_pending
    await_(lambda: cluster.job(result).publish_error)  # a sweep has tried it in vain
    assert cluster.job(result).canvas_pending
    backend.start()
    cluster.await_mark("errback", "errback")
    cluster.await_rest()
    assert len(cluster.marks("errback", "errback")) == 1
    backend.stop()


@provokes(Transition.NOTIFY_CANVAS, logs=[KILLED], because="the result backend does not answer")
def test_a_time_limit_after_the_end_of_a_run_calls_no_errback(cluster: Cluster, tmp_path: Path) -> None:
    """A job has succeeded if its process is killed while it waits to store that: its link is called, no errback."""
    backend = start_redis(tmp_path)
    cluster.use_lease(LEASE)
    worker = cluster.worker("-c", "1", result_backend=backend.url)
    os.kill(backend.pid, signal.SIGSTOP)
    canvas = {"link": cluster.plain.s("link"), "link_error": cluster.errback.s(key="errback")}
    result = cluster.play.apply_async(("late", ["return"]), time_limit=3, **canvas)
    worker.await_text(KILLED)
    os.kill(backend.pid, signal.SIGCONT)
    cluster.await_mark("link", "plain")
    cluster.await_rest()
    assert cluster.job(result).state is State.COMPLETED
    assert not cluster.marks("errback", "errback")
    backend.stop()


# --- `Task.replace`: the job goes on as what replaces it, with its id, its identity and its idempotency key -----------


WAYS: dict[str, tuple[str, list[Any], Any]] = {
    "a task": ("replace:play", ["next a task", ["hold:end>return:done"]], "done"),
    "a chain": ("replace:anywhere,note", ["next a chain"], ["next a chain", "next a chain"]),
    "a chord": ("replace_chord:note", [["a", "b"], ["next a chord"]], ["next a chord", ["a", "b"]]),
    "another class": ("replace:plain", ["next another class"], ["next another class"]),
}
"""By what a job is replaced: the act, its data, and the result."""


@on_every_store("shared")
def test_a_replaced_job_keeps_its_key_and_identity(shared: Cluster) -> None:
    """A repeated call with the key, and an equal call, get the job that was replaced, before and after its end."""
    for key, (act, data, value) in WAYS.items():
        call: dict[str, Any] = {"args": (key, [f"hold:{key}>{act}"], data), "idempotency_key": key}
        first = shared.play.apply_async(**call)
        shared.await_mark(key)
        shared.open(key)
        await_(lambda: "replace" in shared.events(first))  # noqa: B023 - called in this round
        assert shared.play.apply_async(**call).id == first.id, key
        if key == "a task":  # the others may have ended
            assert shared.play.delay(key, ["return"]).id == first.id
        shared.open("end")
        assert first.get(PATIENCE) == value, key
        shared.await_rest()
        repeated = shared.play.apply_async(**call)
        assert (repeated.id, repeated.outcome, repeated.get(PATIENCE)) == (first.id, Outcome.REPLAYED, value), key
        job = shared.job(first)
        assert (job.state, job.task, shared.runs(key)) == (State.COMPLETED, "play", 1), key
        last = [mark["job"] for mark in shared.marks(f"next {key}") if "attempt" in mark or "value" in mark]
        assert last == [first.id] * (key != "another class"), key
        assert CeleryResult(first.id, app=shared.app).get(timeout=PATIENCE) == value, key
        assert shared.play.delay(key, ["return:again"]).get(PATIENCE) == "again", key


def test_a_replacement_may_have_an_identity_in_use(shared: Cluster) -> None:
    """A job that is replaced by an equal call, or by one whose identity another job holds, runs that call next."""
    acts = ["loop", ["return", "replace:play", "return:end"], ["loop", ["retry:0", "return", "return:third"]]]
    looping = shared.play.delay("loop", ["replace:play"], acts)
    assert looping.get(PATIENCE) == "third"
    assert (shared.events(looping).count("replace"), shared.runs("loop")) == (2, 3)
    other = shared.begin("held", ["hold:other>return:other"])
    result = shared.play.delay("replaces", ["replace:play"], ["held", ["return:own"]])
    assert result.get(PATIENCE) == "own"
    assert shared.play.delay("held", ["return"]).id == other.id
    shared.open("other")
    assert other.get(PATIENCE) == "other"
    assert shared.runs("held") == 2


@pytest.mark.parametrize("backend", ["disabled://", pytest.param(None, marks=pytest.mark.deep)])
@provokes(
    Transition.NOTIFY_CANVAS, logs=["StrangeError"], because="a part fails, and one is canceled when its run is retried"
)
def test_a_replacement_that_breaks_ends_the_job(new_cluster: Callable[..., Cluster], backend: str | None) -> None:
    """If a task before the end of a replacing chain fails or is canceled, so is the job, also without a backend."""
    cluster = new_cluster(**({"result_backend": backend} if backend else {}))
    cluster.worker("-c", "3")
    failed = cluster.play.delay("fails", ["replace:strange,note"], ["part"])
    canceled = cluster.play.delay("canceled", ["replace:play_long_lease,note"], ["part", ["hold>retry:3600"]])
    part = cluster.await_mark("part")[0]["job"]
    cluster.ledger.cancel(part)
    cluster.open("part")
    assert cluster.await_state(failed, State.FAILED, State.CANCELED).state is State.FAILED
    assert cluster.await_state(canceled, State.FAILED, State.CANCELED).state is State.CANCELED
    with pytest.raises(TaskRevokedError):
        canceled.get(PATIENCE)
    cluster.assert_free("fails")
    cluster.assert_quiet()
    if backend:  # nobody stores the end of this one
        result = cluster.play.delay("given away", ["replace:plain"], ["plainly"])
        cluster.await_mark("plainly", "plain")
        assert "replaced by another task" in cluster.await_state(result, State.CANCELED).reason
        cluster.assert_free("given away")


@pytest.mark.deep
@provokes(Transition.PUBLISH, because="a busy machine looks once more, after a lease")
def test_the_end_of_an_unknown_replacement_is_not_awaited_for_ever(new_cluster: Callable[..., Cluster]) -> None:
    """A job whose replacement ends nowhere fails after `result_expires`, and blocks its identity no longer."""
    cluster = new_cluster(result_expires=1, onejob_lease=LEASE)
    cluster.worker("-c", "2")
    result = cluster.play.delay("away", ["replace_elsewhere:plain"], ["never"])
    job = cluster.await_state(result, State.FAILED)
    assert "nothing is known of the task that replaced job" in job.reason
    cluster.assert_free("away")


def test_a_chain_that_is_applied_again_runs_each_step(shared: Cluster) -> None:
    """One chain that is applied several times runs its last step each time, although Celery 5.7 gives that one id."""
    pipe: Any = shared.play.s() | shared.play.s(["return:last"])
    for number in range(3):
        pipe.tasks[0].args = (f"first {number}", [f"return:last {number}"])
        pipe.delay()
    await_(lambda: [shared.runs(f"last {number}") for number in range(3)] == [1, 1, 1])


@on_every_store("shared")
def test_redriving_repeats_no_effect_for_a_follower(shared: Cluster) -> None:
    """Of two equal chains whose first job failed, both go on with its next run, in whatever order they are redriven."""
    operator = Operator(app=shared.app, ledger=shared.ledger, origin="by a test")
    for name, order in (("newest first", -1), ("oldest first", 1)):
        head = shared.play.si(name, ["hold>permanent", "return:paid"])
        results: list[Any] = [(head | shared.note.s(f"{name} {number}")).delay() for number in (0, 1)]
        await_(partial(shared.ledger.get_or_none, results[1].parent.id))
        shared.open(name)
        failed = [shared.await_state(result.parent.id, State.FAILED) for result in results]
        for job in failed:
            shared.await_settled(job)
        for job in failed[::order]:
            with suppress(NoDeadLetterError):
                operator.operate(Operation.REDRIVE, shared.job(job.id))
        for result in results:  # whose parents have failed, for Celery, until they complete
            shared.await_state(result.id, State.COMPLETED)
        assert [result.get(timeout=PATIENCE) for result in results] == [[f"{name} {n}", "paid"] for n in (0, 1)]
        assert shared.runs(name) == 2
