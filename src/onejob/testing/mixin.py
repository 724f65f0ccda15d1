"""The mixin for test cases of unittest and Django."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from unittest import TestCase

from celery import current_app

from onejob.errors import ConfigurationError
from onejob.testing.isolation import isolated
from onejob.testing.refusal import refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onejob.testing.jobs import Jobs


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
