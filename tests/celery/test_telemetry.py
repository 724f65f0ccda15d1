"""What Sentry and OpenTelemetry see of jobs: one error for a failure, one trace from the submission to the webhook."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

import onejob.opentelemetry
from onejob import Outcome
from onejob.jobs.lifecycle import State, Transition
from onejob.observability import tracing
from tests.cases import further
from tests.celery.app import JSON_LOGS, SENTRY, TRACED
from tests.celery.harness import PATIENCE, Cluster, await_
from tests.celery.reports import Span, reports_in, spans_in, trace_to
from tests.quiet import provokes
from tests.tiers import deep
from tests.webhooks.receiver import SETTINGS, Receiver

# --- OpenTelemetry ----------------------------------------------------------------------------------------------------


class Traced(NamedTuple):
    """A cluster whose processes are traced."""

    cluster: Cluster

    def spans(self, name: str) -> list[Span]:
        return [span for span in spans_in(self.cluster.directory) if span.name == name]

    def await_spans(self, name: str, count: int = 1) -> list[Span]:
        """Wait for so many spans of a name."""
        await_(lambda: len(self.spans(name)) >= count)
        found = self.spans(name)
        assert len(found) == count
        return found


@pytest.fixture
def traced(new_cluster: Callable[..., Cluster]) -> Iterator[Traced]:
    """Return a traced cluster without a worker; this process is traced, too."""
    cluster = new_cluster(**SETTINGS, **{TRACED: "at once"})
    trace_to(cluster.directory)
    yield Traced(cluster)
    onejob.opentelemetry.uninstrument()


def test_a_run_and_its_steps_are_in_the_trace_of_the_submission(traced: Traced) -> None:
    """A submission, its run and its steps are one trace, which the records of a JSON log name, too."""
    worker = traced.cluster.worker("-c", "1", **{JSON_LOGS: True})
    result = traced.cluster.run_steps.delay("w", ["one", "two"])
    result.get(PATIENCE)
    (run,) = traced.await_spans("run run_steps")
    (submit,) = traced.spans("submit run_steps")
    steps = [*traced.spans("step one"), *traced.spans("step two")]
    assert (submit.kind, submit.parent, submit["outcome"], submit["source"]) == (
        "PRODUCER", None, "admitted", "apply_async",
    )  # fmt: skip
    assert (run.kind, run.parent, run.trace, run["end"]) == ("CONSUMER", submit.id, submit.trace, "completed")
    assert [(step.parent, step.trace, step["step.memoised"]) for step in steps] == [(run.id, run.trace, False)] * 2
    job = traced.cluster.job(result)
    assert (run["attempt"], run["token"], run["node"]) == (1, job.token, job.node)
    assert submit.attributes["messaging.message.id"] == run.attributes["messaging.message.id"] == result.id
    assert (run.attributes["messaging.system"], run.attributes["messaging.operation.type"]) == ("celery", "process")
    assert run.attributes["messaging.destination.name"] == "celery"
    worker.stop()
    entries = [json.loads(line) for line in worker.text.splitlines() if line.startswith("{")]
    assert [line for line in worker.text.splitlines() if line.startswith("[20")] == []
    for message in ("steps done", "event=job_completed"):
        (entry,) = [entry for entry in entries if entry["message"].startswith(message)]
        assert (entry["job_id"], entry["task"], f"0x{entry['trace_id']}") == (result.id, "run_steps", run.trace)
    ready = next(entry for entry in entries if entry["message"].endswith("ready."))
    assert not {"job_id", "trace_id"} & ready.keys()


def test_a_duplicate_links_to_the_submission_of_its_job(traced: Traced) -> None:
    """The span of a duplicate, of one that is rejected, and of a batch, has outcomes and links to older submissions."""
    first, again = (traced.cluster.play.delay("a", ["return"]) for _ in range(2))
    traced.cluster.play.submit_many([("a", ["return"]), ("b", ["return"]), ("b", ["return"]), ("c", ["return"])])
    submitted, duplicate, batch = traced.await_spans("submit play", 3)
    assert (duplicate["outcome"], duplicate["job.id"], again.id) == ("attached", first.id, first.id)
    assert (submitted.links, duplicate.links) == ([], [submitted.id])
    assert duplicate.trace != submitted.trace
    assert batch.attributes["messaging.batch.message_count"] == 4
    assert (batch["source"], batch["outcome.admitted"], batch["outcome.attached"]) == ("submit_many", 2, 2)
    assert batch.links == [submitted.id]
    traced.cluster.play_raise.delay("a", ["return"])
    with pytest.raises(onejob.DuplicateJobError):
        traced.cluster.play_raise.delay("a", ["return"])
    _, rejected = traced.await_spans("submit play_raise", 2)
    assert (rejected["outcome"], rejected.status, len(rejected.links)) == ("rejected", "UNSET", 1)


def test_coroutines_that_share_a_batch_have_spans_of_their_own(traced: Traced) -> None:
    """Each of many concurrent `asubmit` is a span of its own, which its job keeps."""

    async def submit_all() -> list[Any]:
        return await asyncio.gather(*(traced.cluster.play.asubmit(key, ["return"]) for key in "abb"))

    results = asyncio.run(submit_all())
    spans = traced.await_spans("submit play", 3)
    assert sorted(span["outcome"] for span in spans) == ["admitted", "admitted", "attached"]
    kept = {tracing.trace_of(traced.cluster.job(result).options)["traceparent"].split("-")[2] for result in results}
    assert kept == {span.id[2:] for span in spans if span["outcome"] == "admitted"}


def test_each_attempt_is_in_the_trace_of_the_submission(traced: Traced) -> None:
    """Each attempt, after a retry, a crash or a redrive, is a span of its own below the submission, with its end."""
    traced.cluster.worker()
    with pytest.raises(ValueError, match="the cause of r"):
        traced.cluster.play.delay("r", ["retry_caught", "retry_caught"]).get(PATIENCE)
    first, last = traced.await_spans("run play", 2)
    (submit,) = traced.spans("submit play")
    assert [(run.parent, run["attempt"], run["end"]) for run in (first, last)] == [
        (submit.id, 1, "retrying"), (submit.id, 2, "failed"),
    ]  # fmt: skip
    assert first.events["job_retrying"]["onejob.delay"] == 0
    assert first.events["exception"]["exception.type"] == "ValueError"
    assert (first.status, last.status) == ("UNSET", "ERROR")
    traced.cluster.run_steps.delay("c", ["one", "two"], {"two": "kill"}).get(PATIENCE)
    (run,) = traced.await_spans("run run_steps")
    (submit,) = traced.spans("submit run_steps")
    assert (run.parent, run["attempt"], run["crashes"]) == (submit.id, 2, 1)
    computed, kept = traced.spans("step one")
    assert computed.trace == kept.trace == submit.trace
    assert computed["step.memoised"] is False
    assert kept["step.memoised"] is True
    result = traced.cluster.play_long_lease.delay("d", ["permanent", "return"])
    traced.cluster.await_state(result, State.FAILED)
    traced.cluster.ledger.redrive(result.id)
    traced.cluster.await_state(result, State.COMPLETED)
    failed, completed = traced.await_spans("run play_long_lease", 2)
    assert failed.trace == completed.trace == traced.spans("submit play_long_lease")[0].trace
    assert (failed["end"], failed.status, completed["end"]) == ("failed", "ERROR", "completed")


def test_a_trace_goes_on_where_a_job_comes_from_and_goes_to(traced: Traced, receiver: Receiver) -> None:
    """A submission is a child of the span around it, or of the headers of its message; a webhook goes on with it."""
    traced.cluster.worker()
    inner = ["inner", ["return"]]
    traced.cluster.play.apply_async(("outer", ["submit:play"], inner), webhook_url=receiver.url("/ok"))
    (got,) = receiver.await_("/ok")
    runs = traced.await_spans("run play", 2)
    submit, within = traced.spans("submit play")
    assert [within.parent] == [run.id for run in runs if run.parent == submit.id]
    assert {run.trace for run in runs} == {submit.trace}
    (delivery,) = traced.await_spans("deliver webhook")
    assert (delivery.kind, delivery.trace, delivery.parent) == ("CLIENT", submit.trace, submit.id)
    assert got.headers["traceparent"].split("-")[1:3] == [delivery.trace[2:], delivery.id[2:]]
    assert (delivery.attributes["http.response.status_code"], delivery["job.id"]) == (204, submit["job.id"])
    sent = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    traced.cluster.app.send_task("play_acks_late", ("m", ["return"]), headers=sent)
    (run,) = traced.await_spans("run play_acks_late")
    (submit,) = traced.await_spans("submit play_acks_late")
    assert (submit.trace, submit.parent) == ("0x0af7651916cd43dd8448eb211c80319c", "0xb7ad6b7169203331")
    assert (run.trace, run.parent) == (submit.trace, submit.id)
    assert (submit["source"], submit["outcome"]) == ("message", "admitted")


def test_a_span_of_the_worker_in_another_trace_is_linked(traced: Traced) -> None:
    """A run within another tool's span is its child in the same trace, and has a link to it in another trace."""
    result = traced.cluster.play.delay("o", ["return"])
    (submit,) = traced.await_spans("submit play")
    job = traced.cluster.job(result)
    tool = TracerProvider().get_tracer("another tool")
    with tool.start_as_current_span("republished") as other, tracing.tracer.run(job):
        pass
    kept = trace.SpanContext(int(submit.trace, 16), int(submit.id, 16), is_remote=True, trace_flags=trace.TraceFlags(1))
    below = trace.set_span_in_context(trace.NonRecordingSpan(kept))
    with tool.start_as_current_span("delivered", below) as own, tracing.tracer.run(job):
        pass
    first, second = traced.await_spans("run play", 2)
    assert (first.parent, first.links) == (submit.id, [_id(other)])
    assert (second.parent, second.links) == (_id(own), [])


def _id(span: Any) -> str:
    return f"0x{span.get_span_context().span_id:016x}"


def test_children_export_their_spans_at_a_warm_shutdown(new_cluster: Callable[..., Cluster]) -> None:
    """A pool's child flushes its spans when its worker stops, although its exit runs no exit handlers."""
    cluster = new_cluster(**{TRACED: "batch"})
    worker = cluster.worker("-c", "1")
    cluster.play.delay("f", ["return"]).get(PATIENCE)
    assert spans_in(cluster.directory) == []
    worker.stop()
    assert [span.name for span in spans_in(cluster.directory)] == ["run play"]


def test_a_trace_is_kept_with_the_job_and_not_in_its_message(traced: Traced) -> None:
    """A trace context is no part of a message; without a tracer nothing is kept."""
    first, second = (traced.cluster.job(traced.cluster.play.delay(key, ["return"])) for key in "ab")
    assert first.options != second.options
    for raw in traced.cluster.broker.lrange("celery", 0, -1):
        assert {"traceparent", "tracestate"}.isdisjoint(json.loads(raw)["headers"])
    onejob.opentelemetry.uninstrument()
    assert tracing.tracer is tracing.NO_TRACER
    assert "traceparent" not in traced.cluster.job(traced.cluster.play.delay("n", ["return"])).options


# --- Sentry -----------------------------------------------------------------------------------------------------------


OPTIONS = {"traces_sample_rate": 1.0}


@pytest.mark.parametrize("pool", ["prefork", *further("threads", "solo")])
def test_every_pool_reports_errors_and_transactions(new_cluster: Callable[..., Cluster], pool: str) -> None:
    """An error is one report, and each run one transaction, in every pool, though Sentry starts after the tasks."""
    cluster = new_cluster(**{SENTRY: OPTIONS})
    cluster.worker("-c", "1", "--pool", pool, forked=False)  # the process to fork from has imported Celery's worker
    with pytest.raises(ValueError, match="broken"):
        cluster.play_own.delay("broken", ["raise:broken"]).get(PATIENCE)
    cluster.play.delay("fine", ["return"]).get(PATIENCE)
    transactions = await_(lambda: len(found := reports_in(cluster.directory, "transaction")) == 2 and found)
    status = {each["transaction"]: each["contexts"]["trace"]["status"] for each in transactions}
    assert (status, messages(cluster)) == ({"play_own": "internal_error", "play": "ok"}, ["broken"])


@pytest.fixture
def reporting(new_cluster: Callable[..., Cluster]) -> Cluster:
    """Return a cluster whose worker reports to Sentry."""
    cluster = new_cluster(**{SENTRY: OPTIONS})
    cluster.worker("-c", "1")  # runs report in their order
    return cluster


def messages(cluster: Cluster) -> list[str]:
    """Return the messages of the exceptions that were reported so far."""
    return [error["exception"]["values"][-1]["value"] for error in reports_in(cluster.directory, "event")]


def test_errors_are_reported_once_and_nothing_else(reporting: Cluster) -> None:
    """The error of a last attempt is one report, without arguments; duplicates, retries and cancellations are none."""
    result = reporting.play.delay("secret", ["raise:broken"])
    with pytest.raises(ValueError, match="broken"):
        result.get(PATIENCE)
    first = reporting.begin("d", ["hold:d"])
    assert reporting.play.delay("d", ["return"]).outcome is Outcome.ATTACHED
    follower = reporting.play.apply_async(("d", ["return"]), task_id="a-follower")
    reporting.app.send_task("play", ("d", ["return"]), task_id=first.id)
    reporting.open("d")
    first.get(PATIENCE)
    follower.get(PATIENCE)
    reporting.await_state(reporting.play.delay("i", ["ignore"]), State.CANCELED)
    canceled = reporting.begin("c", ["poll:never"])
    reporting.ledger.cancel(canceled.id)
    reporting.await_state(canceled, State.CANCELED)
    with pytest.raises(ValueError, match="the cause of r"):
        reporting.play.delay("r", ["retry_caught", "retry_caught"]).get(PATIENCE)
    await_(lambda: "the cause of r" in messages(reporting))  # earlier runs have reported what they report
    assert messages(reporting) == ["broken", "the cause of r"]
    error = reports_in(reporting.directory, "event")[0]
    raised, job = error["exception"]["values"][-1], error["extra"]["celery-job"]
    assert (raised["type"], raised["value"], raised["mechanism"]["type"]) == ("ValueError", "broken", "celery")
    assert (error["transaction"], error["tags"]["celery_task_id"]) == ("play", result.id)
    assert job["task_name"] == "play"
    assert "secret" not in str(job)


@deep
@provokes(Transition.RELEASE, because="the worker stops")
def test_a_shutdown_is_no_error(new_cluster: Callable[..., Cluster]) -> None:
    """A run that its worker releases when it stops is not reported."""
    cluster = new_cluster(**{SENTRY: OPTIONS}, onejob_shutdown_grace=30)
    worker = cluster.worker("--pool", "threads", "-c", "2")
    result = cluster.begin("s", ["poll:never"])
    worker.stop()
    assert cluster.job(result).state == State.QUEUED
    assert "release" in cluster.events(result)
    assert messages(cluster) == []


def test_a_run_is_in_the_trace_of_its_submission(reporting: Cluster) -> None:
    """A run continues the trace of the run that submitted its job, which has the identity that others compute."""
    reporting.play.delay("w", ["return"]).get(PATIENCE)  # after it, the worker's task is wrapped
    outer = reporting.play.delay("outer", ["submit:run_steps"], ["k", ["one"]])
    inside = reporting.await_state(outer.get(PATIENCE), State.COMPLETED)
    await_(lambda: len(reports_in(reporting.directory, "transaction")) >= 3)
    reports = reports_in(reporting.directory, "transaction")
    runs = {report["tags"]["celery_task_id"]: report["contexts"]["trace"] for report in reports}
    assert runs[inside.id]["trace_id"] == runs[outer.id]["trace_id"]
    assert runs[inside.id]["parent_span_id"]
    assert runs[inside.id]["op"] == "queue.task.celery"
    outside = reporting.run_steps.delay("k", ["one"])
    assert reporting.await_state(outside, State.COMPLETED).identity == inside.identity
    assert outside.id != inside.id
