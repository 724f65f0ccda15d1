"""The task class `onejob.Task`, whose calls all go through the ledger, and its decorator `@onejob.task`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, Literal, Protocol, cast, overload

from celery import Celery, shared_task, states

from onejob.celery.app_state import app_state_of
from onejob.celery.bodies import awaiting, is_hard_limit
from onejob.celery.messages.typed import check_pydantic
from onejob.celery.option_declarations import TASK_OPTIONS, TaskDefaults, check_definition_names, check_task_options
from onejob.celery.results.result import AsyncResult as Result
from onejob.celery.results.result import EagerResult
from onejob.celery.run import current_run_or_none
from onejob.celery.submission.call import (
    Call,
    check_eager,
    check_items,
    checked_arguments,
    is_from_beat,
    parse_item,
    prepare_items,
)
from onejob.celery.submission.options import TaskOptions, resolve_definition
from onejob.celery.submission.plain_tasks import warn_of_plain_tasks
from onejob.celery.submission.replacement import replace_run
from onejob.celery.submission.submit import admit, admit_one, results_of, submit
from onejob.celery.task_class import REQUEST, check_class, run_hooks_in_run
from onejob.celery.worker.execute import execute_message, trace_message
from onejob.celery.worker.run_end import record_retry
from onejob.errors import ConfigurationError
from onejob.jobs.model import Admission
from onejob.jobs.text_limits import TextLimits
from onejob.observability import tracing

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, TypeVar, Unpack

    from onejob.celery.submission.call_types import (
        CallOptions,
        CeleryTask,
        Item,
        Link,
        Signature,
        SubmissionOptions,
        TaskKeywords,
    )

    P = ParamSpec("P", default=...)
    R_co = TypeVar("R_co", covariant=True, default=Any)
    First = TypeVar("First")
    Rest = ParamSpec("Rest")
    Body = ParamSpec("Body")
    R = TypeVar("R")
else:
    from typing import ParamSpec, TypeVar

    from celery import Task as CeleryTask

    P, R_co = ParamSpec("P"), TypeVar("R_co", covariant=True)  # defaults need Python 3.13


WORKER_STEP = "onejob.celery.worker.bootstep:LedgerStep"
"""The name of the step of a worker: only a worker imports it."""


class Task(TaskDefaults, CeleryTask, Generic[P, R_co]):
    """A Celery task whose equal submissions run once.

    Options, as arguments of `@app.task(base=onejob.Task, ...)` or attributes of a subclass:

    - `unique_on`: what makes two calls equal: names of arguments, dotted paths into them, headers of the message
      (`'headers["tenant"]'`), a callable of the arguments, or `[]` for the task's name alone. Default: all arguments.
    - `lease`: seconds a run stays valid without a heartbeat. Default: `app.conf.onejob_lease`, 30.
    - `unique_until`: `"finished"` (default), or `"started"`: then equal jobs are admitted as soon as a run has begun.
    - `unique_for`: how long a success still answers equal submissions with its result: seconds, or the rest of a
      calendar window (`"day@Europe/Berlin"`, week, month). Not longer than `onejob_retention` keeps the job.
    - `on_duplicate`: `"attach"` (default) answers a duplicate with the existing job; `"raise"` raises
      `DuplicateJobError`, except for a member of a canvas, which always follows that job; `"replace"` (debounce) and
      `"run_again"` run the newest arguments: a job that has not started is updated to them, and if a run has started,
      one more is queued after it. `"replace"` also restarts the countdown.
    - `max_wait`: seconds after its first submission until which `"replace"` may delay a job. Default: 60.
    - `permanent_for`: a tuple of exception classes after which the job fails without a retry, whatever `autoretry_for`
      says. `onejob.PermanentError`, and `onejob.errors.InvalidPayloadError` for a value that cannot be stored,
      always are.
    - `webhook_url`: the URL that is notified when a job ends, over HTTPS and signed. Needs `onejob[webhooks]`.
    - `expose`: whether the task can be called through `onejob.api`, over HTTP. Default: False.
    - `typed`: whether dataclasses and pydantic models, where the annotations of the body name them, are arguments and
      results: JSON in the ledger, objects in the code. Default: False; True with `@onejob.task`.
    - `requires_key`: whether a submission without an idempotency key raises `KeyRequiredError`, so that every call can
      be repeated safely. Default: False. A submission with a `task_id`, such as a canvas member, needs no key, and a
      lone link gets one of the job before it.
    - `capture_logging`: whether the records of `logging` that the body makes are a part of the log of its run, as the
      lines of `onejob.current_job().log(...)` are. Default: False.
    - `tags`: words by which people find the jobs, such as `["billing"]`; a call may add more of them.
    - `limits`: how many similar jobs run at once, or how fast they start, as a list of `onejob.Limit(...)`: in total,
      or for each value of an argument. A job without room waits in the ledger.
    - `schedule`: when workers submit it by themselves, with `onejob_beat`: a schedule of Celery (`crontab(hour=3)`), a
      number of seconds, or an entry as in `beat_schedule`, without `task`.

    Options that cannot work raise `ConfigurationError` when the task is defined.
    """

    abstract = True
    Request = REQUEST

    _onejob_foreign_options: ClassVar[frozenset[str]] = frozenset()
    """The options of another library that this class understands, for `onejob.compat`."""
    _onejob_has_own_rule: ClassVar[bool] = False
    """Whether ticks of a schedule are duplicates of one another without any option, as in another library."""

    @classmethod
    def bind(cls, app: Celery) -> Any:
        """Check the class and its options, and install the worker step that renews leases and sweeps the ledger."""
        bound: Any = super().bind(app)  # calls `on_bound`, which is the user's
        cls._onejob_resolve(app)
        run_hooks_in_run(cls, Task)
        app.steps["worker"].add(WORKER_STEP)
        app.on_after_finalize.connect(warn_of_plain_tasks, weak=False, dispatch_uid="onejob.plain_tasks")
        if not (app.backend_cls or app.conf.result_backend):  # Celery's own class needs one
            cast("Any", app).AsyncResult = app.subclass_with_self(Result)
        return bound

    @classmethod
    def _onejob_resolve(cls, app: Celery) -> None:
        """Resolve the options with the settings of the app, as they are now. Raises `ConfigurationError`."""
        cls._onejob = _resolve_options(cls, app)  # type: ignore[method-assign,assignment] # replaces the property

    @property
    def _onejob(self) -> TaskOptions:
        """The resolved options. Binding a class replaces this property by its value."""
        # Celery marks a task as bound before `bind` has returned, so another thread can get here first. So does
        # each call of a task whose options `bind` has refused, since Celery binds a task once.
        return _resolve_options(type(self), self.app)

    # --- submitting -------------------------------------------------------------------------------------------------

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> Result[R_co]:
        """Submit a job with these arguments: `apply_async` without options."""
        return self.apply_async(args, kwargs)

    def apply_async(  # noqa: PLR0917 - Celery's signature
        self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, task_id: str | None = None,
        producer: Any = None, link: Link | None = None, link_error: Link | None = None, shadow: str | None = None,
        session: Any = None, idempotency_key: str | None = None, webhook_url: str | None = None,
        on_duplicate: Literal["attach", "raise"] | None = None, **options: Unpack[CallOptions],
    ) -> Result[R_co]:  # fmt: skip
        """Submit a job, with the options of Celery's `apply_async`; return the `AsyncResult` of the job that answers.

        With a `session` (of SQLAlchemy, Django, psycopg) on the database of the ledger, the job is written in the
        session's transaction, and published after its commit. A rollback leaves no job. Errors are the driver's then.

        `idempotency_key` identifies this submission: repeated with the same key, within `onejob_key_retention` and by
        the same `onejob.submitter`, it gets the same answer, also after the end; with other arguments it raises
        `KeyReuseMismatchError`.

        `webhook_url`: a URL that is notified when the job that answers ends, besides the task's own: over HTTPS,
        signed, at least once. Each duplicate can have its own; equal URLs for one job are one webhook. Raises
        `TooManyWebhooksError` when duplicates have added as many as a job may have.

        `on_duplicate`: `"raise"` or `"attach"` for this submission, instead of what the task sets. A member of a canvas
        is never rejected. `"replace"` and `"run_again"` are refused: only the task says that its jobs may change.

        `tags`: words by which people find the job (`["import", "tenant:7"]`), besides the task's own: at most 10, each
        of 1 to 64 printable characters. They decide nothing. A duplicate that attaches leaves the tags of the job as
        they are; a duplicate whose arguments replace the job's replaces the tags, too.

        Raises `InvalidArgumentsError` (a TypeError) or `InvalidPayloadError` (a ValueError) before anything is stored,
        `QuotaExceededError` likewise, and `StoreUnavailableError` if the ledger does not answer. A message that cannot
        be sent raises what Celery's `apply_async` raises (`QueueNotFound`, kombu's `SerializerNotInstalled` or
        `EncodeError`, the exception of a router or of the transport), and no job is left. An unreachable broker is no
        error: the job is in the ledger, and a worker's sweeper publishes it.
        """
        app_state = app_state_of(self.app)
        given: dict[str, Any] = {**options}
        if link is not None or link_error is not None or shadow is not None:
            named = (("link", link), ("link_error", link_error), ("shadow", shadow))
            given |= {name: value for name, value in named if value is not None}
        if type(args) is not tuple or type(kwargs) is not dict:  # as those of `delay` are
            args, kwargs = checked_arguments(args, kwargs)
        call = Call(
            self, args, kwargs, given, task_id=task_id, key=idempotency_key, on_duplicate=on_duplicate,
            webhook_url=webhook_url,
        )  # fmt: skip
        if app_state.is_eager:
            check_eager(call)
            if (typed := self._onejob.typed) is not None:
                args, kwargs = typed.dump_arguments(args, kwargs)
            ran = super().apply_async(
                args, kwargs, task_id=task_id, link=link, link_error=link_error, shadow=shadow, **options
            )
            return EagerResult(*ran.__reduce_args__())  # type: ignore[return-value] # what both results have is typed
        if task_id is not None and (run := current_run_or_none()) is not None and run.id == task_id:
            return Result(record_retry(run, call, session).id, app=self.app)
        if "headers" in given and is_from_beat(given["headers"]):
            from onejob.celery.beat.beside_beat import find_tick

            call = find_tick(call)
        return submit(app_state, call, session=session, producer=producer)

    @property
    def _onejob_publish(self) -> Callable[..., Any]:
        """The method that publishes a message of this task without a ledger: `apply_async` of the next class."""
        return super().apply_async  # type: ignore[no-any-return]

    _onejob_admit = admit_one
    """The function that admits a call; `onejob.compat` looks at another library's locks before."""

    @overload
    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Result[R_co]: ...
    @overload  # PEP 612 has no keyword beside those of P
    def submit(self, *args: Any, session: Any, **kwargs: Any) -> Result[R_co]: ...
    def submit(self, *args: Any, session: Any = None, **kwargs: Any) -> Result[R_co]:
        """Submit a job with these arguments: `delay`, and with a `session` in its transaction, as for `apply_async`.

        For a body that has a parameter named `session`, use `apply_async`. A type checker cannot check the arguments
        beside a session: `task.s(...).apply_async(session=session)` is the same, and checked.
        """
        return self.apply_async(args, kwargs, session=session)

    def submit_many(
        self, items: Iterable[Item], *, session: Any = None, webhook_url: str | None = None,
        on_duplicate: Literal["attach", "raise"] | None = None, **options: Unpack[CallOptions],
    ) -> list[Result[R_co]]:  # fmt: skip
        """Submit many jobs in a few round trips per thousand; return their results in the order of `items`.

        Each item is a tuple of positional arguments, a dict of keyword arguments, or a signature (`task.s(...)`, whose
        arguments a type checker checks); equal ones are one job. `options` are those of `apply_async` for all of them.
        Each result has the `outcome` of its submission: with `on_duplicate="raise"`, of the task or here, a duplicate
        is `rejected`, and the others are submitted.

        Raises `InvalidArgumentsError` or `InvalidPayloadError`, which name the item, before anything is stored, and
        `PartlySubmittedError`, which has the result or the error of each item, if the store admits only some.
        """
        app_state = app_state_of(self.app)
        call = Call(self, options=options, source="submit_many", on_duplicate=on_duplicate, webhook_url=webhook_url)
        if app_state.is_eager:
            check_items(app_state, call)
            parsed = [parse_item(self, number, item) for number, item in enumerate(items)]
            return [self.apply_async(args, kwargs, **options) for args, kwargs in parsed]
        calls = list(items)
        with tracing.tracer.submit(str(self.name), "submit_many", count=len(calls)) as span:
            prepared = prepare_items(app_state, call, calls)
            answers = admit(app_state, prepared, session=session)
            results = results_of(prepared, answers, session)
            span.record([each for each in answers if isinstance(each, Admission)])
        return results

    # --- submitting in coroutines -----------------------------------------------------------------------------------

    @overload
    async def asubmit(self, *args: P.args, **kwargs: P.kwargs) -> Result[R_co]: ...
    @overload
    async def asubmit(self, *args: Any, session: Any, **kwargs: Any) -> Result[R_co]: ...
    async def asubmit(self, *args: Any, session: Any = None, **kwargs: Any) -> Result[R_co]:
        """Submit a job like `submit`, without blocking the event loop. The session may be an asynchronous session."""
        return await self.aapply_async(args, kwargs, session=session)

    async def aapply_async(
        self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[SubmissionOptions],
    ) -> Result[R_co]:  # fmt: skip
        """Submit a job like `apply_async`, with its options and errors, without blocking the event loop.

        Once it has been awaited, the job is submitted, also if the coroutine is canceled meanwhile.
        """
        from onejob.celery.submission.async_submissions import submit as submit_in_thread

        alone = type(self).apply_async is not Task.apply_async
        result: Result[R_co] = await submit_in_thread(self, args, kwargs, options, alone=alone)
        return result

    async def asubmit_many(self, items: Iterable[Item], **options: Unpack[SubmissionOptions]) -> list[Result[R_co]]:
        """Submit many jobs like `submit_many`, without blocking the event loop."""
        from onejob.celery.submission.async_submissions import submit_many as submit_many_in_thread

        return await submit_many_in_thread(self, items, options)

    # --- submitting after Django's commit ---------------------------------------------------------------------------

    def delay_on_commit(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Submit a job with these arguments after the commit of Django's open transaction; now without a transaction.

        Celery's task class for Django has it. If the process dies right after the commit, nothing is submitted:
        `submit(..., session=connection)` writes the job within the transaction. Raises `ConfigurationError` without
        Django.
        """
        self.apply_async_on_commit(args, kwargs)

    def apply_async_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """Submit a job by `apply_async` after the commit of Django's open transaction, like `delay_on_commit`."""
        needed = "delay_on_commit and apply_async_on_commit need Django"
        try:
            from django.core.exceptions import ImproperlyConfigured
            from django.db import transaction
        except ImportError:
            raise ConfigurationError(f"{needed}: pip install django, or use delay") from None
        try:
            transaction.get_connection()
        except ImproperlyConfigured as error:
            raise ConfigurationError(f"{needed} and its settings, or use delay: {error}") from error
        transaction.on_commit(partial(self.apply_async, *args, **kwargs))

    if TYPE_CHECKING:

        @overload
        def s(self, *args: P.args, **kwargs: P.kwargs) -> Signature[R_co]: ...
        @overload  # in a chain, or as a link: the first argument is the result of the job before
        def s(
            self: Task[Concatenate[First, Rest], R_co], *args: Rest.args, **kwargs: Rest.kwargs
        ) -> Signature[R_co]: ...
        def s(self, *args: Any, **kwargs: Any) -> Signature[R_co]:
            """Return a call to submit later, alone or in a canvas, where the earlier result is its first argument."""

        def si(self, *args: P.args, **kwargs: P.kwargs) -> Signature[R_co]:
            """Return a call to submit later, which gets no earlier result."""

        def signature(self, args: Sequence[Any] = (), kwargs: Any = None, **options: Any) -> Signature[R_co]:
            """Return a call to submit later, with options."""

    def AsyncResult(self, task_id: str, **options: Any) -> Result[R_co]:  # noqa: N802 - Celery's name
        """Return the result of a job by its id."""
        return Result(task_id, app=self.app, **options)

    def retry(self, args: Any = None, kwargs: Any = None, exc: Any = None, **options: Any) -> Any:
        """Retry the job, like Celery's `retry`; after a permanent error the job fails instead."""
        cause: BaseException | None = exc if isinstance(exc, BaseException) else sys.exc_info()[1]
        if cause is not None and (isinstance(cause, self._onejob.permanent) or is_hard_limit(cause)):
            raise cause
        if cause is None or cause is sys.exc_info()[1]:
            return super().retry(args, kwargs, exc, **options)
        try:
            raise cause  # so that the retry is recorded with it
        except type(cause):
            return super().retry(args, kwargs, exc, **options)

    def update_state(
        self, task_id: str | None = None, state: str | None = None, meta: Any = None, **options: Any
    ) -> None:
        """Set a state of your own, with its `meta`: it is stored as the running job's progress, too.

        The result of the job shows them as in Celery: as its `state` and its `info`. Raises as
        `RunningJob.progress`. Celery's own states, and other ids than the running job's, are left to Celery.
        """
        task_id, run = task_id or self.request.id, current_run_or_none()
        if run is not None and run.id == task_id and state is not None and state not in states.ALL_STATES:
            run.report_state(state, meta)
        super().update_state(task_id, state, meta, **options)

    def on_replace(self, sig: Any) -> Any:
        """Let the running job go on as the signature that replaces it, under its id. Raises Celery's `Ignore`."""
        run = current_run_or_none()
        send = super().on_replace
        return send(sig) if run is None or self.request.is_eager else replace_run(self, run, sig, send)

    # --- running ----------------------------------------------------------------------------------------------------

    @property
    def __trace__(self) -> Any:
        """The function that a worker calls for each message: Celery sets its tracer, which runs after the claim."""
        return self.__dict__.get("_onejob_trace")

    @__trace__.setter
    def __trace__(self, trace: Any) -> None:
        is_wrapped = trace is None or getattr(trace, "func", None) is trace_message
        self.__dict__["_onejob_trace"] = trace if is_wrapped else partial(trace_message, self, trace)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the body: through the ledger for a message, directly when called as a function."""
        request: Any = self.request
        # Celery's mark of a request whose body runs; a pool may keep one request for all runs of a thread.
        is_in_body = request._protected and (request.is_eager or current_run_or_none() is not None)  # noqa: SLF001
        if request.called_directly or is_in_body:
            return super().__call__(*args, **kwargs)  # type: ignore[no-any-return]
        within: Any = self._onejob_within
        if within is not None:
            return within(request, args, kwargs)  # type: ignore[no-any-return]
        request._protected = 1  # noqa: SLF001 - a call of the task in the body is a direct one
        return self._onejob_enter(request, self.run, args, kwargs)  # type: ignore[no-any-return]

    _onejob_within: ClassVar[Any] = None
    """The rest of `Task.__call__` within a run, for a task whose class has a `__call__` of its own; else None."""

    def _onejob_enter(self, request: Any, body: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run the body of a task that Celery traces: through the ledger for a message, at once for an eager call."""
        typed = self._onejob.typed
        if self._onejob.may_be_coroutine:
            body = awaiting(self, body)
        if request.is_eager:
            given, named = (args, kwargs) if typed is None else typed.build_arguments(args, kwargs)
            return body(*given, **named)
        if typed is not None:
            body = typed.wrap(body)
        return self._onejob_execute(request, body)

    _onejob_execute = execute_message
    """The function that runs a message; for a task with a `before_start` of its own, one that calls it in the run."""


def _resolve_options(cls: type[Task[..., Any]], app: Celery) -> TaskOptions:
    """Return the options of a task's class. Raises `ConfigurationError` for options that are unknown or cannot work."""
    check_task_options(str(cls.name), cls, Task, cls._onejob_foreign_options)
    check_class(str(cls.name), cls, Task)
    return TaskOptions.of(cls, app)


# --- the decorator ----------------------------------------------------------------------------------------------------


if TYPE_CHECKING:

    class CoroutineTask(Task[P, R_co]):
        """The type of a task whose body is `async def`: `R_co` is what the coroutine returns."""

        async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
            """Call the body as a function, which returns its coroutine."""

    class Decorator(Protocol):
        """The type of a decorator of bodies."""

        @overload
        def __call__(self, body: Callable[Body, Coroutine[Any, Any, R]], /) -> CoroutineTask[Body, R]: ...
        @overload
        def __call__(self, body: Callable[Body, R], /) -> Task[Body, R]: ...

    class BindingDecorator(Protocol):
        """The type of a decorator of bodies whose first parameter is the task."""

        @overload
        def __call__(
            self, body: Callable[Concatenate[First, Body], Coroutine[Any, Any, R]], /
        ) -> CoroutineTask[Body, R]: ...
        @overload
        def __call__(self, body: Callable[Concatenate[First, Body], R], /) -> Task[Body, R]: ...


@overload
def task(app: Celery | None = None, /, *, bind: Literal[True], **options: Unpack[TaskKeywords]) -> BindingDecorator: ...
@overload
def task(
    app: Celery | None = None, /, *, bind: Literal[False] = False, **options: Unpack[TaskKeywords]
) -> Decorator: ...
def task(app: Celery | None = None, /, *, bind: bool = False, **options: Any) -> Callable[[Any], Any]:
    """Define a task of class `onejob.Task`, like `@app.task(base=onejob.Task, ...)`, with types.

    `options` are those of `onejob.Task` and of Celery's `app.task`; `base` may be a subclass of `onejob.Task`. With
    `bind=True` the first parameter of the body is the task. Without an app it is a shared task, as by Celery's
    `shared_task`: each app gets it, for Django, Flask and libraries.

    Returns a decorator, whose result is Celery's own task. Type checkers see a `Task[P, R]`: the parameters and the
    return type of the body. The body may be `async def`: R is what its coroutine returns, and a direct call returns the
    coroutine. Raises `ConfigurationError`, as a task's definition does.
    """
    if app is not None and not isinstance(app, Celery):
        raise ConfigurationError(
            f"onejob.task takes a Celery app, not {app!r:.200}: write @onejob.task(app), or @onejob.task() for any app"
        )
    base = options.pop("base", None) or Task
    if not (isinstance(base, type) and issubclass(base, Task)):
        raise ConfigurationError(f"base of a onejob.task must be a subclass of onejob.Task, not {base!r:.200}")
    if not options.get("pydantic") and not any(
        "typed" in vars(kind) for kind in base.__mro__ if kind not in Task.__mro__
    ):
        options.setdefault("typed", True)
    define: Any = shared_task if app is None else app.task
    decorator: Callable[[Any], Any] = define(base=base, bind=bind, **options)

    def decorate(body: Any) -> Any:
        name = str(options.get("name") or f"{body.__module__}.{body.__name__}")
        check_definition_names(name, options, base)
        given = {option: options.get(option, getattr(base, option)) for option in TASK_OPTIONS}
        # Celery binds the task at its first use, and the settings of its app are not known before.
        resolve_definition(name, SimpleNamespace(**given), body, bound=bind, limits=TextLimits())
        if given["typed"]:
            check_pydantic(name, body)
        return decorator(body)

    return decorate
