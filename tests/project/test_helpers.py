"""The helpers of the tests: what a run says at its end, slow cases, and errors in the logs of workers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from checks.project import ROOT
from onejob.celery.messages.payload import REPLACED
from onejob.jobs.handover import BY_CALLER
from onejob.jobs.lifecycle import Transition
from onejob.ledger.ledger import Ledger
from tests.quiet import JobReader, LogReader, pytest_runtest_call, unwatch, watch
from tests.services import free_port
from tests.stores.support import accepted, submission

CONFTEST = """
from tests import tiers
pytest_plugins = ["tests.tiers"]
tiers.SLOW_SECONDS = 0.3
"""
SUITE = """
import time
import pytest
from tests.services import MissingServiceError, ServiceError

@pytest.fixture(scope="module")
def service():
    raise MissingServiceError("no such server: install it")

def test_one(service): pass
def test_two(service): pass
def test_three():
    compute()

@pytest.mark.deep
@pytest.mark.timeout(60)
def test_four():
    compute()

def test_five():
    time.sleep(0.4)

def compute():
    end = time.process_time() + 0.4
    while time.process_time() < end:
        pass
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """Return a folder with tests of which two need a service that is missing."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_suite.py").write_text(SUITE)
    return tmp_path


def pytest_in(suite: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-o", "markers=deep\ntimeout", *options, "."]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=suite, env=environment, capture_output=True, text=True, check=False)


def test_the_end_of_a_run_says_what_did_not_run_and_what_was_slow(suite: Path) -> None:
    """One line says how many tests lack a service, and how to get it; a case that computes for long is named.

    A deep case with a timeout of its own begins before all others, so that none of them is left at the end.
    """
    told = pytest_in(suite, "-v")
    assert told.returncode == 0, told.stdout
    assert told.stdout.count("NOT RUN: 2 tests, since no such server: install it\n") == 1
    assert told.stdout.count("SLOW: test_suite.py::test_three computed for over 0.3 s\n") == 1
    assert "3 passed, 2 skipped" in told.stdout
    begun = [line for line in told.stdout.splitlines() if line.startswith("test_suite.py::")]
    assert (begun[0].split()[0], len(begun)) == ("test_suite.py::test_four", 5)


def test_a_slow_case_fails_a_check(suite: Path) -> None:
    """With `--slow` a case that computes for long fails; waiting is no computing, and a deep case may compute."""
    checked = pytest_in(suite, "--slow").stdout
    assert "1 failed, 2 passed, 2 skipped" in checked
    assert "make it faster, or mark it `deep`" in checked


def test_a_slow_tier_fails_a_check(suite: Path) -> None:
    """The end of a run of the first tier says its CPU time; above the budget it warns, and with `--slow` it fails."""
    with (suite / "conftest.py").open("a") as conftest:
        conftest.write("tiers.SLOW_SECONDS = 60.0\ntiers.TOTAL_SECONDS = 0.01\n")
    warned, failed = (pytest_in(suite, "-m", "not deep", *options) for options in ([], ["--slow"]))
    assert "s of 0.01 s: make tests cheaper" in warned.stdout
    assert (warned.returncode, failed.returncode) == (0, 1)
    assert "CPU" not in pytest_in(suite).stdout


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


def test_a_look_for_the_end_of_a_replacement_is_no_trouble(ledger: Ledger) -> None:
    """A release by which a replaced job looks for its end needs no announcement, and any other release does."""
    job = ledger.submit(submission()).job
    for number, reason in enumerate((REPLACED, "its worker is shutting down")):
        run = accepted(ledger.claim(job.id, nonce=f"{number:>16}", node="here"))
        ledger.release(run, reason, handover=BY_CALLER)
    (trouble,) = JobReader(lambda: ledger).troubles({})
    assert trouble.event == Transition.RELEASE
    assert "its worker is shutting down" in trouble.text


def test_a_free_port_stays_free() -> None:
    """The system gives a port that a test has chosen to no client or server that takes any port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert max(free_port() for _ in range(30)) < server.getsockname()[1]
