"""The task class: `@app.task(base=onejob.Task)`, and every way of calling the task goes through the ledger."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from celery import Task as _Task
from celery.exceptions import SoftTimeLimitExceeded
from celery.utils import uuid

from onejob.celery import execution
from onejob.celery.message import encode, has_canvas
from onejob.celery.result import AsyncResult as Result
from onejob.celery.running import running_job
from onejob.celery.runtime import runtime_of
from onejob.celery.worker import Node
from onejob.config import check_lease
from onejob.errors import ConfigurationError, DuplicateJobError, LeaseLost, PermanentError, StaleTokenError
from onejob.identity import Identifier
from onejob.job import Outcome, Submission
from onejob.ledger import new_nonce
from onejob.policy import check_seconds
from onejob.sessions import transaction_of
from onejob.window import window_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery import Celery

    from onejob.celery.running import RunningJob
    from onejob.identity import UniqueOn
    from onejob.job import Admission, Job, Keep
    from onejob.window import UniqueFor, Window

REACTIONS = ("attach", "raise")
"""What a submission does that finds an equal job."""
logger = logging.getLogger("onejob")


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
      `DuplicateJobError`, but for a member of a canvas, which always follows that job.
    - `permanent_for`: a tuple of exception classes after which trying again would not help: the job fails for good at
      once, whatever `autoretry_for` says. `onejob.PermanentError` is always one of them.

    Options that cannot work raise `ConfigurationError` when the task is defined.
    """

    abstract = True
    Request = "onejob.celery.request:Request"

    unique_on: ClassVar[UniqueOn] = None
    lease: ClassVar[float | None] = None
    unique_until: ClassVar[str] = "finished"
    unique_for: ClassVar[UniqueFor] = None
    on_duplicate: ClassVar[str] = "attach"
    permanent_for: ClassVar[tuple[type[Exception], ...]] = ()
    _identifier: ClassVar[Identifier | None] = None
    _window: ClassVar[Window | None] = None

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        """Check the options, and see to it that a worker of this app keeps house for the ledger."""
        super().on_bound(app)
        settings = runtime_of(app).settings
        if cls.lease is not None:
            check_seconds(f"lease of task {cls.name}", cls.lease)
            check_lease(cls.lease, settings.heartbeat)
        _check_permanent(cls)
        _check_reaction(cls)
        cls._window = window_of(str(cls.name), cls.unique_until, cls.unique_for)
        if cls._window is not None:
            settings.check_window(str(cls.name), cls._window.longest)
        cls._identifier = cls._identify(app)
        app.steps["worker"].add(Node)

    @property
    def identifier(self) -> Identifier:
        """What makes two calls of this task equal."""
        # Celery calls a task bound before `on_bound` has ended, so another thread can get here first.
        return self._identifier or self._identify(self.app)

    @classmethod
    def _identify(cls, app: Celery) -> Identifier:
        body, bound = _body_of(cls)
        limits = runtime_of(app).settings.limits
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
        **options: Any,
    ) -> Any:
        """Ask for a job, with the options of Celery's `apply_async`; returns an `AsyncResult` of the job that serves.

        With a `session` (of SQLAlchemy, Django, psycopg) on the database where the ledger lives, the job becomes real
        when the session's transaction is committed, together with all else in it, and is published then. A rollback
        leaves no trace of it. Errors are the driver's own then.

        Raises `InvalidArgumentsError` (a TypeError) or `InvalidPayloadError` (a ValueError) before anything is stored,
        and `StoreUnavailableError` when the ledger does not answer. A broker that does not answer is no error: the job
        is in the ledger, and a worker's sweeper publishes it.
        """
        app = self.app
        if app.conf.task_always_eager:
            return super().apply_async(
                args, kwargs, task_id=task_id, link=link, link_error=link_error, shadow=shadow, **options
            )
        args, kwargs = self._plain_arguments(tuple(args or ()), dict(kwargs or {}), options)
        options = self._message_options(args, kwargs, options, link=link, link_error=link_error, shadow=shadow)
        run = running_job()
        if run is not None and run.id == task_id:
            return self._retry_run(run, args, kwargs, options)
        new = self.submission(args, kwargs, options, task_id)
        admission = self._admit(new, producer) if session is None else self._admit_in(session, new)
        if self.on_duplicate == "raise" and admission.outcome is not Outcome.ADMITTED and not new.follows:
            raise DuplicateJobError(admission.job.id, admission.job.state, str(self.name))
        return self._answer(admission, options)

    def submit(self, *args: Any, session: Any = None, **kwargs: Any) -> Result:
        """Ask for a job with these arguments: `delay`, and with a `session` in its transaction, as for `apply_async`.

        A body with a parameter named `session` is submitted by `apply_async`.
        """
        result: Result = self.apply_async(args, kwargs, session=session)
        return result

    def _admit(self, new: Submission, producer: Any) -> Admission:
        admission = execution.submit(runtime_of(self.app).ledger, new)
        if admission.outcome is Outcome.ADMITTED and new.delay <= 0:
            self._publish(admission.job, producer)
        return admission

    def _admit_in(self, session: Any, new: Submission) -> Admission:
        """Submit in the transaction of a session; the job is published after its commit, if need be by a sweeper."""
        transaction = transaction_of(session)
        ledger = runtime_of(self.app).ledger.joined(transaction)
        admission = ledger.submit(new, wake_in=None if transaction.tells_commit else 0.0)
        if admission.outcome is Outcome.ADMITTED and new.delay <= 0 and transaction.tells_commit:
            transaction.after_commit(partial(self._publish, admission.job))
        return admission

    def submission(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
        task_id: str | None,
        door: str = "apply_async",
    ) -> Submission:
        """Return the submission that a call comes to. Raises as `apply_async` does."""
        runtime = runtime_of(self.app)
        canvas = has_canvas(options)
        return Submission(
            id=task_id or uuid(),
            task=str(self.name),
            identity=self.identifier.identity(args, kwargs),
            fingerprint=self.identifier.fingerprint(args, kwargs),
            nonce=new_nonce(),
            payload=encode(str(self.name), args, kwargs, options, runtime.settings.limits),
            lease=self.lease or runtime.settings.lease,
            delay=_seconds_until(options.get("countdown") or options.get("eta")) or 0.0,
            expires_in=_seconds_until(options.get("expires")),
            retries=options.get("retries") or 0,
            follows=canvas or task_id is not None,
            canvas=canvas,
            door=door,
        )

    def keep(self, job: Job) -> Keep | None:
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

    def _publish(self, job: Job, producer: Any = None) -> bool:
        """Send a job's message; a broker that fails delays the job by one lease, and the caller has its id."""
        try:
            runtime_of(self.app).publisher.publish(job, producer)
        except SoftTimeLimitExceeded:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the transport raises, the job is in the ledger
            logger.warning("job %s is in the ledger, the sweeper will publish it: the broker failed: %r", job.id, error)
            return False
        return True

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
        runtime = runtime_of(self.app)
        delay = _seconds_until(options.get("countdown") or options.get("eta")) or 0.0
        try:
            job = runtime.ledger.retry(
                run.job,
                delay=delay,
                payload=encode(str(self.name), args, kwargs, options, runtime.settings.limits),
                retries=options.get("retries") or 0,
                error=execution.error_under_way(),
                reason=execution.retry_reason(delay),
            )
        except StaleTokenError:
            raise LeaseLost(run.id) from None
        run.moved_on = True
        if delay <= 0 and not job.state.final:
            self._publish(job)
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


def _check_reaction(cls: type[Task]) -> None:
    """Raise `ConfigurationError` for a reaction to duplicates that there is not."""
    if cls.on_duplicate not in REACTIONS:
        msg = f"on_duplicate of task {cls.name} is one of {', '.join(map(repr, REACTIONS))}, not {cls.on_duplicate!r}"
        raise ConfigurationError(msg)


def _check_permanent(cls: type[Task]) -> None:
    """Raise `ConfigurationError` unless `permanent_for` is a tuple of exception classes."""
    given = cls.permanent_for
    if not isinstance(given, tuple) or not all(
        isinstance(each, type) and issubclass(each, Exception) for each in given
    ):
        msg = f"permanent_for of task {cls.name} must be a tuple of exception classes, not {given!r}"
        raise ConfigurationError(msg)


def _body_of(cls: type[Task]) -> tuple[Any, bool]:
    """Return the function that a user wrote, and whether it takes the task as its first parameter."""
    decorated = cls.__dict__.get("__wrapped__")
    if decorated is None:
        return cls.run, True
    return (decorated.__func__, False) if isinstance(decorated, staticmethod) else (decorated, True)


def _seconds_until(when: Any) -> float | None:
    """Return the seconds to a Celery `countdown`, `eta` or `expires`: a number, a datetime or ISO 8601 text."""
    if when is None or isinstance(when, int | float):
        return when
    moment = datetime.fromisoformat(when) if isinstance(when, str) else when
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return float((moment - datetime.now(UTC)).total_seconds())
