"""A duplicate check says what the submission that follows it gets, on every store, and stores nothing."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

import onejob
from onejob.celery.app_state import app_state_of
from onejob.celery.operations import DuplicateCheck, check_duplicate
from onejob.errors import InvalidArgumentsError, InvalidPayloadError
from onejob.jobs.model import Job, Outcome, Retention
from onejob.jobs.on_duplicate import CONFLICT_POLICIES
from onejob.jobs.records import Query
from onejob.jobs.submitter import Submitter
from onejob.jobs.transitions import new_nonce
from onejob.ledger.ledger import Ledger
from tests.cases import for_each
from tests.conftest import every_store
from tests.contract.support import StoreAddress, not_none
from tests.http.shop import build

TASKS = {"attach": "shop.invoice", "raise": "shop.strict", "replace": "shop.newest", "run_again": "shop.latest"}
SITUATIONS = ("none", "waits", "expired", "running", "queued next", "completed", "window over")


def latest(document: int, text: str) -> None: ...


@pytest.fixture
def app(store_address: StoreAddress) -> Iterator[Celery]:
    """Return an app with a task for each conflict policy."""
    app = build(store_address.url, onejob_namespace=store_address.namespace)
    task: Any = app.task
    task(name="shop.latest", base=onejob.Task, shared=False, unique_on=["document"], on_duplicate="run_again")(latest)
    yield app
    app_state_of(app).ledger.close()


def call_of(number: int, policy: str, *, other: bool) -> dict[str, Any]:
    """Return the arguments of a call of the task with a conflict policy, or an equal one with other arguments."""
    if policy in {"attach", "raise"}:
        return {"order_id": number} | ({"note": "x"} if other and policy == "attach" else {})
    return {"document": number, "text": "b" if other else "a"}


def claim(ledger: Ledger, job_id: str) -> Job:
    """Start a run."""
    return not_none(ledger.claim(job_id, nonce=new_nonce(), node="node").job)


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
        keep = Retention(identity_for=60.0 if situation == "completed" else -1.0)
        ledger.complete(claim(ledger, job_id), "1", keep=keep)


CASES = [
    (policy, situation, other)
    for policy, situation, other in itertools.product(CONFLICT_POLICIES, SITUATIONS, (False, True))
    if situation != "queued next" or policy == "run_again"
]


@every_store
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
    assert (found.identity, found.fingerprint) == _digests(ledger.get(job_id), found)


def _digests(job: Job, found: DuplicateCheck) -> tuple[str, str]:
    """Return the digests of a job, which has the identity but maybe not the arguments of the call."""
    return job.identity, job.fingerprint if found.outcome.makes_job else found.fingerprint


def test_a_check_is_made_for_its_submitter(app: Celery) -> None:
    """A submitter with own jobs is answered by its own job only; a policy of one call replaces the task's own."""
    with onejob.submitter("one", own_jobs=True):
        mine = app.tasks["shop.invoice"].delay(1)
        assert check_duplicate(app, "shop.invoice", [1], {}).existing is not None
    own = check_duplicate(app, "shop.invoice", [1], {}, submitter=Submitter("one", own_jobs=True))
    assert own.existing is not None
    assert (own.existing.id, '"scope":"one"' in own.hashed_text) == (mine.id, True)
    assert check_duplicate(app, "shop.invoice", [1], {}).outcome is Outcome.ADMITTED
    app.tasks["shop.invoice"].delay(1)
    assert check_duplicate(app, "shop.invoice", [1], {}, on_duplicate="raise").outcome is Outcome.REJECTED


def test_wrong_arguments_raise_as_a_submission(app: Celery) -> None:
    """Wrong or unhashable arguments, and an unknown task, raise the errors of a submission."""
    with pytest.raises(InvalidArgumentsError):
        check_duplicate(app, "shop.invoice", [1, 2, 3], {})
    with pytest.raises(InvalidPayloadError):
        check_duplicate(app, "shop.anything", [float("nan")], {})
    with pytest.raises(InvalidArgumentsError, match=r"no onejob task named 'shop\.nothing'"):
        check_duplicate(app, "shop.nothing", [], {})
