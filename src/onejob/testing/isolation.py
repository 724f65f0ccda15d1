"""Isolates an app for a test: a ledger in a temporary directory, and a broker in memory that no worker reads.

The app's own ledger is refused outside of a test. `JobsMixin` does both in test cases of unittest and Django.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from threading import get_ident
from typing import Any, ClassVar, NoReturn
from unittest import TestCase
from unittest.mock import patch

from celery import current_app
from celery import result as celery_result
from celery.backends import cache
from celery.utils.functional import LRUCache
from kombu.transport import memory
from kombu.transport.virtual import BrokerState

from onejob.celery import app_state as app_state_module
from onejob.celery.app_state import AppState, app_state_of
from onejob.celery.messages.broker import SCHEME
from onejob.celery.option_declarations import check_setting_names
from onejob.celery.results.result import AsyncResult
from onejob.celery.run import draining
from onejob.celery.submission.options import TaskOptions, tasks_of
from onejob.config import NAMES, Settings, build_ledger
from onejob.errors import ConfigurationError, OneJobError
from onejob.stores.django_database import alias_of
from onejob.stores.urls import scheme_of
from onejob.testing.fault import CrashReport
from onejob.testing.jobs import JobRun, Jobs, app_of, real_app
from onejob.testing.ledger import RecordingLedger
from onejob.testing.store import Clock, IsolatedStore, empty_ledger
from onejob.testing.worker import IsolatedPublisher

BROKER = "memory://localhost"
BACKEND = "cache+memory://"
ENVIRONMENT = ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL", "CELERY_RESULT_BACKEND")
"""The environment variables that Celery reads in place of the settings."""
STATE = app_state_module._ATTRIBUTE  # noqa: SLF001 - the one place where an app has its state
_active: dict[int, Jobs] = {}
_thread: ContextVar[int] = ContextVar("onejob_thread_of_test")
"""The thread of the test; coroutines of Django's tests run in another thread, but in the test's context."""


@contextmanager
def isolated(app: Any, *, eager: bool | None = None, **settings: Any) -> Iterator[Jobs]:
    """Isolate an app in a block: its jobs are in a ledger in a temporary directory, and its messages in memory.

    Yields the `Jobs` of the test. `settings` are settings of onejob for the block, without their prefix: `lease=5`.
    All other settings are read anew from `app.conf`, and what the block changes in `app.conf` is undone at its end.
    `eager`: whether a job runs within its submission, as in `Jobs.eager`. Default: `task_always_eager` of the app.

    No block reads or writes the app's own ledger, broker or result backend. The ledger of another app that the block
    opens raises `ConfigurationError`: isolate it, too. Isolating an app twice, and an unknown setting, raise it, too.
    """
    app = real_app(app)
    if id(app) in _active:
        raise ConfigurationError(f"app {app.main!r} is isolated already, by a fixture or an outer block: use its jobs")
    check_setting_names({f"onejob_{name}": value for name, value in settings.items()})
    if unknown := settings.keys() - {*NAMES} | settings.keys() & {"store"}:
        msg = f"isolated takes settings of onejob without their prefix, not {sorted(unknown)}: lease, retention, ..."
        raise ConfigurationError(msg)
    app.finalize()  # binds the tasks with the app's own settings
    is_eager = bool(app.conf.task_always_eager) if eager is None else eager
    django_alias = alias_of(str(app.conf.get("onejob_store") or ""))
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onejob-", ignore_cleanup_errors=True)))
        shutil.copyfile(empty_ledger(), directory / "ledger.db")
        given = {f"onejob_{name}": value for name, value in settings.items()}
        stack.enter_context(_changed_settings(app, _isolating_settings(app, directory) | given))
        stack.enter_context(_broker_in_memory(app))
        jobs = stack.enter_context(_ledger_in(app, directory / "ledger.db", django_alias))
        stack.enter_context(patch.object(app_state_module, "build_ledger", _refuse))
        stack.enter_context(_refused_waits(app))
        stack.enter_context(_settled_blocks(jobs.ledger))
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
    """Run the body of a task once, as `Jobs.run_job` does; isolate its app for the call unless it is isolated."""
    options: dict[str, Any] = {"attempt": attempt, "retries": retries, "steps": steps, "canceled": canceled}
    with _isolated_for(task) as jobs:
        return jobs.run_job(task, *args, **options, **kwargs)


def crash_matrix(task: Any, *args: Any, **options: Any) -> CrashReport:
    """Run a task under every fault, as `Jobs.crash_matrix` does; isolate its app for the call unless it is isolated."""
    with _isolated_for(task) as jobs:
        return jobs.crash_matrix(task, *args, **options)


@contextmanager
def _isolated_for(task: Any) -> Iterator[Jobs]:
    """Yield the jobs of a task's app; isolate the app for this block unless it is isolated already."""
    app = app_of(task)
    with nullcontext(found) if (found := find_jobs(app)) is not None else isolated(app) as jobs:
        yield jobs


def reset(app: Any) -> None:
    """Close the ledger and the connections of an app: its settings are read anew at its next use.

    For tests that change `app.conf.onejob_store` or another setting without `isolated`.
    """
    classes: list[Any] = [type(task) for task in app.tasks.values()]
    for each in classes:
        if "_onejob" in vars(each):  # its resolved options, with the settings
            del each._onejob
    state: AppState | None = app.__dict__.pop(STATE, None)
    if state is not None:
        state.close()
        if "publisher" in state.__dict__:
            state.publisher.close()


def _isolating_settings(app: Any, directory: Path) -> dict[str, Any]:
    urls = dict.fromkeys(("broker_url", "broker_read_url", "broker_write_url"), BROKER)
    given = app.backend_cls or app.conf.result_backend
    backend = f"{SCHEME}://" if scheme_of(str(given)) == SCHEME else BACKEND
    return {
        **urls,
        "broker_transport": None,  # the setting that precedes the URLs
        "broker_transport_options": {},
        "task_always_eager": False,
        "onejob_store": f"sqlite:///{directory / 'ledger.db'}",
        **({"result_backend": backend, "result_backend_transport_options": {}} if given else {}),
    }


@contextmanager
def _changed_settings(app: Any, settings: Mapping[str, Any]) -> Iterator[None]:
    """Change settings of an app; afterwards, undo all changes of its settings since."""
    environment = {name: os.environ.pop(name) for name in ENVIRONMENT if name in os.environ}
    try:
        with patch.dict(app.conf.changes):
            app.conf.update(settings)
            yield
    finally:
        os.environ.update(environment)


@contextmanager
def _broker_in_memory(app: Any) -> Iterator[None]:
    """Make an app connect anew, to a broker and a result backend of its own in memory.

    Celery has no public way to do so. The private names are those of Celery 5.4 to 5.7 and kombu 5.4 to 5.6: the pools
    of connections and producers, the result backend of the app and of this thread, and what each task has built with
    it; `backend_cls` is the argument of the app's constructor, which the setting replaces. All result backends in
    memory share one cache.
    """
    anew: list[tuple[Any, str, Any]] = [
        (memory.Channel, "queues", {}),
        (memory.Transport, "global_state", BrokerState()),
        (cache, "_DUMMY_CLIENT_CACHE", LRUCache()),
        *((app, name, None) for name in ("_pool", "_backend_cache", "backend_cls")),
        (app.amqp, "_producer_pool", None),
        (app._local, "backend", None),  # noqa: SLF001 - see above
        *((task, "__trace__", None) for task in [*app.tasks.values()]),
    ]
    control, was_draining = app.__dict__.pop("control", None), draining.is_set()
    with ExitStack() as stack:
        for owner, name, value in anew:
            stack.callback(setattr, owner, name, getattr(owner, name, None))
            setattr(owner, name, value)
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
    """Give an app a new state, with the ledger in a file; its writes join transactions on `django_alias`."""
    clock, state = Clock(), AppState(app)
    store = IsolatedStore(path, clock)
    ledger = build_ledger(state.settings, store=store, kind=RecordingLedger, metrics_interval=0)
    assert isinstance(ledger, RecordingLedger)  # noqa: S101 - for the type checker
    publisher = IsolatedPublisher(
        app, state.settings.publish_timeout, state.routing, state.contexts, lambda: ledger
    )  # fmt: skip
    state.use(ledger, publisher, django_alias)
    jobs = Jobs(app, state, ledger, store, clock)
    jobs.is_elsewhere = lambda task: any(task in other.app.tasks for other in _active.values())
    publisher.after_publish, ledger.after_silent_commit = jobs.run_if_eager, jobs.run_committed_if_eager
    with replaced_state(app, state), ExitStack() as stack:
        stack.callback(ledger.close)
        stack.callback(publisher.close)
        for each in map(type, tasks_of(app).values()):
            # the attribute in which a bound class keeps its resolved options, with the settings
            stack.enter_context(patch.object(each, "_onejob", TaskOptions.of(each, app)))
            if getattr(each, "share_old_locks", False):  # of a shim, with locks outside of the test
                stack.enter_context(patch.object(each, "share_old_locks", new=False))
        _active[id(app)] = jobs
        stack.callback(_active.pop, id(app))
        stack.callback(setattr, store, "refuse", None)
        yield jobs


@contextmanager
def _settled_blocks(ledger: RecordingLedger) -> Iterator[None]:
    """Settle the submissions in a block of Django's `atomic` at its end: in a `TestCase` no callback is called."""
    transaction: Any = sys.modules.get("django.db.transaction")
    if transaction is None:
        yield
        return
    original = transaction.Atomic.__exit__

    def leave(block: Any, *error: Any) -> None:
        original(block, *error)
        if ledger.pending:
            ledger.settle()

    with patch.object(transaction.Atomic, "__exit__", leave):
        yield


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
    """Refuse to wait without a timeout, in the test's thread or context, for jobs that only the test can run."""
    of_jobs: Any = AsyncResult
    of_plain_tasks: Any = celery_result.AsyncResult
    thread = get_ident()
    _thread.set(thread)

    def waits_for_ever(result: Any, timeout: float | None) -> bool:
        is_own = timeout is None and thread in {get_ident(), _thread.get(None)} and real_app(result.app) is app
        return is_own and not any(each.failed() for each in result._parents()) and not result.ready()  # noqa: SLF001 - Celery's

    def refusing(original: Any) -> Any:
        @wraps(original)
        def get(result: Any, timeout: float | None = None, *args: Any, **options: Any) -> Any:
            if waits_for_ever(result, timeout):
                if options.get("disable_sync_subtasks", True):
                    celery_result.assert_will_not_block()  # type: ignore[attr-defined] # missing in the published types
                raise _unended(result, "get()")
            return original(result, timeout, *args, **options)

        return get

    original_async = of_jobs.aget

    @wraps(original_async)
    async def aget(result: Any, timeout: float | None = None, **options: Any) -> Any:  # noqa: ASYNC109 - as `get`
        if waits_for_ever(result, timeout):
            raise _unended(result, "aget()")
        return await original_async(result, timeout, **options)

    with ExitStack() as stack:
        for kind in (of_jobs, of_plain_tasks):
            get = refusing(kind.get)
            stack.enter_context(patch.multiple(kind, get=get, wait=get))
        stack.enter_context(patch.object(of_jobs, "aget", aget))
        yield


def _unended(result: Any, call: str) -> OneJobError:
    return OneJobError(
        f"job {result.id} is {result.state}, and {call} would wait for ever: no worker runs in a test. Call "
        "jobs.run_all() before, or give a timeout, if another thread runs the job"
    )


def _refuse(settings: Settings, _is_known_task: Any = None, **_: Any) -> NoReturn:
    raise ConfigurationError(
        f"a test has isolated another app, and would now open the ledger at {settings.store.rpartition('@')[2]!r} of "
        "this one: isolate this app, too, with onejob.testing.isolated(app)"
    )


OUTSIDE_OF_A_TEST = (
    "no job can be submitted here, outside of a test, as in setUpClass or setUpTestData: it would be in the "
    "app's own ledger. Submit it in the test, or in setUp after super().setUp()"
)
WITHOUT_JOBS = (
    "this test would use the app's own ledger and broker: request the fixture `jobs`, as in def test_it(jobs), which "
    "isolates the app. A test that is meant to use them says so by @pytest.mark.onejob(isolated=False)"
)


class _RefusedState(AppState):
    """The state of an app whose ledger must not be used."""

    def __init__(self, app: Any, refusal: str) -> None:
        super().__init__(app)
        self._refusal = refusal

    @property
    def ledger(self) -> NoReturn:
        raise ConfigurationError(self._refusal)


@contextmanager
def refused(app: Any, refusal: str = OUTSIDE_OF_A_TEST) -> Iterator[None]:
    """Refuse the ledger of an app in a block, except where the block isolates the app."""
    app = real_app(app)
    with replaced_state(app, _RefusedState(app, refusal)):
        yield


@contextmanager
def guarded(name: str) -> Iterator[None]:
    """Refuse the ledger of the app with a name such as `shop:app` in a test; the test may be the first to import it.

    An app that is isolated already, by a fixture of a wider scope, is left alone.
    """
    original = vars(app_state_module)["build_ledger"]

    def build(settings: Settings, *args: Any, **options: Any) -> Any:
        """Refuse to open the ledger of the app, which has been imported meanwhile."""
        app = _loaded_app(name)
        if app is not None and app_state_of(app).settings is settings:
            raise ConfigurationError(WITHOUT_JOBS)
        return original(settings, *args, **options)

    app = _loaded_app(name)
    if app is None:
        refusing: Any = patch.object(app_state_module, "build_ledger", build)
    else:
        refusing = nullcontext() if find_jobs(app) is not None else refused(app, WITHOUT_JOBS)
    with refusing:
        yield


def _loaded_app(name: str) -> Any:
    """Return an app by its name; None if its module is not imported."""
    module, _, attribute = name.partition(":")
    app = getattr(sys.modules.get(module), attribute or "app", None)
    return None if app is None else real_app(app)


class JobsMixin:
    """Isolates an app in each test of a test case: `class InvoiceTests(JobsMixin, TestCase)`, with the mixin first.

    In a test `self.jobs` are the `Jobs` of the app. The app's own ledger is not touched: a submission outside of a
    test, as in `setUpClass` or Django's `setUpTestData`, raises `ConfigurationError`. In a transaction of Django's
    `TestCase` the ledger is outside of it.
    """

    celery_app: ClassVar[Any] = None
    """The Celery app. Default: the current app, as `celery.current_app` knows it."""
    jobs_settings: ClassVar[Mapping[str, Any]] = {}
    """The options of `isolated`: `{"eager": True, "lease": 5}`."""
    _jobs: Jobs | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Raise `ConfigurationError` for a class whose test case stands before the mixin, and would skip it."""
        super().__init_subclass__(**options)
        order = cls.__mro__
        if TestCase in order and order.index(TestCase) < order.index(JobsMixin):
            before = next(each for each in cls.__bases__ if issubclass(each, TestCase))
            raise ConfigurationError(
                f"{cls.__qualname__}: JobsMixin stands after the test case, which does not call it. Write "
                f"class {cls.__name__}(JobsMixin, {before.__name__})"
            )

    @property
    def jobs(self) -> Jobs:
        """The jobs of the isolated app. Raises `ConfigurationError` before `setUp`."""
        if self._jobs is None:
            msg = f"the setUp of {type(self).__qualname__} has not isolated the app: call super().setUp() first in it"
            raise ConfigurationError(msg)
        return self._jobs

    @classmethod
    def setUpClass(cls) -> None:
        """Refuse the app's ledger until a test isolates it."""
        test_case: Any = cls
        test_case.enterClassContext(refused(cls._find_app()))
        super().setUpClass()  # type: ignore[misc] # of the test case

    def setUp(self) -> None:
        """Isolate the app for this test."""
        test_case: Any = self
        self._jobs = test_case.enterContext(isolated(self._find_app(), **self.jobs_settings))
        super().setUp()  # type: ignore[misc] # of the test case

    @classmethod
    def _find_app(cls) -> Any:
        return current_app if cls.celery_app is None else cls.celery_app
