"""Isolates an app for a test: a ledger in a temporary directory, and a broker in memory that no worker reads."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack, contextmanager, nullcontext
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
from onejob.testing.jobs import Jobs, app_of
from onejob.testing.ledger import RecordingLedger
from onejob.testing.store import Clock, IsolatedStore, empty_ledger
from onejob.testing.worker import InProcessWorker, IsolatedPublisher

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from onejob.testing.fault import CrashReport
    from onejob.testing.jobs import JobRun

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
        given = {f"onejob_{name}": value for name, value in _with_heartbeat(app, settings).items()}
        stack.enter_context(_changed_settings(app, _isolating_settings(app, directory) | given))
        stack.enter_context(_broker_in_memory(app))
        jobs = stack.enter_context(_ledger_in(app, directory / "ledger.db", django_alias))
        stack.enter_context(replaced(app_state_module, "build_ledger", _refuse))
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
    with _isolated_for(task) as jobs:
        return jobs.run_job(task, *args, **options, **kwargs)


def crash_matrix(task: Any, *args: Any, **options: Any) -> CrashReport:
    """Run a task under every fault, as `Jobs.crash_matrix` does, and isolate its app for that unless it is isolated."""
    with _isolated_for(task) as jobs:
        return jobs.crash_matrix(task, *args, **options)


@contextmanager
def _isolated_for(task: Any) -> Iterator[Jobs]:
    """Yield the jobs of the app of a task, which is isolated for this block unless it is isolated already."""
    app = app_of(task)
    with nullcontext(found) if (found := find_jobs(app)) is not None else isolated(app) as jobs:
        yield jobs


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
    """Have an app connect anew, to a broker and a result backend of its own in memory.

    Celery has no public way to do so. The private names are those of Celery 5.4 to 5.7 and kombu 5.4 to 5.6: the pools
    of connections and producers, the result backend of the app and of this thread, and what each task has built with
    it; `backend_cls` is what the constructor of the app was given, and the setting stands in for it.
    """
    anew: list[tuple[Any, str, Any]] = [
        (memory.Channel, "queues", {}),
        (memory.Transport, "global_state", BrokerState()),
        *((app, name, None) for name in ("_pool", "_backend_cache", "backend_cls")),
        (app.amqp, "_producer_pool", None),
        (app._local, "backend", None),  # noqa: SLF001 - see above
        *((task, "__trace__", None) for task in [*app.tasks.values()]),
    ]
    control, was_draining = app.__dict__.pop("control", None), draining.is_set()
    with ExitStack() as stack:
        for owner, name, value in anew:
            stack.enter_context(replaced(owner, name, value))
        draining.clear()
        try:
            yield
        finally:
            app.__dict__.pop("control", None)
            app.__dict__.update({"control": control} if control is not None else {})
            if was_draining:
                draining.set()


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
    jobs = _active[id(app)] = Jobs(InProcessWorker(app, state, ledger, store, clock))
    publisher.after_publish = jobs.run_if_eager
    classes: list[Any] = [type(task) for task in tasks_of(app).values()]
    # Settings that nobody has read yet must not be read now: they would be those of this block.
    known = before.settings if before is not None and "settings" in before.__dict__ else None
    with replaced_state(app, state), ExitStack() as stack:
        for each in classes if known != state.settings else []:
            # where a bound class has its resolved options, with the settings
            stack.enter_context(replaced(each, "_onejob", TaskOptions.of(each, app)))
        try:
            yield jobs
        finally:
            del _active[id(app)]
            store.refuse = None
            publisher.close()
            ledger.close()


@contextmanager
def replaced(owner: Any, name: str, value: object) -> Iterator[None]:
    """Replace an attribute in a block."""
    before = getattr(owner, name, None)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def replaced_state(app: Any, state: AppState) -> Iterator[None]:
    """Give an app another state in a block."""
    before = app.__dict__.get(STATE)
    app.__dict__[STATE] = state
    try:
        yield
    finally:
        app.__dict__.pop(STATE)
        if before is not None:
            app.__dict__[STATE] = before


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

    with replaced(result_class, "get", get), replaced(result_class, "wait", get):
        yield


def _refuse(settings: Settings, _is_known_task: Any = None) -> NoReturn:
    msg = (
        f"a test has isolated another app, and would now open the ledger at {settings.store.rpartition('@')[2]!r} of "
        "this one: isolate this app, too, with onejob.testing.isolated(app)"
    )
    raise ConfigurationError(msg)
