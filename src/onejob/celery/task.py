"""The task class: `@app.task(base=onejob.Task)`, and every way of calling the task goes through the ledger."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, ClassVar

from celery import Task as _Task

from onejob.celery.app_state import app_state_of
from onejob.celery.current_job import running_job
from onejob.celery.message import encode, encode_options
from onejob.celery.options import body_of, check_exposed, check_webhook, checked_options
from onejob.celery.result import AsyncResult as Result
from onejob.celery.submit import (
    admit,
    admit_in,
    admit_many,
    arguments_of,
    check_accepted,
    check_common,
    check_key,
    delay_of,
    publish,
    submission_of,
    with_conflict_policy,
)
from onejob.celery.webhooks import check_webhook_url
from onejob.celery.worker import execute as execution
from onejob.celery.worker.bootstep import LedgerStep
from onejob.errors import InvalidArgumentsError, InvalidPayloadError, LeaseLost, PermanentError, StaleTokenError
from onejob.uniqueness.identity import Identifier
from onejob.uniqueness.on_duplicate import ConflictPolicy, conflict_policy_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from celery import Celery

    from onejob.celery.current_job import RunningJob
    from onejob.jobs.model import Admission, Job, Retention, Submission
    from onejob.uniqueness.identity import UniqueOn
    from onejob.uniqueness.window import UniqueFor, Window

CeleryTask: Any = _Task  # the published types know a part of the class only


class Task(CeleryTask):  # type: ignore[misc]
    """A Celery task whose equal submissions run once.

    Options, as arguments of `@app.task(base=onejob.Task, ...)` or attributes of a subclass:

    - `unique_on`: what makes two calls equal: names of arguments, dotted paths into them, a callable of the arguments,
      or `[]` for the task's name alone. Default: all arguments.
    - `lease`: seconds a run stays valid without a sign of life. Default: `app.conf.onejob_lease`, 30.
    - `unique_until`: `"finished"` (default), or `"started"`: then equal jobs are admitted as soon as a run has begun.
    - `unique_for`: how long a success still answers equal submissions with its result: seconds, or the rest of a
      calendar window (`"day@Europe/Berlin"`, week, month). Not longer than `onejob_retention` keeps the job.
    - `on_duplicate`: `"attach"` (default) answers a duplicate with the job that is there; `"raise"` raises
      `DuplicateJobError`, but for a member of a canvas, which always follows that job; `"replace"` lets the newest
      arguments win until a run begins, and a countdown begin anew (debounce); `"run_again"` queues one more run with
      the latest arguments when a run has begun.
    - `max_wait`: seconds after its first submission until which `"replace"` may put a job off. Default: 60.
    - `permanent_for`: a tuple of exception classes after which trying again would not help: the job fails for good at
      once, whatever `autoretry_for` says. `onejob.PermanentError` is always one of them.
    - `webhook_url`: where the end of each job is told, over HTTPS and signed. Needs `onejob[webhooks]`.
    - `expose`: whether the task can be called through `onejob.api`, over HTTP. Default: False.
    - `requires_key`: whether a submission without an idempotency key is refused with `KeyRequiredError`, so that every
      call can be repeated safely. Default: False. One whose id is given (`task_id`), as that of a canvas member is,
      needs no key: the id names it.

    Options that cannot work raise `ConfigurationError` when the task is defined.
    """

    abstract = True
    Request = "onejob.celery.worker.request:Request"

    unique_on: ClassVar[UniqueOn] = None
    lease: ClassVar[float | None] = None
    unique_until: ClassVar[str] = "finished"
    unique_for: ClassVar[UniqueFor] = None
    on_duplicate: ClassVar[str] = "attach"
    max_wait: ClassVar[float | None] = None
    permanent_for: ClassVar[tuple[type[Exception], ...]] = ()
    webhook_url: ClassVar[str | None] = None
    expose: ClassVar[bool] = False
    requires_key: ClassVar[bool] = False
    _identifier: ClassVar[Identifier | None] = None
    _window: ClassVar[Window | None] = None
    conflict_policy: ClassVar[ConflictPolicy] = ConflictPolicy()
    """What `on_duplicate` and `max_wait` come to."""

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        """Check the options, and see to it that a worker of this app keeps house for the ledger."""
        super().on_bound(app)
        cls.conflict_policy, cls._window = checked_options(cls, app_state_of(app).settings)
        cls._identifier = cls._identify(app)
        check_exposed(cls, cls._identifier)
        check_webhook(cls, app_state_of(app).webhooks)
        app.steps["worker"].add(LedgerStep)

    @property
    def identifier(self) -> Identifier:
        """What makes two calls of this task equal."""
        # Celery calls a task bound before `on_bound` has ended, so another thread can get here first.
        return self._identifier or self._identify(self.app)

    @classmethod
    def _identify(cls, app: Celery) -> Identifier:
        body, bound = body_of(cls)
        limits = app_state_of(app).settings.limits
        return Identifier(str(cls.name), body, cls.unique_on, bound=bound, limits=limits)

    # --- submitting -------------------------------------------------------------------------------------------------

    def delay(self, *args: Any, **kwargs: Any) -> Result:
        """Ask for a job with these arguments: `apply_async` without options."""
        result: Result = self.apply_async(args, kwargs)
        return result

    def apply_async(  # noqa: PLR0917 - Celery's signature
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        session: Any = None,
        idempotency_key: str | None = None,
        webhook_url: str | None = None,
        **options: Any,
    ) -> Any:
        """Ask for a job, with the options of Celery's `apply_async`; returns an `AsyncResult` of the job that serves.

        With a `session` (of SQLAlchemy, Django, psycopg) on the database where the ledger lives, the job becomes real
        when the session's transaction is committed, together with all else in it, and is published then. A rollback
        leaves no trace of it. Errors are the driver's own then.

        `idempotency_key` names this submission: whoever submits with it again, within `onejob_key_retention` and as the
        same `onejob.submitter`, gets this one's answer, also when its job has ended. With other arguments that is a
        `KeyReuseMismatchError`.

        `webhook_url`: where the end of the job that answers is told, besides the task's own: over HTTPS, signed, at
        least once. Each submitter of a duplicate can have its own; equal URLs for one job are one webhook.

        Raises `InvalidArgumentsError` (a TypeError) or `InvalidPayloadError` (a ValueError) before anything is stored,
        and `StoreUnavailableError` when the ledger does not answer. A broker that does not answer is no error: the job
        is in the ledger, and a worker's sweeper publishes it.
        """
        app = self.app
        if app.conf.task_always_eager:
            check_key(self, idempotency_key, task_id)
            return super().apply_async(
                args, kwargs, task_id=task_id, link=link, link_error=link_error, shadow=shadow, **options
            )
        args, kwargs = self._plain_arguments(tuple(args or ()), dict(kwargs or {}), options)
        options = self._message_options(args, kwargs, options, link=link, link_error=link_error, shadow=shadow)
        run = running_job()
        if run is not None and run.id == task_id:
            return self._retry_run(run, args, kwargs, options)
        check_key(self, idempotency_key, task_id)
        check_webhook_url(self, webhook_url)
        submission = submission_of(self, args, kwargs, options, task_id=task_id, key=idempotency_key)
        if session is None:
            admission = admit(self, submission, producer, webhook_url=webhook_url)
        else:
            (admission,) = admit_in(self, session, [submission], webhook_url=webhook_url)
        check_accepted(submission, idempotency_key, admission)
        return self._answer(admission, options)

    def submit(self, *args: Any, session: Any = None, **kwargs: Any) -> Result:
        """Ask for a job with these arguments: `delay`, and with a `session` in its transaction, as for `apply_async`.

        A body with a parameter named `session` is submitted by `apply_async`.
        """
        result: Result = self.apply_async(args, kwargs, session=session)
        return result

    def submit_many(
        self, items: Iterable[Any], *, session: Any = None, webhook_url: str | None = None, **options: Any
    ) -> list[Result]:
        """Ask for many jobs in a few round trips per thousand; returns their results in the order of `items`.

        Each item is a tuple of positional arguments or a dict of keyword arguments; equal ones are one job. `options`
        are those of `apply_async` for all of them. What a submission came to is the `outcome` of its result: one that
        the task's `on_duplicate="raise"` refuses is `rejected`, and the others go on.

        Raises `InvalidArgumentsError` or `InvalidPayloadError`, which tell the item, before anything is stored.
        """
        check_common(self, options)
        check_webhook_url(self, webhook_url)
        calls = [arguments_of(number, item) for number, item in enumerate(items)]
        if self.app.conf.task_always_eager:
            return [self.apply_async(args, kwargs, **options) for args, kwargs in calls]
        each = [self._call(number, args, kwargs, options) for number, (args, kwargs) in enumerate(calls)]
        if session is None:
            admissions = admit_many(self, each, webhook_url=webhook_url)
        else:
            admissions = admit_in(self, session, each, webhook_url=webhook_url)
        return [self._answer(admission, options) for admission in admissions]

    def _call(self, number: int, args: Any, kwargs: Any, options: Mapping[str, Any]) -> Submission:
        """Return the submission of one item of many."""
        args, kwargs = self._plain_arguments(args, kwargs, options)
        merged = self._message_options(args, kwargs, dict(options))
        try:
            return submission_of(self, args, kwargs, merged, source="submit_many")
        except (InvalidArgumentsError, InvalidPayloadError) as error:
            msg = f"item {number}: {error}"
            raise type(error)(msg) from error

    def submission(
        self,
        kwargs: Mapping[str, Any],
        *,
        source: str,
        idempotency_key: str | None = None,
        on_duplicate: str | None = None,
        **options: Any,
    ) -> Submission:
        """Return the submission that a call comes to, for a door of its own: nothing is asked of the ledger yet.

        `on_duplicate` stands for the task's own, for this call. Raises as `apply_async` does.
        """
        check_key(self, idempotency_key)
        merged = self._message_options((), dict(kwargs), options)
        submission = submission_of(self, (), kwargs, merged, key=idempotency_key, source=source)
        if on_duplicate is None:
            return submission
        conflict_policy = conflict_policy_of(str(self.name), on_duplicate, None, self.unique_until, self.unique_for)
        return with_conflict_policy(submission, conflict_policy)

    def keep(self, job: Job) -> Retention | None:
        """Return for how long a job holds its identity after its success."""
        return None if self._window is None else self._window.keep(job.created_at)

    def AsyncResult(self, task_id: str, **options: Any) -> Result:  # noqa: N802 - Celery's name
        """Return the result of a job by its id."""
        return Result(task_id, app=self.app, **options)

    def _plain_arguments(self, args: Any, kwargs: Any, options: Mapping[str, Any]) -> tuple[Any, Any]:
        """Turn the models of a `pydantic=True` task into what the message carries, as Celery does."""
        dump = getattr(self, "_dump_pydantic_arguments", None)
        return dump(args, kwargs) if dump is not None and options.get("serializer") != "pickle" else (args, kwargs)

    def _message_options(self, args: Any, kwargs: Any, options: dict[str, Any], **own: Any) -> dict[str, Any]:
        """Return all options of the message, so that anybody may publish it later as if from here."""
        merged = {**self._get_exec_options(), **options, **{k: v for k, v in own.items() if v is not None}}
        merged.setdefault("ignore_result", self.ignore_result)
        merged["shadow"] = merged.get("shadow") or self.shadow_name(args, kwargs, merged)
        parent = self.app.current_worker_task
        if parent is not None and parent.request is not None:
            merged["root_id"] = merged.get("root_id") or parent.request.root_id or parent.request.id
            merged["parent_id"] = merged.get("parent_id") or parent.request.id
        return merged

    def _answer(self, admission: Admission, options: Mapping[str, Any]) -> Result:
        app = self.app
        result = Result.of(admission, app)
        result.ignored = bool(options.get("ignore_result"))
        parent = app.current_worker_task
        if parent is not None and options.get("add_to_parent", True):
            parent.add_trail(result)
        return result

    def _retry_run(self, run: RunningJob, args: Any, kwargs: Any, options: dict[str, Any]) -> Result:
        """Turn the publication that `Task.retry` asks for into the job's own transition."""
        app_state = app_state_of(self.app)
        delay = delay_of(options)
        try:
            job = app_state.ledger.retry(
                run.job,
                delay=delay,
                payload=encode(str(self.name), args, kwargs, app_state.settings.limits),
                options=encode_options(options, app_state.settings.limits),
                retries=options.get("retries") or 0,
                error=execution.error_under_way(),
                reason=execution.retry_reason(delay),
            )
        except StaleTokenError:
            raise LeaseLost(run.id) from None
        run.moved_on = True
        if delay <= 0 and not job.state.final:
            publish(self, job)
        return Result(job.id, app=self.app)

    def retry(self, args: Any = None, kwargs: Any = None, exc: Any = None, **options: Any) -> Any:
        """Have the job run again, as Celery's `retry` does; after a permanent error the job fails for good instead."""
        cause: BaseException | None = exc if isinstance(exc, BaseException) else sys.exc_info()[1]
        if cause is not None and isinstance(cause, (PermanentError, *self.permanent_for)):
            raise cause
        return super().retry(args, kwargs, exc, **options)

    def on_replace(self, sig: Any) -> Any:
        """Note that the running job gives its id to the signature that replaces it."""
        run = running_job()
        if run is not None:
            run.replaced = True
        return super().on_replace(sig)

    # --- running ----------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the body: through the ledger when a worker delivers a message, plainly when called like a function."""
        request = self.request
        run = running_job()
        if request.called_directly or request.is_eager or (run is not None and run.id == request.id):
            return super().__call__(*args, **kwargs)
        return execution.deliver(self, request, super().__call__)
