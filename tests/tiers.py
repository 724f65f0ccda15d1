"""The two tiers of the suite, and what a run says at its end: which cases were slow, and which service was missing.

What is marked `deep` runs in `make test-deep`; everything else, a witness of each law, runs in `make test`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.services import MissingServiceError

if TYPE_CHECKING:
    from collections.abc import Generator

SLOW_SECONDS = 10.0
"""What a case outside the deep tier may take: Celery's pool may need 5 s to notice that a child has died."""
deep = pytest.mark.deep
_SLOW = "onejob/slow"
_MISSING = "a service is missing: "


def rounds(few: int, many: int) -> pytest.MarkDecorator:
    """Run a test with few `rounds`, and in the deep tier with many."""
    return pytest.mark.parametrize("rounds", [few, pytest.param(many, marks=deep)])


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the check on slow cases."""
    text = f"run again the cases that took over {SLOW_SECONDS:g} s in the last run, and fail those that still do"
    parser.addoption("--slow", action="store_true", help=text)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--slow`, keep the cases that were slow in the last run."""
    if config.option.slow:
        listed = config.cache.get(_SLOW, [])
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in listed])
        items[:] = [item for item in items if item.nodeid in listed]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip what needs a service that this machine lacks; with `--slow`, fail what is slow even when it runs alone."""
    report = yield
    if call.excinfo is not None and call.excinfo.errisinstance(MissingServiceError):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, f"{_MISSING}{call.excinfo.value}")
    elif item.config.option.slow and report.passed and _is_slow(report):
        report.outcome = "failed"
        report.longrepr = f"took {report.duration:.1f} s: make it faster, or mark it `deep`"
    return report


def _is_slow(report: pytest.TestReport) -> bool:
    return report.when == "call" and report.duration > SLOW_SECONDS and "deep" not in report.keywords


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Take it for success that no case was slow."""
    if session.config.option.slow and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say loudly what did not run and how to get it; list the slow cases, and keep their names for `--slow`."""
    reports = [report for some in terminalreporter.stats.values() for report in some]
    tests = [report for report in reports if isinstance(report, pytest.TestReport)]
    for reason, number in sorted(_missing(tests).items()):
        terminalreporter.write_line(f"NOT RUN: {number} tests, since {reason}", red=True, bold=True)
    slow = sorted({report.nodeid for report in tests if _is_slow(report)})
    for name in slow:
        terminalreporter.write_line(f"SLOW: {name} took over {SLOW_SECONDS:g} s", yellow=True)
    if config.pluginmanager.hasplugin("cacheprovider") and not config.option.slow:
        config.cache.set(_SLOW, slow)


def _missing(tests: list[pytest.TestReport]) -> Counter[str]:
    reasons = [cast("tuple[Any, Any, str]", report.longrepr)[2] for report in tests if report.skipped]
    return Counter(reason.removeprefix(_MISSING) for reason in reasons if reason.startswith(_MISSING))
