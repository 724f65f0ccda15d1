"""`POST /jobs`: from requests to jobs, those that come at the same time together, and what each came to."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias
from urllib.parse import quote

from fastapi import Header, Request
from pydantic import WrapValidator
from starlette.responses import Response

from onejob.api.api_keys import Role
from onejob.api.auth import handled_by, needs
from onejob.api.batching import Batcher, Deferred
from onejob.api.per_loop import PerLoop
from onejob.api.problems import Problem
from onejob.api.quotas import QuotaExceeded, QuotaReservation
from onejob.api.request_models import LONGEST_DELAY, Reader
from onejob.api.response_models import Answer, Checked, view_of
from onejob.celery.app_state import app_state_of
from onejob.celery.submit import (
    check_accepted,
    needs_message,
    prepare_submission,
    publish_all,
    seconds_until,
    submit_each,
)
from onejob.celery.webhooks import check_webhook_url, create_webhooks
from onejob.errors import ConfigurationError, OneJobError, StoreBusyError, StoreError, StoreUnavailableError
from onejob.jobs.model import Admission
from onejob.jobs.submitter import NAME_LIMIT, current_submitter, submitter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery import Celery
    from pydantic import BaseModel

    from onejob.api.auth import Caller
    from onejob.api.request_models import SubmitRequest
    from onejob.celery.task import Task
    from onejob.jobs.model import Submission

SOURCE = "http"
SubmitResult: TypeAlias = "Admission | StoreError | QuotaExceeded"
"""What came of a submission."""
Reply: TypeAlias = "Response | Deferred[Response] | Exception"
"""What a request is told."""
SOON = {"retry-after": "1"}
KeyHeader = Annotated[
    str | None,
    Header(alias="Idempotency-Key", min_length=1, max_length=NAME_LIMIT + 2, description="As `idempotency_key`."),
]


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """One request for a job."""

    asked: SubmitRequest
    key: str | None
    caller: Caller
    submitter: str
    place: str
    """The path below which jobs are found."""


def endpoint(app: Celery, tasks: Mapping[str, Task]) -> Callable[..., Any]:
    """Return the endpoint by which these tasks are asked for."""
    reader, submitting = Reader(tasks), Submitting(app, tasks)
    batchers = PerLoop(lambda: Batcher(submitting.answers))

    async def handle(request: Request) -> Response:
        asked, caller = reader.read(await request.body()), request.state.caller
        who, place = caller.name or current_submitter(), request.url.path.rstrip("/")
        return await batchers.here().ask(PendingRequest(asked, _one_key(asked, request), caller, who, place))

    @needs(Role.SUBMIT)
    @handled_by(handle)
    async def submit(request: Request, asked: Any, key: KeyHeader = None) -> Response:  # noqa: ARG001 - for the document
        """Ask for a job. Equal submissions get one job; `outcome` says what this one came to."""
        return await handle(request)

    # Known at run time only; what a request asks for is read by `handle`, and more strictly.
    submit.__annotations__["asked"] = Annotated[reader.type, WrapValidator(lambda value, _: value)]
    return submit


@dataclass(frozen=True, slots=True)
class Prepared:
    """A submission, and what its caller's quotas say to it."""

    submission: Submission
    spending: QuotaReservation
    over: QuotaExceeded | None


@dataclass(frozen=True, slots=True)
class Submitting:
    """Submits what is asked of one app."""

    app: Celery
    tasks: Mapping[str, Task]
    in_turn: Lock = field(default_factory=Lock)

    def answers(self, all_wanted: Sequence[PendingRequest]) -> list[Reply]:
        """Return the answers to requests that came together, in a few round trips.

        Those of callers with quotas are not answered while others are: the second click on the last that is left would
        be refused, while the first has spent it and made no job of it yet.
        """
        with self.in_turn if any(wanted.caller.quotas for wanted in all_wanted) else nullcontext():
            return self._answers(all_wanted)

    def _answers(self, all_wanted: Sequence[PendingRequest]) -> list[Reply]:
        tried = [self._tried(wanted) for wanted in all_wanted]
        ready = [each for each in tried if isinstance(each, Prepared)]
        came = self._came([each for each in ready if each.over is None], wait_for_locks=False)
        # By now those that they could be answered by are there, if they came with them.
        came |= {each.submission.id: self._came_over(each, each.over) for each in ready if each.over is not None}
        return [
            self._on_canvas_dispatched(wanted, each, came[each.submission.id]) if isinstance(each, Prepared) else each
            for wanted, each in zip(all_wanted, tried, strict=True)
        ]

    def _on_canvas_dispatched(self, wanted: PendingRequest, ready: Prepared, came: SubmitResult) -> Reply:
        """Return what a request is told; one that has to wait for somebody's row is tried again, by itself."""
        if isinstance(came, StoreBusyError):
            return Deferred(partial(self._alone, wanted, ready))
        return self._answer(wanted, ready.submission, came)

    def _alone(self, wanted: PendingRequest, ready: Prepared) -> Response | Exception:
        return self._answer(wanted, ready.submission, self._came([ready], wait_for_locks=True)[ready.submission.id])

    def _tried(self, wanted: PendingRequest) -> Prepared | Response | Exception:
        """Return the submission that a request comes to, or the answer where it comes to none."""
        try:
            with submitter(wanted.submitter) if wanted.submitter else nullcontext():
                submission = submission_of(self.tasks[wanted.asked.task], wanted.asked, wanted.key)
            check_webhook(self.tasks[wanted.asked.task], wanted.asked.webhook_url)
            if wanted.asked.validate_only:
                return _json(
                    Checked(task=submission.task, identity=submission.identity, fingerprint=submission.fingerprint), 200
                )
            return self._ready(wanted, submission)
        except Exception as error:  # noqa: BLE001 - it is raised where the request is answered
            return error

    def _ready(self, wanted: PendingRequest, submission: Submission) -> Prepared:
        spending, over = QuotaReservation(app_state_of(self.app).ledger), None
        try:
            spending.consume(wanted.caller.quotas, wanted.caller.name, submission.identity)
        except QuotaExceeded as error:
            over = error
        return Prepared(submission, spending, over)

    def _came(self, ready: Sequence[Prepared], *, wait_for_locks: bool) -> dict[str, SubmitResult]:
        """Submit; what comes to no new job costs nothing."""
        came = submit_each(self.app, [each.submission for each in ready], wait_for_locks=wait_for_locks)
        for each, admission in zip(ready, came, strict=True):
            if _makes_nothing(admission):
                each.spending.refund()
        return {each.submission.id: admission for each, admission in zip(ready, came, strict=True)}

    def _came_over(self, ready: Prepared, over: QuotaExceeded) -> SubmitResult:
        """Have a job that is there answer a submission that is over the quota, if one can."""
        try:
            admission = app_state_of(self.app).ledger.attach_existing(ready.submission)
        except StoreError as error:
            return error
        if admission is not None and needs_message(ready.submission, admission):
            publish_all(self.app, [admission.job])
        return admission or over

    def _answer(self, wanted: PendingRequest, submission: Submission, came: SubmitResult) -> Response | Exception:
        """Return what a request is told of its submission."""
        if not isinstance(came, Admission):
            return came
        try:
            check_accepted(submission, wanted.key, came)
            create_webhooks(self.tasks[submission.task], app_state_of(self.app).ledger, came, wanted.asked.webhook_url)
            return _shown(came, f"{wanted.place}/{quote(came.job.id, safe='')}")
        except Exception as error:  # noqa: BLE001 - none of those that came together suffers from another
            return error


def _shown(came: Admission, place: str) -> Response:
    answer = Answer(outcome=came.outcome, job=view_of(came.job))
    headers = {"location": place}
    return _json(answer, 202, headers | SOON) if came.outcome.makes_job else _json(answer, 200, headers)


def _makes_nothing(came: SubmitResult) -> bool:
    """Tell whether a submission has made no new job, for sure."""
    if isinstance(came, Admission):
        return not came.outcome.makes_job
    return not isinstance(came, StoreUnavailableError)


def submission_of(task: Task, asked: SubmitRequest, key: str | None) -> Submission:
    """Return the submission that a request comes to. Raises `Problem`, and what `prepare_submission` raises."""
    if asked.countdown is not None and asked.eta is not None:
        raise Problem("invalid-request", "a job is due after a countdown or at an eta, not both")
    if (seconds_until(asked.eta) or 0.0) > LONGEST_DELAY:
        raise Problem("invalid-request", f"the eta is farther away than {LONGEST_DELAY:.0f} s")
    options = {name: getattr(asked, name) for name in ("countdown", "eta", "priority")}
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return prepare_submission(task, asked.kwargs, source=SOURCE, key=key, on_duplicate=asked.on_duplicate, **given)
    except OneJobError:
        raise
    except Exception as error:  # the task's own unique_on, on values that its author did not think of
        detail = f"no identity can be made of these arguments: {type(error).__name__}"
        raise Problem("invalid-arguments", detail) from error


def check_webhook(task: Task, url: str | None) -> None:
    """Raise `Problem` where no webhooks are made, and `InvalidArgumentsError` for a URL that cannot be one."""
    try:
        check_webhook_url(task, url)
    except ConfigurationError:
        detail = "this server makes no webhooks: an operator must install onejob[webhooks] and configure secrets"
        raise Problem("invalid-request", detail) from None


def _one_key(asked: SubmitRequest, request: Request) -> str | None:
    """Return the idempotency key, from wherever it is. Raises `Problem` when there are two."""
    headers = request.headers.getlist("idempotency-key")
    given = {key for key in (asked.idempotency_key, *map(_unquoted, headers)) if key is not None}
    if len(given) > 1 or len(headers) > 1:
        raise Problem("invalid-request", "the request has two idempotency keys, and they differ")
    return next(iter(given), None)


def _unquoted(header: str) -> str:
    """Return the text of a structured field, as the IETF's draft has it, or else what there is."""
    quoted = len(header) > 1 and header[0] == header[-1] == '"'
    return header[1:-1] if quoted else header


def _json(content: BaseModel, status: int, headers: dict[str, str] | None = None) -> Response:
    return Response(content.model_dump_json(), status, headers, "application/json")
