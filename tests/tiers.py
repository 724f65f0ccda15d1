"""The two tiers of the suite, and what a run says at its end: missing services, slow cases, and its CPU time."""

from __future__ import annotations

import gc
import resource
from collections import Counter
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.services import MissingServiceError

if TYPE_CHECKING:
    from collections.abc import Generator

SLOW_SECONDS = 10.0
"""What a case outside the deep tier may compute, its children included. Waiting, and a busy machine, are no matter."""
TOTAL_SECONDS = 450.0
"""What all cases outside the deep tier may compute together; the end of their run warns above it."""
MARGIN = 4.0
"""How much more than `TOTAL_SECONDS` passes the check of `--slow`: machines differ by a factor of three."""
FIRST_TIER = "not deep"
DEEP_SECONDS = 600.0
"""What a case of the deep tier may take, with all waits, unless it has more: the busiest machine is no matter."""
deep = pytest.mark.deep
_COMPUTED = "seconds of computing"
_MISSING = "a service is missing: "


def rounds(few: int, many: int) -> pytest.MarkDecorator:
    """Run a test with few `rounds`, and in the deep tier with many."""
    return pytest.mark.parametrize("rounds", [few, pytest.param(many, marks=[deep, pytest.mark.timeout(DEEP_SECONDS)])])


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the check on slow cases."""
    text = f"fail cases that compute for over {SLOW_SECONDS:g} s, and a first tier for over {_most():g} s"
    parser.addoption("--slow", action="store_true", help=text)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the cases that may take longest begin first, so that no process has one of them left at the end.

    A process begins with two cases: one of these, and one of the others.
    """
    longest = sorted(filter(_patience, items), key=_patience, reverse=True)
    others = [item for item in items if not _patience(item)]
    items[:] = [item for pair in zip_longest(longest, others) for item in pair if item is not None]
    for item in others:
        if item.get_closest_marker("deep") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(DEEP_SECONDS))


def _patience(item: pytest.Item) -> float:
    """Return the seconds that a case has of its own; 0 for the usual ones."""
    marker = item.get_closest_marker("timeout") if item.get_closest_marker("deep") else None
    return float(marker.args[0]) if marker else 0.0


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exempt what is collected from every later garbage collection: it lives until the end."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Measure what the body of a case computes."""
    before = _computed()
    try:
        return (yield)
    finally:
        item.user_properties.append((_COMPUTED, _computed() - before))


def _computed() -> float:
    """Return for how many seconds this process has computed, and its children that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip what needs a service that this machine lacks; with `--slow`, fail what is slow."""
    report = yield
    if call.excinfo is not None and call.excinfo.errisinstance(MissingServiceError):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, f"{_MISSING}{call.excinfo.value}")
    elif item.config.option.slow and report.passed and _is_slow(report):
        report.outcome = "failed"
        report.longrepr = f"computed for {_seconds(report):.1f} s: make it faster, or mark it `deep`"
    return report


def _is_slow(report: pytest.TestReport) -> bool:
    return report.when == "call" and _seconds(report) > SLOW_SECONDS and "deep" not in report.keywords


def _seconds(report: pytest.TestReport) -> float:
    return sum(float(str(value)) for name, value in report.user_properties if name == _COMPUTED)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly what did not run and how to get it; list the slow cases and the time of all."""
    reports = [report for some in terminalreporter.stats.values() for report in some]
    tests = [report for report in reports if isinstance(report, pytest.TestReport)]
    for reason, number in sorted(_missing(tests).items()):
        terminalreporter.write_line(f"NOT RUN: {number} tests, since {reason}", red=True, bold=True)
    slow = sorted({report.nodeid for report in tests if _is_slow(report)})
    for name in slow:
        terminalreporter.write_line(f"SLOW: {name} computed for over {SLOW_SECONDS:g} s", yellow=True)
    _say_total(terminalreporter)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """With `--slow`, fail a run of the first tier that computes for far too long. The processes of xdist have ended."""
    option = session.config.option
    if option.slow and option.markexpr == FIRST_TIER and not session.exitstatus and _computed() > _most():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _most() -> float:
    return MARGIN * TOTAL_SECONDS


def _say_total(terminalreporter: pytest.TerminalReporter) -> None:
    """Say for how long a run of the first tier has computed, with its processes that have ended."""
    if terminalreporter.config.option.markexpr == FIRST_TIER:
        text = f"CPU: {(used := _computed()):.1f} s of {TOTAL_SECONDS:g} s"
        if used > TOTAL_SECONDS:
            text = f"{text}: make tests cheaper, or mark second witnesses `deep`"
        terminalreporter.write_line(text, yellow=used > TOTAL_SECONDS)


def _missing(tests: list[pytest.TestReport]) -> Counter[str]:
    reasons = [cast("tuple[Any, Any, str]", report.longrepr)[2] for report in tests if report.skipped]
    return Counter(reason.removeprefix(_MISSING) for reason in reasons if reason.startswith(_MISSING))
