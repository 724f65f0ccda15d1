"""The operations that the HTTP API, the command line and the dashboard share, resubmission, and duplicate checks."""

import base64
import itertools
import logging
import pickle
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from celery import Celery

import onejob
from onejob.celery.app_state import app_state_of
from onejob.celery.messages.payload import decode, loads
from onejob.client.jobs import check_duplicate, edit
from onejob.client.operation import Operation
from onejob.client.operator import Operator
from onejob.errors import (
    DuplicateJobError,
    InvalidArgumentsError,
    JobEndedError,
    JobNeededError,
    JobNotEndedError,
    JobPurgedError,
    KeyReuseMismatchError,
    NoDeadLetterError,
    NotResubmittableError,
    NotWaitingError,
    OneJobError,
    SupersededError,
)
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Cancel, IdentityHold, JobRow, Outcome
from onejob.jobs.on_duplicate import CONFLICT_POLICIES
from onejob.jobs.query import Query
from onejob.jobs.route import Route
from onejob.jobs.submitter import Submitter
from onejob.jobs.transitions import new_nonce
from onejob.ledger.explain import explain
from onejob.ledger.ledger import Ledger, NextRun
from onejob.webhooks.job import WebhookPayload
from tests.api.shop import build
from tests.cases import for_each
from tests.conftest import on_every_store
from tests.stores.support import StoreAddress, not_none

ORIGIN = "over HTTP by ops"
ERROR = '{"type": "E", "message": "", "traceback": ""}'
REFUSALS: dict[Operation, type[OneJobError]] = {
    Operation.CANCEL: JobEndedError, Operation.FORCE_CANCEL: JobEndedError, Operation.RUN_NOW: NotWaitingError,
    Operation.REDRIVE: NoDeadLetterError, Operation.DELETE: JobNotEndedError,
    Operation.FORCE_DELETE: JobNotEndedError,
}  # fmt: skip


def latest(document: int, text: str) -> None: ...


@pytest.fixture
def app(store_address: StoreAddress) -> Iterator[Celery]:
    """Return an app with a task for each conflict policy."""
    app = build(store_address.url, onejob_namespace=store_address.namespace)
    task: Any = app.task
    task(name="shop.latest", base=onejob.Task, shared=False, unique_on=["document"], on_duplicate="run_again")(latest)
    yield app
    app_state_of(app).ledger.close()


@pytest.fixture
def ledger(app: Celery) -> Ledger:
    return app_state_of(app).ledger


def claim(ledger: Ledger, job_id: str) -> JobRow:
    return not_none(ledger.claim(job_id, nonce=new_nonce(), node="node").job)


def brought(app: Celery, ledger: Ledger, state: State, order_id: int = 1, **options: Any) -> JobRow:
    """Submit a job, which is delayed if it waits, and bring it into a state."""
    waits = state in {State.QUEUED, State.CANCELED}
    task: Any = app.tasks["shop.invoice"]
    job_id = task.apply_async((order_id,), countdown=3600 if waits else None, **options).id
    if state is State.CANCELED:
        return ledger.cancel(job_id)
    if waits:
        return ledger.get(job_id)
    job = claim(ledger, job_id)
    match state:
        case State.RETRYING:
            return ledger.retry(job, NextRun.again(job, delay=3600.0, retries=1), error=None, reason="again")
        case State.COMPLETED:
            return ledger.complete(job, "1")
        case State.FAILED:
            return ledger.fail(job, ERROR, "E")
    return job


@for_each("number, operation, state", [(n, *pair) for n, pair in enumerate(itertools.product(Operation, State))])
def test_an_operation_applies_to_its_states(
    app: Celery, ledger: Ledger, number: int, operation: Operation, state: State
) -> None:
    """In its states an operation succeeds, in all others its error is raised, by its check as by itself."""
    job = brought(app, ledger, state, number)
    (light,) = (each for each in ledger.find(Query(light=True)) if each.id == job.id)
    if state not in operation.states:
        with pytest.raises(REFUSALS[operation]):
            operation.check(light)
        with pytest.raises(REFUSALS[operation]):
            Operator(app=app, ledger=ledger, origin=ORIGIN).operate(operation, light)
        assert ledger.get(job.id) == job
        return
    operation.check(light)
    after = Operator(app=app, ledger=ledger, origin=ORIGIN).operate(operation, light)
    assert ledger.get_or_none(job.id) == after
    if after is not None:
        assert ledger.history(job.id)[-1].detail == f"{operation.done} {ORIGIN}"


def ended(ledger: Ledger, job_id: str, *, fails: bool) -> JobRow:
    job = claim(ledger, job_id)
    return ledger.fail(job, ERROR, "E") if fails else ledger.complete(job, "1")


def test_newer_arguments_are_not_overwritten(app: Celery, ledger: Ledger) -> None:
    """A redrive is refused if an equal job with newer arguments has completed or is live, which the error names."""
    save = app.tasks["shop.newest"]
    dead = ended(ledger, save.delay(2, "bad-old").id, fails=True)
    newer = save.delay(2, "good-new").id
    for state in (State.QUEUED, State.COMPLETED):
        with pytest.raises(SupersededError, match=f"job {newer}, which is {state}, .* Drop the dead letter"):
            Operator(app=app, ledger=ledger, origin=ORIGIN).operate(Operation.REDRIVE, dead)
        assert ledger.get(dead.id) == dead
        ended(ledger, newer, fails=False) if state is State.QUEUED else None


@for_each("task, first, later, fails", [
    ("newest", (1, "a"), (1, "b"), True), ("newest", (2, "a"), (2, "a"), False), ("newest", (3, "a"), (4, "b"), False),
    ("invoice", (5, "a"), (5, "b"), False),
])  # fmt: skip
def test_nothing_newer_prevents_no_redrive(
    app: Celery, ledger: Ledger, task: str, first: tuple[Any, ...], later: tuple[Any, ...], fails: bool
) -> None:
    """A dead letter is redriven whose arguments no completed job has superseded, or whose task supersedes none."""
    submit = app.tasks[f"shop.{task}"].delay
    ended(ledger, submit(first[0], "earlier").id, fails=False)
    dead = ended(ledger, submit(*first).id, fails=True)
    ended(ledger, submit(*later).id, fails=fails)
    after = Operator(app=app, ledger=ledger, origin=ORIGIN).operate(Operation.REDRIVE, dead)
    assert (after and after.id, after and after.state) == (dead.id, State.QUEUED)


def test_a_forced_cancellation_needs_no_broker(app: Celery, ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    """A forced cancellation of a run is in the ledger although the broker fails, which is logged."""
    job = brought(app, ledger, State.RUNNING)
    app.conf.update(broker_url="redis://127.0.0.1:1/0", broker_write_url="redis://127.0.0.1:1/0")
    with caplog.at_level(logging.WARNING, "onejob"):
        after = Operator(app=app, ledger=ledger, origin=ORIGIN).operate(Operation.FORCE_CANCEL, job)
    assert after is not None
    assert (after.state, after.cancel) == (State.RUNNING, Cancel.FORCED)
    assert f"job {job.id} is canceled" in caplog.text
    assert Operator(app=None, ledger=ledger, origin=ORIGIN).operate(Operation.FORCE_CANCEL, job) == after


# --- resubmission ---------------------------------------------------------------------------------------------------


def test_a_dead_letter_is_submitted_with_other_arguments(app: Celery, ledger: Ledger) -> None:
    """The new job has the new arguments and their identity, and all else of the dead letter, which is gone."""
    app.conf.onejob_webhook_secrets = [f"whsec_{base64.b64encode(b'k' * 32).decode()}"]
    options: dict[str, Any] = {
        "exchange": "fast", "routing_key": "fast.now", "time_limit": 9, "headers": {"tenant": "t"}, "tags": ["import"],
    }  # fmt: skip
    with onejob.submitter("ann"):
        dead = brought(app, ledger, State.FAILED, priority=3, webhook_url="https://example.org/end", **options)
    admission = edit(app, ledger, dead.id, args=[2], kwargs={"note": "fixed"})
    job, message = ledger.get(admission.job.id), decode(admission.job.payload)
    assert (admission.outcome, message.args, message.kwargs) == (Outcome.ADMITTED, [2], {"note": "fixed"})
    for name in ("task", "route", "priority_rank", "options", "lease", "submitter", "retries", "publisher_task"):
        assert getattr(job, name) == getattr(dead, name), name
    assert job.tags == dead.tags == ("import",)
    assert loads(job.options).items() >= {"time_limit": 9, "headers": {"tenant": "t"}}.items()
    assert (Route.decode(job.route).routing_key, job.submitter, job.run_at) == ("fast.now", "ann", job.created_at)
    assert job.identity != dead.identity
    (webhook,) = ledger.followers(job.id, limit=9)
    assert WebhookPayload.from_job(webhook).url == "https://example.org/end"
    assert ledger.get_or_none(dead.id) is None


def test_an_edit_leaves_a_trail(app: Celery, ledger: Ledger) -> None:
    """The purged dead letter names the new job, the new job names the dead letter, and what is not given stays."""
    dead = brought(app, ledger, State.FAILED)
    new = edit(app, ledger, dead.id, kwargs={"note": "fixed"}).job
    assert (decode(new.payload).args, decode(new.payload).kwargs) == ([1], {"note": "fixed"})
    with pytest.raises(JobPurgedError, match=f"job {new.id} was submitted in its place") as purged:
        explain(ledger, dead.id)
    assert pickle.loads(pickle.dumps(purged.value)).edited_as == new.id  # noqa: S301 - our own bytes
    assert f"edit of job {dead.id}" in explain(ledger, new.id).sentences[1]


def test_an_edit_that_was_interrupted_is_repeated(app: Celery, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash between submission and deletion loses nothing: the same edit returns the same job, another is refused."""
    dead = brought(app, ledger, State.FAILED)
    with monkeypatch.context() as crash:
        crash.setattr(type(ledger), "supersede", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            edit(app, ledger, dead.id, args=[2])
    with pytest.raises(NotResubmittableError, match="was edited before"):
        edit(app, ledger, dead.id, args=[3])
    (first,) = ledger.find(Query(states=frozenset({State.QUEUED})))
    assert edit(app, ledger, dead.id, args=[2]).job.id == first.id
    assert [job.id for job in ledger.find(Query())] == [first.id]


@on_every_store
def test_an_edited_job_answers_the_callers_key(app: Celery, ledger: Ledger) -> None:
    """The caller's identical call is answered by the job that was submitted in place of its dead letter, run or not."""
    dead = brought(app, ledger, State.FAILED, idempotency_key="k", task_id="first")
    invoice: Any = app.tasks["shop.invoice"]
    call = partial(invoice.apply_async, (1,), idempotency_key="k")
    new = ended(ledger, edit(app, ledger, dead.id, args=[2]).job.id, fails=True)
    assert (call().id, call(task_id="first").outcome) == (new.id, Outcome.REPLAYED)
    newer = edit(app, ledger, new.id, args=[3]).job
    assert (call().id, call().outcome, call(task_id="first").id) == (newer.id, Outcome.ATTACHED, newer.id)
    with pytest.raises(KeyReuseMismatchError, match=newer.id):
        invoice.apply_async((3,), idempotency_key="k")
    ended(ledger, newer.id, fails=False)
    with pytest.raises(JobNeededError, match="answers its idempotency key until") as refused:
        ledger.delete(newer.id)
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)  # noqa: S301 - our own bytes
    assert {job.id for job in ledger.find(Query()) if job.follows_id is None} == {newer.id}
    ledger.delete(newer.id, force=True)
    assert call().outcome is Outcome.ADMITTED


@on_every_store
def test_an_edit_may_give_the_key_to_an_equal_job(app: Celery, ledger: Ledger) -> None:
    """If an equal job answers the edit, it answers the caller's key, too, and is kept as long as that."""
    dead = brought(app, ledger, State.FAILED, idempotency_key="k")
    invoice: Any = app.tasks["shop.invoice"]
    live = invoice.delay(2)
    assert edit(app, ledger, dead.id, args=[2]).job.id == live.id
    assert invoice.apply_async((1,), idempotency_key="k").id == live.id
    assert not_none(ledger.get(live.id).key_retained_until) >= not_none(dead.key_retained_until)


def test_a_tenants_dead_letter_stays_its_own(app: Celery, ledger: Ledger) -> None:
    """The new job of a submitter with own jobs is its own, whoever edits, and consumes no quota of it."""
    with onejob.submitter("tenant", own_jobs=True, quota="1/day"):
        dead = brought(app, ledger, State.FAILED)
    admission = edit(app, ledger, dead.id, args=[2], kwargs={})
    with onejob.submitter("tenant", own_jobs=True, quota="1/day"):
        assert app.tasks["shop.invoice"].delay(2).id == admission.job.id
    assert admission.job.submitter == "tenant"


def test_a_dead_letter_stays_if_its_submission_is_refused(app: Celery, ledger: Ledger) -> None:
    """Wrong arguments, a duplicate that is refused, and an unknown task leave the dead letter as it is."""
    dead = brought(app, ledger, State.FAILED)
    with pytest.raises(InvalidArgumentsError):
        edit(app, ledger, dead.id, args=[], kwargs={})
    strict = app.tasks["shop.strict"]
    refused = ended(ledger, strict.delay(1).id, fails=True)
    strict.delay(2)
    with pytest.raises(DuplicateJobError):
        edit(app, ledger, refused.id, args=[2], kwargs={})
    app.tasks.unregister("shop.invoice")
    with pytest.raises(NotResubmittableError, match=r"no onejob task shop\.invoice"):
        edit(app, ledger, dead.id, args=[2], kwargs={})
    assert {each.id for each in ledger.find(Query(states=frozenset({State.FAILED})))} == {dead.id, refused.id}


# --- a duplicate check says what the submission that follows it gets ------------------------------------------------


TASKS = {"attach": "shop.invoice", "raise": "shop.strict", "replace": "shop.newest", "run_again": "shop.latest"}
SITUATIONS = ("none", "waits", "expired", "running", "queued next", "completed", "window over")


def call_of(number: int, policy: str, *, other: bool) -> dict[str, Any]:
    """Return the arguments of a call of the task with a conflict policy, or an equal one with other arguments."""
    if policy in {"attach", "raise"}:
        return {"order_id": number} | ({"note": "x"} if other and policy == "attach" else {})
    return {"document": number, "text": "b" if other else "a"}


def arrange(ledger: Ledger, task: Any, kwargs: dict[str, Any], situation: str) -> None:
    """Let there be the existing job of a situation."""
    if situation == "none":
        return
    job_id = task.apply_async(kwargs=kwargs, expires=-1.0 if situation == "expired" else None).id
    if situation in {"running", "queued next"}:
        claim(ledger, job_id)
    if situation == "queued next":
        task.apply_async(kwargs=kwargs)
    if situation in {"completed", "window over"}:
        hold = IdentityHold(identity_for=60.0 if situation == "completed" else -1.0)
        ledger.complete(claim(ledger, job_id), "1", hold=hold)


CASES = [
    (policy, situation, other)
    for policy, situation, other in itertools.product(CONFLICT_POLICIES, SITUATIONS, (False, True))
    if situation != "queued next" or policy == "run_again"
]


@for_each("policy, situation, other", CASES)
def test_a_check_foretells_the_submission(app: Celery, policy: str, situation: str, *, other: bool) -> None:
    """The outcome and the job of a check are those of the submission that follows it, which finds nothing changed."""
    task: Any = app.tasks[TASKS[policy]]
    ledger = app_state_of(app).ledger
    number = CASES.index((policy, situation, other))
    arrange(ledger, task, call_of(number, policy, other=False), situation)
    before = ledger.find(Query())
    kwargs = call_of(number, policy, other=other)
    found = check_duplicate(app, task.name, (), kwargs)
    assert ledger.find(Query()) == before
    try:
        result = task.apply_async(kwargs=kwargs)
        outcome, job_id = result.outcome, result.id
    except onejob.DuplicateJobError as error:
        outcome, job_id = Outcome.REJECTED, error.job_id
    assert found.outcome is outcome
    assert (found.existing is None) is (outcome is Outcome.ADMITTED)
    if found.existing is not None:
        assert (found.existing.id == job_id) is (outcome is not Outcome.QUEUED_NEXT)
        assert found.existing.id in found.reason
    job = ledger.get(job_id)
    assert found.identity == job.identity
    assert found.fingerprint == job.fingerprint or not outcome.makes_job, "another job may have other arguments"


def test_a_check_is_made_for_its_submitter(app: Celery) -> None:
    """A submitter with own jobs is answered by its own job only; a policy of one call replaces the task's own."""
    with onejob.submitter("one", own_jobs=True):
        mine = app.tasks["shop.invoice"].delay(1)
        assert check_duplicate(app, "shop.invoice", [1], {}).existing is not None
    own = check_duplicate(app, "shop.invoice", [1], {}, submitter=Submitter("one", own_jobs=True))
    assert not_none(own.existing).id == mine.id
    assert '"scope":"one"' in own.hashed_text
    assert check_duplicate(app, "shop.invoice", [1], {}).outcome is Outcome.ADMITTED
    app.tasks["shop.invoice"].delay(1)
    assert check_duplicate(app, "shop.invoice", [1], {}, on_duplicate="raise").outcome is Outcome.REJECTED
