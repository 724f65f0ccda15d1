"""Isolates an app for a test: a ledger in a temporary directory, and a broker in memory that no worker reads."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn

from celery.exceptions import TimeoutError as CeleryTimeoutError
from kombu.transport import memory
from kombu.transport.virtual import BrokerState

from onejob.celery import app_state as app_state_module
from onejob.celery.app_state import AppState
from onejob.celery.current_job import draining
from onejob.celery.options import TaskOptions, tasks_of
from onejob.celery.result import AsyncResult
from onejob.config import NAMES, Settings, build_ledger
from onejob.errors import ConfigurationError, OneJobError
from onejob.stores.django_database import alias_of
from onejob.testing.job_run import app_of
from onejob.testing.jobs import Jobs
from onejob.testing.ledger import RecordingLedger
from onejob.testing.store import Clock, IsolatedStore, empty_ledger
from onejob.testing.worker import InProcessWorker, IsolatedPublisher

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from onejob.testing.job_run import JobRun
    from onejob.testing.matrix import CrashReport

BROKER = "memory://localhost"
BACKEND = "cache+memory://"
ENVIRONMENT = ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL", "CELERY_RESULT_BACKEND")
"""What Celery reads in place of the settings."""
STATE = app_state_module._ATTRIBUTE  # noqa: SLF001 - the one place where an app has its state
_active: dict[int, Jobs] = {}
"""The isolated apps, by their ids."""


@contextmanager
def isolated(app: Any, *, eager: bool | None = None, **settings: Any) -> Iterator[Jobs]:
    """Isolate an app in a block: its jobs are in a ledger in a temporary directory, and its messages in memory.

    Yields the `Jobs` of the test. `settings` are settings of onejob for the block, without their prefix: `lease=5`.
    A `lease` without a `heartbeat` brings its own, a third of it, unless that of the app is shorter.
    All other settings are read anew from `app.conf`, and what the block changes in `app.conf` is undone at its end.
    `eager`: whether a job runs within its submission, as in `Jobs.eager`. Default: `task_always_eager` of the app.

    No block reads or writes the app's own ledger, broker or result backend. The ledger of another app that the block
    opens raises `ConfigurationError`: isolate it, too. So does an isolated app in a block of its own, and a setting
    that onejob does not have.
    """
    app = real_app(app)
    if id(app) in _active:
        msg = f"app {app.main!r} is isolated already, by a fixture or an outer block: use its jobs"
        raise ConfigurationError(msg)
    if unknown := settings.keys() - {*NAMES} | settings.keys() & {"store"}:
        msg = f"isolated takes settings of onejob without their prefix, not {sorted(unknown)}: lease, retention, ..."
        raise ConfigurationError(msg)
    app.finalize()  # binds the tasks with the app's own settings
    is_eager = bool(app.conf.task_always_eager) if eager is None else eager
    django_alias = alias_of(str(app.conf.get("onejob_store") or ""))
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onejob-", ignore_cleanup_errors=True)))
        shutil.copyfile(empty_ledger(), directory / "ledger.db")
        changes = _isolating_settings(app, directory) | _prefixed(_with_heartbeat(app, settings))
        stack.enter_context(_changed_settings(app, changes))
        stack.enter_context(_broker_in_memory(app))
        jobs = stack.enter_context(_ledger_in(app, directory / "ledger.db", django_alias))
        stack.enter_context(_refused_ledgers())
        stack.enter_context(_refused_waits(app))
        jobs.is_eager = is_eager
        yield jobs
        jobs.check_faults()


def find_jobs(app: Any) -> Jobs | None:
    """Return the jobs of an isolated app; None if it is not isolated."""
    return _active.get(id(real_app(app)))


def run_job(
    task: Any, *args: Any, attempt: int | None = None, retries: int = 0, steps: Mapping[str, Any] | None = None,
    canceled: bool = False, **kwargs: Any,
) -> JobRun:  # fmt: skip
    """Run the body of a task once, as `Jobs.run_job` does, and isolate its app for that unless it is isolated."""
    options: dict[str, Any] = {"attempt": attempt, "retries": retries, "steps": steps, "canceled": canceled}
    app = app_of(task)
    jobs = find_jobs(app)
    if jobs is not None:
        return jobs.run_job(task, *args, **options, **kwargs)
    with isolated(app) as own:
        return own.run_job(task, *args, **options, **kwargs)


def crash_matrix(task: Any, *args: Any, **options: Any) -> CrashReport:
    """Run a task under every fault, as `Jobs.crash_matrix` does, and isolate its app for that unless it is isolated."""
    app = app_of(task)
    jobs = find_jobs(app)
    if jobs is not None:
        return jobs.crash_matrix(task, *args, **options)
    with isolated(app) as own:
        return own.crash_matrix(task, *args, **options)


def real_app(app: Any) -> Any:
    """Return an app in place of a proxy of it, as `celery.current_app` is one."""
    return app._get_current_object() if hasattr(app, "_get_current_object") else app  # noqa: SLF001 - of Celery's proxies


def reset(app: Any) -> None:
    """Close the ledger and the connections of an app: its settings are read anew at its next use.

    For tests that change `app.conf.onejob_store` or another setting without `isolated`.
    """
    state: AppState | None = app.__dict__.pop(STATE, None)
    if state is not None:
        state.close()
        if "publisher" in state.__dict__:
            state.publisher.close()


def _isolating_settings(app: Any, directory: Path) -> dict[str, Any]:
    urls = dict.fromkeys(("broker_url", "broker_read_url", "broker_write_url"), BROKER)
    has_backend = bool(app.backend_cls or app.conf.result_backend)
    return {
        **urls,
        "broker_transport_options": {},
        "task_always_eager": False,
        "onejob_store": f"sqlite:///{directory / 'ledger.db'}",
        "onejob_metrics_interval": 0,
        "onejob_share_old_locks": False,
        **({"result_backend": BACKEND, "result_backend_transport_options": {}} if has_backend else {}),
    }


def _prefixed(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {f"onejob_{name}": value for name, value in settings.items()}


def _with_heartbeat(app: Any, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return settings with the heartbeat that a given lease needs."""
    lease, own = settings.get("lease"), app.conf.get("onejob_heartbeat", Settings().heartbeat)
    if "heartbeat" in settings or not isinstance(lease, (int, float)) or not isinstance(own, (int, float)):
        return settings
    return {**settings, "heartbeat": min(own, lease / 3)}


@contextmanager
def _changed_settings(app: Any, settings: Mapping[str, Any]) -> Iterator[None]:
    """Change settings of an app; afterwards, undo all changes of its settings since."""
    environment = {name: os.environ.pop(name) for name in ENVIRONMENT if name in os.environ}
    changes = app.conf.changes
    before = dict(changes)
    try:
        app.conf.update(settings)
        yield
    finally:
        changes.clear()
        changes.update(before)
        os.environ.update(environment)


@contextmanager
def _broker_in_memory(app: Any) -> Iterator[None]:
    """Have an app connect anew, to a broker and a result backend of its own in memory."""
    tasks = [*app.tasks.values()]
    saved = {name: app.__dict__.get(name) for name in ("_pool", "control", "backend_cls", "_backend_cache")}
    backend, local_backend = app._backend_cache, getattr(app._local, "backend", None)  # noqa: SLF001 - restored below
    traces = {task: task.__trace__ for task in tasks}
    producers = app.amqp._producer_pool  # noqa: SLF001 - restored below
    queues, state = memory.Channel.queues, memory.Transport.global_state
    was_draining = draining.is_set()
    try:
        memory.Channel.queues, memory.Transport.global_state = {}, BrokerState()
        _connect_anew(app, tasks)
        draining.clear()
        yield
    finally:
        _connect_anew(app, tasks)
        memory.Channel.queues, memory.Transport.global_state = queues, state
        app._pool, app.amqp._producer_pool = saved["_pool"], producers  # noqa: SLF001 - restored
        app._backend_cache, app._local.backend = backend, local_backend  # noqa: SLF001 - restored
        app.backend_cls = saved["backend_cls"]
        app.__dict__.update({"control": saved["control"]} if saved["control"] is not None else {})
        for task, trace in traces.items():
            task.__trace__ = trace
        if was_draining:
            draining.set()


def _connect_anew(app: Any, tasks: list[Any]) -> None:
    """Forget the connections of an app, and what Celery has built for its tasks with its result backend."""
    app._pool = app.amqp._producer_pool = None  # noqa: SLF001 - Celery has no public name for it
    app._backend_cache = app._local.backend = None  # noqa: SLF001 - as before
    app.backend_cls = None  # given to the app's constructor; the setting stands in for it
    app.__dict__.pop("control", None)
    for task in tasks:
        task.__trace__ = None


@contextmanager
def _ledger_in(app: Any, path: Path, django_alias: str | None) -> Iterator[Jobs]:
    """Give an app a new state, with the ledger in a file, in transactions on `django_alias` as the app's own is."""
    before = app.__dict__.get(STATE)
    clock, state = Clock(), AppState(app)
    store = IsolatedStore(path, clock)
    ledger = build_ledger(state.settings, store=store, kind=RecordingLedger)
    assert isinstance(ledger, RecordingLedger)  # noqa: S101 - for the type checker
    publisher = IsolatedPublisher(app, state.settings.publish_timeout, state.routing, lambda: ledger)
    state.use(ledger, publisher, django_alias)
    worker = InProcessWorker(app, state, ledger, store, clock)
    jobs = _active[id(app)] = Jobs(worker)
    publisher.after_publish = jobs.run_if_eager
    app.__dict__[STATE] = state
    classes: list[Any] = [type(task) for task in tasks_of(app).values()]
    options = [each._onejob for each in classes]
    try:
        # Settings that nobody has read yet must not be read now: they would be those of this block.
        known = before.settings if before is not None and "settings" in before.__dict__ else None
        if known is None or _defaults(known) != _defaults(state.settings):
            for each in classes:
                each._onejob = TaskOptions.of(each, app)
        yield jobs
    finally:
        for each, own in zip(classes, options, strict=True):
            each._onejob = own
        del _active[id(app)]
        app.__dict__.pop(STATE)
        if before is not None:
            app.__dict__[STATE] = before
        store.refuse = None
        publisher.close()
        ledger.close()


def _defaults(settings: Settings) -> tuple[Any, ...]:
    """Return the settings that tasks have as defaults of their options."""
    return settings.lease, settings.heartbeat, settings.payload_limit, settings.depth_limit, dict(settings.retention)


@contextmanager
def _refused_ledgers() -> Iterator[None]:
    """Refuse to open the ledger of any app that is not isolated."""
    module: Any = app_state_module
    original = module.build_ledger
    module.build_ledger = _refuse
    try:
        yield
    finally:
        module.build_ledger = original


@contextmanager
def _refused_waits(app: Any) -> Iterator[None]:
    """Refuse to wait without a timeout, in the thread of the test, for the end of a job that this thread must run."""
    result_class: Any = AsyncResult
    original, thread = result_class.get, get_ident()

    @wraps(original)
    def get(result: Any, timeout: float | None = None, *args: Any, **options: Any) -> Any:
        if timeout is not None or get_ident() != thread or real_app(result.app) is not app:
            return original(result, timeout, *args, **options)
        try:
            return original(result, 0, *args, **options)
        except CeleryTimeoutError:
            if result.ready():
                raise  # which is the error of the job
            msg = (
                f"job {result.id} is {result.state}, and get() would wait for ever: no worker runs in a test. Call "
                "jobs.run_all() before, or give a timeout, if another thread runs the job"
            )
            raise OneJobError(msg) from None

    result_class.get = result_class.wait = get
    try:
        yield
    finally:
        result_class.get = result_class.wait = original


def _refuse(settings: Settings, _is_known_task: Any = None) -> NoReturn:
    msg = (
        f"a test has isolated another app, and would now open the ledger at {settings.store.rpartition('@')[2]!r} of "
        "this one: isolate this app, too, with onejob.testing.isolated(app)"
    )
    raise ConfigurationError(msg)
