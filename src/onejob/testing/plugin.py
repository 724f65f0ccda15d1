"""The pytest plugin: the fixtures `jobs`, `onejob_ledger` and `onejob_app`.

pytest imports this module at each of its starts, also for tests that use no task, so it imports nothing but pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onejob.testing.jobs import Jobs
    from onejob.testing.ledger import RecordingLedger

_HELP = "the Celery app whose jobs the fixtures isolate, such as shop.celery:app"
_MARKER = (
    "onejob(eager=..., **settings): the mode of the fixture `jobs` in a test, and settings of onejob without their "
    "prefix, such as onejob(lease=5)"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the setting that names the app."""
    parser.addini("onejob_app", _HELP, default="")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture
def onejob_app(request: pytest.FixtureRequest) -> Any:
    """Return the Celery app under test: that of the setting `onejob_app`, or of a fixture `celery_app`."""
    name = request.config.getini("onejob_app")
    if name:
        return _import_app(name)
    try:
        return request.getfixturevalue("celery_app")
    except pytest.FixtureLookupError:
        msg = (
            "onejob does not know your Celery app: set onejob_app = shop.celery:app in the [pytest] section of "
            "pytest.ini or in [tool.pytest.ini_options] of pyproject.toml, or define a fixture celery_app"
        )
        raise pytest.UsageError(msg) from None


@pytest.fixture
def jobs(onejob_app: Any, request: pytest.FixtureRequest) -> Iterator[Jobs]:
    """Isolate the app for this test, and return its `onejob.testing.Jobs`."""
    from onejob.testing.isolation import isolated

    markers = [*request.node.iter_markers("onejob")]
    options = {name: value for marker in reversed(markers) for name, value in marker.kwargs.items()}
    with isolated(onejob_app, **options) as isolated_jobs:
        yield isolated_jobs


@pytest.fixture
def onejob_ledger(jobs: Jobs) -> RecordingLedger:
    """Return the app's ledger for this test, in a temporary directory."""
    return jobs.ledger


def _import_app(name: str) -> Any:
    from celery.utils.imports import symbol_by_name

    try:
        return symbol_by_name(name if ":" in name else f"{name}:app")
    except (ImportError, AttributeError) as error:
        msg = f"onejob_app = {name!r} names no Celery app: {error}"
        raise pytest.UsageError(msg) from error
