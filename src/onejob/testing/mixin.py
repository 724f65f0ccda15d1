"""The mixin for test cases of unittest and Django; and the refusal of an app's own ledger outside of a test."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn
from unittest import TestCase

from celery import current_app

from onejob.celery import app_state as app_state_module
from onejob.celery.app_state import AppState, app_state_of
from onejob.errors import ConfigurationError
from onejob.testing.isolation import find_jobs, isolated, real_app, replaced, replaced_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from onejob.config import Settings
    from onejob.testing.jobs import Jobs

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
        """Raise `ConfigurationError`."""
        raise ConfigurationError(self._refusal)


@contextmanager
def refused(app: Any, refusal: str = OUTSIDE_OF_A_TEST) -> Iterator[None]:
    """Refuse the ledger of an app in a block, except where that isolates the app."""
    app = real_app(app)
    with replaced_state(app, _RefusedState(app, refusal)):
        yield


@contextmanager
def guarded(name: str) -> Iterator[None]:
    """Refuse the ledger of the app with a name such as `shop:app` in a test, which may import it first.

    An app that is isolated already, by a fixture of a wider scope, is left alone.
    """
    app = _loaded_app(name)
    if app is None:
        with _unopened(name):
            yield
    elif find_jobs(app) is not None:
        yield
    else:
        with refused(app, WITHOUT_JOBS):
            yield


@contextmanager
def _unopened(name: str) -> Iterator[None]:
    """Refuse to open the ledger of an app that is not imported yet, so that its ledger is not open."""
    original = vars(app_state_module)["build_ledger"]

    def build(settings: Settings, *args: Any, **options: Any) -> Any:
        app = _loaded_app(name)
        if app is not None and app_state_of(app).settings is settings:
            raise ConfigurationError(WITHOUT_JOBS)
        return original(settings, *args, **options)

    with replaced(app_state_module, "build_ledger", build):
        yield


def _loaded_app(name: str) -> Any:
    """Return an app by its name; None if its module is not imported."""
    module, _, attribute = name.partition(":")
    app = getattr(sys.modules.get(module), attribute or "app", None)
    return None if app is None else real_app(app)


class JobsMixin:
    """Isolates an app in each test of a test case: `class InvoiceTests(JobsMixin, TestCase)`, with the mixin first.

    In a test `self.jobs` are the `Jobs` of the app. The app's own ledger is not touched: what is submitted outside of a
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
            msg = (
                f"{cls.__qualname__}: JobsMixin stands after the test case, which does not call it. Write "
                f"class {cls.__name__}(JobsMixin, {before.__name__})"
            )
            raise ConfigurationError(msg)

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
