"""Refuses the own ledger of an app where a test would use it by mistake."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from onejob.celery import app_state as app_state_module
from onejob.celery.app_state import AppState, app_state_of
from onejob.errors import ConfigurationError
from onejob.testing.isolation import STATE, find_jobs, real_app

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onejob.config import Settings

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
    before = app.__dict__.get(STATE)
    app.__dict__[STATE] = _RefusedState(app, refusal)
    try:
        yield
    finally:
        app.__dict__.pop(STATE)
        if before is not None:
            app.__dict__[STATE] = before


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
    module: Any = app_state_module
    original = module.build_ledger

    def build(settings: Settings, *args: Any, **options: Any) -> Any:
        app = _loaded_app(name)
        if app is not None and app_state_of(app).settings is settings:
            raise ConfigurationError(WITHOUT_JOBS)
        return original(settings, *args, **options)

    module.build_ledger = build
    try:
        yield
    finally:
        module.build_ledger = original


def _loaded_app(name: str) -> Any:
    """Return an app by its name; None if its module is not imported."""
    module, _, attribute = name.partition(":")
    app = getattr(sys.modules.get(module), attribute or "app", None)
    return None if app is None else real_app(app)
