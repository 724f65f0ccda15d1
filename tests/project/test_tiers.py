"""The end of a run says what did not run, and a slow case fails a check."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.project.tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path

CONFTEST = """
from tests import tiers
pytest_plugins = ["tests.tiers"]
tiers.SLOW_SECONDS = 0.0
"""
SUITE = """
import pytest
from tests.services import MissingServiceError, ServiceError

@pytest.fixture(scope="module")
def service():
    raise MissingServiceError("no such server: install it")

def test_one(service): pass
def test_two(service): pass
def test_three(): pass

@pytest.mark.deep
def test_four(): pass
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """Return a folder with tests of which two need a service that is missing."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_suite.py").write_text(SUITE)
    return tmp_path


def pytest_in(suite: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-o", "markers=deep", *options, "."]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=suite, env=environment, capture_output=True, text=True, check=False)


def test_a_missing_service_is_one_loud_line(suite: Path) -> None:
    """Tests that need a service which is missing are skipped, and one line says how many they are and how to get it."""
    told = pytest_in(suite)
    assert told.returncode == 0, told.stdout
    assert told.stdout.count("NOT RUN: 2 tests, since no such server: install it\n") == 1
    assert "2 passed, 2 skipped" in told.stdout


def test_a_slow_case_fails_a_check(suite: Path) -> None:
    """A case that was slow is run again alone, and fails if it is slow again; a deep one may take its time."""
    assert "SLOW: test_suite.py::test_three took over 0 s" in pytest_in(suite).stdout
    again = pytest_in(suite, "--slow")
    assert again.returncode == 1
    assert "1 failed, 3 deselected" in again.stdout


def test_no_slow_case_is_success(suite: Path) -> None:
    """Where no case was slow, there is none to run again, and the check passes."""
    assert pytest_in(suite, "--slow").returncode == 0
