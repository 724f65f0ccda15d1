"""What an app adds to its messages is that of the submitter, whoever sends the message and wherever the job runs."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

import celery
import pytest
from celery import signals
from kombu.messaging import Producer

import onejob
from onejob.celery.app_state import app_state_of
from onejob.celery.messages import context
from onejob.celery.messages.payload import decode
from onejob.client.jobs import check_duplicate, edit
from onejob.jobs.lifecycle import State
from onejob.uniqueness.identity import Identifier
from tests.cases import for_each, further
from tests.celery.app import TENANT
from tests.celery.harness import DELIVERS, PATIENCE, Cluster
from tests.submissions import submission_of

OURS, OTHERS = "shop", "the worker's"


@contextmanager
def receiving(receive: Callable[..., object], signal: Any = signals.before_task_publish) -> Iterator[None]:
    """Connect a receiver of a signal."""
    signal.connect(receive, weak=False)  # before Celery 5.7, a dead receiver silences those after it
    try:
        yield
    finally:
        signal.disconnect(receive)


@pytest.fixture(params=["redis", *further("onejob")])
def tenants(request: pytest.FixtureRequest, new_cluster: Callable[..., Cluster]) -> Cluster:
    """Return a cluster of one tenant's, whose worker is another tenant's."""
    return new_cluster(**{TENANT: OURS}, **(DELIVERS if request.param == "onejob" else {}))


def worker(cluster: Cluster, **settings: Any) -> Any:
    """Start a worker in which the app adds another tenant."""
    return cluster.worker("-c", "2", **{TENANT: OTHERS}, **settings)


def test_a_run_has_the_context_of_its_submission(tenants: Cluster) -> None:
    """At once, later, in a batch, in a coroutine and after a retry, a run has the headers of its submitter's app."""
    play, acts = tenants.play, ["tenant"]
    results = [play.delay("once", acts), play.apply_async(("later", acts), countdown=0.3)]
    results += play.submit_many([("many", acts), ("more", acts)])
    results += [asyncio.run(play.asubmit("awaited", acts)), play.delay("again", ["retry", *acts])]
    results += [play.delay("late", ["retry:0.3", *acts])]
    worker(tenants)
    assert [result.get(PATIENCE) for result in results] == [OURS] * len(results)


def test_a_context_is_kept_by_what_an_operator_does(tenants: Cluster) -> None:
    """A redriven dead letter, also with other arguments, has the headers of its first submission."""
    running = worker(tenants)
    results = [tenants.play.delay(key, ["permanent", "tenant"]) for key in ("same", "other")]
    for result in results:
        tenants.await_state(result, State.FAILED)
    running.stop()
    app_state_of(tenants.app).contexts._known.clear()
    tenants.app.conf[TENANT] = "an operator's"
    same, other = (tenants.job(result) for result in results)
    tenants.ledger.redrive(same.id)
    edited = edit(tenants.app, tenants.ledger, other.id, args=["other", ["tenant"]], kwargs={})
    worker(tenants)
    assert tenants.play.AsyncResult(same.id).get(PATIENCE) == OURS
    assert tenants.play.AsyncResult(edited.job.id).get(PATIENCE) == OURS


def test_the_newest_submission_decides_as_it_does_for_arguments(tenants: Cluster) -> None:
    """A job that a submission replaces has its headers; one that a submission attaches to keeps its own."""
    newest, attached = [tenants.another_app(**{TENANT: name}).tasks for name in ("newest", "attached")]
    results = [tenants.play_replace.apply_async(("key", ["return"]), countdown=3600)]
    results += [newest["play_replace"].apply_async(("key", ["tenant"]), countdown=0)]
    results += [tenants.play.delay("kept", ["tenant"]), attached["play"].delay("kept", ["tenant"])]
    worker(tenants)
    assert [result.get(PATIENCE) for result in results] == ["newest", "newest", OURS, OURS]


def test_given_headers_go_with_the_arguments_that_replace_a_jobs(cluster: Cluster) -> None:
    """Of a job that calls replace, the newest call's own headers count, and one that gives none keeps the last ones."""
    waiting: dict[str, Any] = {"countdown": 3600}
    first = cluster.play_replace.apply_async(("key", ["return"]), headers={"tenant": "first"}, **waiting)
    for acts, headers in ((["return:2"], {"tenant": "second"}), (["return:2"], None)):
        assert cluster.play_replace.apply_async(("key", acts), headers=headers, **waiting).id == first.id
        assert decode(cluster.job(first).payload).context == {"tenant": "second"}
    cluster.ledger.cancel(first.id)


def test_a_canvas_has_the_context_of_whoever_submits_each_part(tenants: Cluster) -> None:
    """A follower's own headers are in its message, with which its chain goes on."""
    play = tenants.play
    play.delay("live", ["hold:gate>return"])
    follower: Any = celery.chain(play.s("live", ["hold:gate>return"]), play.si("next", ["tenant"])).apply_async()
    worker(tenants)
    tenants.open("gate")
    assert tenants.job(follower.parent.id).follows_id is not None
    assert decode(tenants.job(follower.parent.id).payload).context == {"tenant": OURS}
    assert follower.get(PATIENCE) == OTHERS


def test_a_message_of_another_sender_has_its_own_context(tenants: Cluster) -> None:
    """A message that was sent by name has the headers of its sender, and its retries have them."""
    running = worker(tenants)
    sent = tenants.app.send_task("play", ("by name", ["retry", "tenant"]))
    assert tenants.play.AsyncResult(sent.id).get(PATIENCE) == OURS
    running.stop()


# --- what an app adds ------------------------------------------------------------------------------------------------


@pytest.fixture
def plain(cluster: Cluster) -> Cluster:
    """Return a cluster whose app adds nothing by itself."""
    return cluster


def context_of(cluster: Cluster, *args: Any, **options: Any) -> dict[str, Any]:
    """Return the context of a new submission."""
    return dict(decode(submission_of(cluster.play, args=args or ("key", ["return"]), **options).payload).context)


ADDED: dict[str, dict[str, Any]] = {
    "a text": {"tenant": "shop"},
    "several": {"request_id": "r-1", "deep": {"a": [1, None, 2.5]}},
    "in place of the call's": {"given": "by a receiver"},
    "a copy": {"headers": {"sentry-trace": "1-2"}},
    "hidden arguments": {"argsrepr": "(hidden)", "kwargsrepr": "{}!"},
    "another name": {"shadow": "shown"},
}


@for_each("added", ADDED)
def test_headers_of_receivers_are_taken(plain: Cluster, added: str) -> None:
    """Whatever header a receiver adds or changes is the context, and nothing else is."""
    with receiving(lambda headers, **_: headers.update(ADDED[added])):
        assert context_of(plain, headers={"given": "by the call", "own": 1}) == ADDED[added]
        assert context_of(plain, time_limit=5, tags=["a"], stamped_headers=["s"], s=1) == ADDED[added]


def test_a_submission_sends_each_signal_of_publication_once(plain: Cluster) -> None:
    """A receiver sees one publication for each submission, of a duplicate too, and none of a sweep or a redrive."""
    seen: dict[str, list[Any]] = {"before": [], "after": [], "sent": []}
    note_before = lambda headers, **_: seen["before"].append(headers["id"])  # noqa: E731 - a receiver each
    note_after = lambda headers, **_: seen["after"].append(headers["id"])  # noqa: E731
    note_sent = lambda task_id, **_: seen["sent"].append(task_id)  # noqa: E731
    with ExitStack() as stack:
        for note, signal in (
            (note_before, signals.before_task_publish), (note_after, signals.after_task_publish),
            (note_sent, signals.task_sent),
        ):  # fmt: skip
            stack.enter_context(receiving(note, signal))
        results = [plain.play.delay("a", ["return"]), *plain.play.submit_many([("b", ["return"]), ("c", ["return"])])]
        again = plain.play.delay("a", ["return"])
        app_state_of(plain.app).publisher.publish(plain.job(results[0]))
    assert seen["before"] == seen["after"] == seen["sent"]
    assert (seen["before"][:3], len(seen["before"])) == ([result.id for result in results], 4)
    assert again.id == results[0].id


def test_coroutines_that_share_a_batch_have_contexts_of_their_own(plain: Cluster) -> None:
    """Each of many concurrent submissions has the headers of its own context variables."""
    tenant = ContextVar("tenant", default="nobody")

    async def submit(name: str) -> Any:
        tenant.set(name)
        return await plain.play.asubmit(name, ["return"])

    async def submit_all() -> list[Any]:
        return await asyncio.gather(*map(submit, "abc"))

    with receiving(lambda headers, **_: headers.update(tenant=tenant.get())):
        results = asyncio.run(submit_all())
    payloads = [decode(plain.job(result).payload) for result in results]
    assert [each.context["tenant"] for each in payloads] == [each.args[0] for each in payloads] == ["a", "b", "c"]


def test_an_app_that_adds_nothing_pays_nothing(plain: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without receivers and code of its own, an app's messages are composed once, by the submission itself."""
    monkeypatch.setattr(context.Contexts, "take", None)
    assert context_of(plain) == {}
    with receiving(lambda **_: None), pytest.raises(TypeError):
        context_of(plain)


def test_a_check_of_duplicates_publishes_nothing(plain: Cluster) -> None:
    """Asking whether a call would be a duplicate sends no signal."""
    seen: list[Any] = []
    with receiving(lambda **_: seen.append(1)):
        check_duplicate(plain.app, "play", ("key", ["return"]), {})
    assert not seen


def test_headers_that_cannot_be_stored_are_refused(plain: Cluster) -> None:
    """A header that is no JSON raises before anything is stored, and says whose it is."""
    with (
        receiving(lambda headers, **_: headers.update(bad=object())),
        pytest.raises(
            onejob.errors.InvalidPayloadError, match="the headers that the application adds cannot be stored"
        ),
    ):
        plain.play.delay("key", ["return"])
    assert not plain.jobs()


def test_an_app_that_sends_in_a_way_of_its_own_sends_each_message(new_cluster: Callable[..., Cluster]) -> None:
    """Code that takes the place of the publication, such as an outbox, gets the messages of jobs, and no others."""
    cluster = new_cluster()
    sent: list[Any] = []
    cluster.app.send_task = lambda name, *_, task_id, **__: sent.append((name, task_id))
    first, again, second = (cluster.play.delay(key, ["return"]) for key in "aab")
    assert again.id == first.id
    probe, *others = sent
    assert probe[1].startswith(context.PROBE)
    assert others == [("play", first.id), ("play", second.id)]
    del cluster.app.send_task
    cluster.app.send_task("play", task_id=probe[1])  # which the outbox sends later
    worker = cluster.worker()
    worker.await_text("its message was a probe")
    assert cluster.ledger.get_or_none(probe[1]) is None
    for result in (first, second):
        cluster.ledger.cancel(result.id)


def test_what_wraps_the_publication_is_taken(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers by instrumentation of Celery's `send_task`, or of kombu's `publish`, are the submission's, added once."""
    called: list[Any] = []

    def wrap(function: Any, name: str) -> Any:
        @wraps(function)
        def wrapper(*args: Any, headers: Any = None, **options: Any) -> Any:
            called.append(name)
            return function(*args, headers={**(headers or {}), name: len(called)}, **options)

        return wrapper

    monkeypatch.setattr(celery.Celery, "send_task", wrap(celery.Celery.send_task, "by celery"))
    monkeypatch.setattr(Producer, "publish", wrap(Producer.publish, "by kombu"))
    result = cluster.play.delay("key", ["headers"])
    assert called == ["by celery", "by kombu"]
    cluster.worker()
    assert {"by celery": 1, "by kombu": 2}.items() <= result.get(PATIENCE).items()
    assert called == ["by celery", "by kombu"]


# --- headers and identity ---------------------------------------------------------------------------------------------


def take(order: int, note: str = "") -> int:
    """Return the order."""
    return order


def tenant_task(cluster: Cluster) -> Any:
    """Return a task whose calls are equal only for one tenant."""
    define: Any = cluster.app.task
    names = ["order", 'headers["tenant"]']
    return define(base=onejob.Task, name="of tenants", shared=False, unique_on=names)(take)


@for_each("given", [{}, {"headers": {}}, {"headers": {"other": 1}}, {"headers": {"tenant": None}}])
def test_a_missing_header_is_a_value(plain: Cluster, given: dict[str, Any]) -> None:
    """Calls without the header are equal to each other, and to no call with it."""
    task: Any = plain.app.tasks.get("of tenants") or tenant_task(plain)
    without = submission_of(task, args=(1,), **given).identity
    assert without == submission_of(task, args=(1,)).identity
    assert without != submission_of(task, args=(1,), headers={"tenant": "a"}).identity


@for_each("name", ["headers", "headers[]", "headers[tenant]", 'headers["a"]["b"]', 'headers["a"].b', 'args["a"]'])
def test_what_is_no_header_is_refused(name: str) -> None:
    """A name of `unique_on` that is neither an argument nor a header is refused at the definition."""
    with pytest.raises(onejob.errors.ConfigurationError, match="unique_on has"):
        Identifier("of tenants", take, [name])


OF_SINGLE_CALLS = ("traceparent", "sentry-trace", "x-datadog-trace-id", "request_id", "X-Request-ID", "correlation_id")


def test_a_duplicate_with_other_headers_is_named_once(plain: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """A duplicate with another header than its job is a warning, once per task; ids of traces and requests are none."""
    define: Any = plain.app.task
    task = define(base=onejob.Task, name="named once", shared=False)(take)
    ids = [dict.fromkeys(OF_SINGLE_CALLS, number) for number in range(3)]
    task.apply_async((1,), headers={**ids[0], "tenant": "a"})
    task.apply_async((1,), headers={**ids[1], "tenant": "a"})
    assert "is answered by that job" not in caplog.text
    for number in (1, 2):
        task.apply_async((1,), headers={**ids[number], "tenant": "b"})
    assert caplog.text.count('its other headers["tenant"] is not used') == 1
    assert """unique_on=[..., 'headers["tenant"]']""" in caplog.text
