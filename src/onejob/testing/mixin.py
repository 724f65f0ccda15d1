"""The mixin for test cases of unittest and Django."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from celery import current_app

from onejob.testing.isolation import isolated, refused

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
    jobs: Jobs

    @classmethod
    def setUpClass(cls) -> None:
        """Refuse the app's ledger until a test isolates it."""
        test_case: Any = cls
        test_case.enterClassContext(refused(cls._find_app()))
        super().setUpClass()  # type: ignore[misc] # of the test case

    def setUp(self) -> None:
        """Isolate the app for this test."""
        test_case: Any = self
        self.jobs = test_case.enterContext(isolated(self._find_app(), **self.jobs_settings))
        super().setUp()  # type: ignore[misc] # of the test case

    @classmethod
    def _find_app(cls) -> Any:
        return current_app if cls.celery_app is None else cls.celery_app
