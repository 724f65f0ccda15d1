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
    "onejob(eager=..., isolated=..., **settings): gives a test the fixture `jobs`, its mode, and settings of onejob "
    "without their prefix, such as onejob(lease=5). With isolated=False the test has no `jobs`, and may use the app's "
    "own ledger and broker"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the setting that names the app."""
    parser.addini("onejob_app", _HELP, default="")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker and, in a project that names its app, the guard of its ledger."""
    config.addinivalue_line("markers", _MARKER)
    if config.getini("onejob_app"):
        config.pluginmanager.register(_Guard(), "onejob guard")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give a test with the marker the fixture `jobs`. Raises `pytest.UsageError` for an invalid marker."""
    options = _options_of(item)
    if options is None:
        return
    function: Any = item
    if hasattr(getattr(item, "cls", None), "jobs_settings"):
        msg = f"{item.nodeid}: @pytest.mark.onejob is for tests with fixtures: set jobs_settings of JobsMixin"
        raise pytest.UsageError(msg)
    names = getattr(item, "fixturenames", None)
    if names is not None and options.get("isolated", True) and "jobs" not in names:
        function.fixturenames = [*names]  # a list of its own: parametrized tests of a function share one
        function.fixturenames.insert(sum(_is_wider(item, name) for name in names), "jobs")


@pytest.fixture
def onejob_app(request: pytest.FixtureRequest) -> Any:
    """Return the Celery app under test, from a fixture `celery_app`, or else from the setting `onejob_app`.

    The setting precedes the fixture `celery_app` of Celery's own plugin, which has no project's app.
    """
    name = request.config.getini("onejob_app")
    found = request.session._fixturemanager.getfixturedefs("celery_app", request.node)  # noqa: SLF001 - pytest 8 and 9
    if name and found and found[-1].func.__module__ == "celery.contrib.pytest":
        return _import_app(name)
    try:
        return request.getfixturevalue("celery_app")
    except pytest.FixtureLookupError as error:
        if error.argname != "celery_app":
            raise
    if name:
        return _import_app(name)
    raise pytest.UsageError(
        "onejob does not know your Celery app: set onejob_app = shop.celery:app in the [pytest] section of "
        "pytest.ini or in [tool.pytest.ini_options] of pyproject.toml, or define a fixture celery_app"
    )


@pytest.fixture
def jobs(onejob_app: Any, request: pytest.FixtureRequest) -> Iterator[Jobs]:
    """Isolate the app for this test, and return its `onejob.testing.Jobs`."""
    from onejob.testing.isolation import isolated

    options = _options_of(request.node) or {}
    if not options.pop("isolated", True):
        msg = f"{request.node.nodeid} has the fixture `jobs` and the marker onejob(isolated=False): remove one of them"
        raise pytest.UsageError(msg)
    with isolated(onejob_app, **options) as isolated_jobs:
        yield isolated_jobs


@pytest.fixture
def onejob_ledger(jobs: Jobs) -> RecordingLedger:
    """Return the app's ledger for this test, in a temporary directory."""
    return jobs.ledger


class _Guard:
    """The plugin of a project that has set `onejob_app`."""

    @pytest.fixture(autouse=True)
    def _refuse_own_ledger(self, request: pytest.FixtureRequest) -> Iterator[None]:
        """Refuse the app's own ledger in a test, unless its marker says `isolated=False`."""
        from onejob.testing.isolation import guarded

        if not (_options_of(request.node) or {}).get("isolated", True):
            yield
            return
        with guarded(request.config.getini("onejob_app")):
            yield


def _options_of(item: Any) -> dict[str, Any] | None:
    """Return the options of the markers of a test, the nearest first; None without a marker."""
    markers = [*item.iter_markers("onejob")]
    if any(marker.args for marker in markers):
        raise pytest.UsageError(f"{item.nodeid}: @pytest.mark.onejob takes options by name, such as onejob(lease=5)")
    return {name: value for marker in reversed(markers) for name, value in marker.kwargs.items()} if markers else None


def _is_wider(item: Any, name: str) -> bool:
    """Return whether a fixture of a test outlives it, and is therefore set up outside of the isolation."""
    found = item._fixtureinfo.name2fixturedefs.get(name)  # noqa: SLF001 - pytest 8 and 9
    return bool(found) and found[-1].scope != "function"


def _import_app(name: str) -> Any:
    from celery.utils.imports import symbol_by_name

    try:
        return symbol_by_name(name if ":" in name else f"{name}:app")
    except (ImportError, AttributeError) as error:
        raise pytest.UsageError(f"onejob_app = {name!r} names no Celery app: {error}") from error
