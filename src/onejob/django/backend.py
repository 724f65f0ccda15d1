"""The backend of `django.tasks`: enqueued tasks are jobs of the ledger, which ordinary Celery workers run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from django.core import checks
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils import timezone

from onejob.celery.submission.call import PROMISED
from onejob.django import check_options, conf, framework
from onejob.django.celery_tasks import defined_tasks, headers_of, imported_task, register, result_of, task_of
from onejob.django.framework import signals
from onejob.errors import ConfigurationError
from onejob.jobs.transitions import new_id
from onejob.stores.django_database import alias_of
from onejob.transactions.sessions import transaction_of

DEFAULT_QUEUE = "default"
"""Django's name of the default queue, which is Celery's default queue here."""
HIGHEST = 9
"""The largest number of a priority in Celery."""


class TaskBackend(framework.BaseTaskBackend):  # type: ignore[misc] # Django ships no types
    """The backend of `django.tasks`: `TASKS = {"default": {"BACKEND": "onejob.django.TaskBackend"}}`.

    `QUEUES` is Django's setting; the queue "default" is Celery's default queue. `OPTIONS` are the defaults of the tasks
    that are defined with this backend, by the names of `onejob.django.job_options`.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        check_options(f"TASKS[{alias!r}]['OPTIONS']", self.options)
        self._params = params
        self._known: set[str] = set()
        """The paths of tasks that workers know."""

    def validate_task(self, task: Any) -> None:
        """Raise Django's `InvalidTask` for a task that cannot run; make its Celery task at its definition."""
        super().validate_task(task)
        register(task, self.options)

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Write the job of a task, and return its result.

        In `atomic()` on the database of the ledger, the job is a part of the transaction. In `atomic()` on the default
        database, with a ledger elsewhere, the job is enqueued after the commit; until then `enqueued_at` is None.

        Raises `TypeError` or `ValueError` for arguments that JSON cannot express or the function does not take,
        Django's `InvalidTask` for a task that workers do not know, and the errors of `onejob.Task.apply_async`.
        """
        self.validate_task(task)
        self._check_definition(task.module_path)
        args, kwargs = framework.normalize_json(args), framework.normalize_json(kwargs)
        state = conf.app_state()
        if state.is_eager:
            return framework.ImmediateBackend(self.alias, self._params).enqueue(task, args, kwargs)
        database = connections[state.django_alias or DEFAULT_DB_ALIAS]
        if not database.in_atomic_block:
            return self._submit(task, args, kwargs)
        if state.django_alias is not None:
            return self._submit(task, args, kwargs, session=database)
        result = framework.TaskResult(
            task=task, id=new_id(), status=framework.Status.READY, enqueued_at=None, started_at=None,
            finished_at=None, last_attempted_at=None, args=args, kwargs=kwargs, backend=self.alias, errors=[],
            worker_ids=[],
        )  # fmt: skip
        submit = partial(self._submit, task, args, kwargs, task_id=result.id, **{PROMISED: self._app.thread_oid})
        database.on_commit(submit)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return the result of a job, in its present state. Raises `TaskResultDoesNotExist`."""
        ledger = self._ledger()
        job = ledger.get_or_none(str(result_id))
        task = None if job is None else task_of(job)
        if job is None or task is None:
            raise framework.TaskResultDoesNotExist(str(result_id))
        return result_of(job, task, ledger.history(job.id) if job.attempt > 1 else ())

    def check(self, **_: Any) -> Iterable[Any]:
        """Return the faults of this backend's settings as messages of Django's checks."""
        try:
            store = conf.app_state().settings.store
            alias = alias_of(store)
        except ConfigurationError:
            return []  # reported by `check_settings`
        where = f"TASKS[{self.alias!r}]"
        return [*_check_transactions(where, store, alias), *_check_imports(), *_check_definitions()]

    def _check_definition(self, path: str) -> None:
        """Raise `InvalidTask` for a task that is defined with another kind of backend, and sent here by `using`."""
        if path in self._known:
            return
        defined = imported_task(path)
        if defined is not None and not isinstance(defined.get_backend(), TaskBackend):
            raise framework.InvalidTask(
                f"Workers do not know {path}, which is defined with the backend {defined.backend!r}: "
                f"define it with @task(backend={self.alias!r})."
            )
        self._known.add(path)

    @cached_property
    def _app(self) -> Any:
        return conf.celery_app()

    def _ledger(self) -> Any:
        """Return the ledger; within an open transaction on its database, a ledger that sees the transaction's jobs."""
        state = conf.app_state()
        ledger, alias = state.ledger, state.django_alias
        if alias is None or not connections[alias].in_atomic_block:
            return ledger
        return ledger.in_transaction(transaction_of(connections[alias]), writes=False)

    def _submit(self, task: Any, args: Any, kwargs: Any, **options: Any) -> Any:
        submitted = self._app.tasks[task.module_path].apply_async(args, kwargs, **options, **self._options_of(task))
        admission = submitted._admission  # noqa: SLF001 - the row that was written
        job = admission.follower or admission.job
        result = result_of(job, task_of(job) or task)
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    def _options_of(self, task: Any) -> dict[str, Any]:
        level = round((task.priority + 100) * HIGHEST / 200)  # Django's priorities go from -100 to 100
        options: dict[str, Any] = {"priority": HIGHEST - level if conf.app_state().routing.priority_sign < 0 else level}
        if task.queue_name != DEFAULT_QUEUE:
            options["queue"] = task.queue_name
        if task.run_after is not None:
            aware = timezone.is_aware(task.run_after)
            options["eta"] = task.run_after if aware else timezone.make_aware(task.run_after)
        if headers := headers_of(task):
            options["headers"] = headers
        return options


def _check_transactions(where: str, store: str | None, alias: str | None) -> Iterator[Any]:
    default = DEFAULT_DB_ALIAS
    if store and alias is None:
        msg = f"{where} enqueues after the commit: the ledger is not in a database of Django."
        hint = f"Set CELERY_ONEJOB_STORE = 'django://{default}', so that job and data are one commit."
        yield checks.Warning(msg, hint=hint, id="onejob.W001")
    elif alias is not None and alias != default:
        msg = f"{where}: enqueuing is a part of transactions on {alias!r}, not of those on {default!r}."
        hint = f"Use transaction.atomic(using={alias!r}), or set CELERY_ONEJOB_STORE = 'django://{default}'."
        yield checks.Warning(msg, hint=hint, id="onejob.W002")
    if connections.settings.get(alias or default, {}).get("AUTOCOMMIT") is False:
        msg = f"{where}: AUTOCOMMIT is False, and enqueuing takes part in transaction.atomic() only."
        hint = "Remove AUTOCOMMIT from DATABASES, or enqueue within transaction.atomic()."
        yield checks.Warning(msg, hint=hint, id="onejob.W003")


def _check_imports() -> Iterator[Any]:
    """Warn of tasks that workers may not import, because they are outside of the modules that Celery looks for."""
    app = conf.celery_app()
    imported = {*app.conf.imports, *app.conf.include}
    for path, task in sorted(defined_tasks.items()):
        module = str(task.func.__module__)
        if module.rpartition(".")[2] != "tasks" and module not in imported:
            hint = f"Move it to a module `tasks` of an app, or set CELERY_IMPORTS = [{module!r}]."
            yield checks.Warning(f"Workers may not know the task {path}.", hint=hint, id="onejob.W006")


def _check_definitions() -> Iterator[Any]:
    """Report the tasks whose options are invalid; otherwise their first use would raise the error."""
    try:
        tasks = conf.celery_app().tasks
        for path in sorted(defined_tasks):
            _ = tasks[path]._onejob
    except ConfigurationError as error:
        yield checks.Error(f"The options of a task are invalid: {error}.", id="onejob.E006")
