"""The check of each test for the errors of its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.quiet import LogReader, pytest_runtest_call, unwatch, watch

if TYPE_CHECKING:
    from pathlib import Path

ERROR = "[2030-01-01 00:00:00,000: ERROR/MainProcess] no\n"


def test_an_error_in_a_log_fails_its_own_test_alone(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """An error in a worker's log fails the test that passes else, and after a failed test it fails no other one."""
    log = tmp_path / "worker.log"
    reader = LogReader(log)
    watch(reader)
    request.addfinalizer(lambda: unwatch(reader))
    for failure in (None, ZeroDivisionError()):
        call = pytest_runtest_call(request.node)
        next(call)
        log.write_text(ERROR * (1 if failure is None else 2))
        with pytest.raises(AssertionError if failure is None else ZeroDivisionError):
            call.send(None) if failure is None else call.throw(failure)
        assert [*reader.troubles()] == []
