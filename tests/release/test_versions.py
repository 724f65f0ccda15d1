"""A slice of the suite on the oldest supported libraries, each Celery, and every Python that this machine has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.release.environments import ROOT, environment, find_python, overlay, overlay_with

OLDEST = ROOT / "requirements" / "oldest.txt"
"""The oldest versions that pyproject.toml allows, of everything that it names."""
OTHER_PYTHONS = [name for minor in range(11, 15) if minor != sys.version_info.minor for name in [f"3.{minor}"]]
SLICE = (
    "tests/fundamentals",
    "tests/celery/test_beside_beat.py",
    "tests/celery/test_crash.py",
    "tests/celery/test_runs.py",
    "tests/celery/test_submit.py",
    "tests/stores/test_sequences.py",
    "tests/uniqueness/test_identity.py",
    "tests/celery/messages/test_payload.py",
    "tests/jobs/test_timestamps.py",
    "tests/ledger/test_job_filters.py",
    "tests/pages/test_job.py",
)
DJANGO_SLICE = ("tests/django/test_app.py", "tests/django/test_backend.py", "tests/django/test_worker.py")
"""On Django 6 from Python 3.12 on, and on Django 5.2 before."""
OLDEST_SLICE = (
    *SLICE, "tests/celery/test_canvas.py", "tests/celery/test_direct_broker.py", "tests/celery/test_result_backend.py",
    "tests/api/test_jobs.py", "tests/api/test_callers.py", "tests/api/test_submissions.py",
    "tests/pages/test_formats.py", "tests/transactions/test_submission.py", "tests/webhooks/test_client.py",
)  # fmt: skip
"""With what depends most on the versions of Celery, FastAPI, the drivers and the HTTP client."""
CELERYS = ("5.4.0", "5.5.3", "5.6.2", "5.7.0")
"""A release of each minor version of Celery that is supported."""
BETWEEN = CELERYS[1:-1]
"""Those whose beat has no header in its calls, but the oldest, which has a slice of its own."""
MOMENTS_SLICE = ("tests/celery/beat/test_moments.py", "tests/celery/beat/test_ticks.py", "-m", "deep or not deep")
"""The year of all schedules."""
SUN_AND_ZONES = ("ephem==4.2", "tzdata==2026.6")
pytestmark = [pytest.mark.deep, pytest.mark.timeout(1800)]


@pytest.fixture
def environments(pytestconfig: pytest.Config) -> Path:
    """Return the folder of the environments that are kept from run to run."""
    return pytestconfig.cache.mkdir("versions")


def test_the_oldest_libraries_run_a_slice_of_the_suite(environments: Path) -> None:
    """The oldest allowed versions, such as Celery 5.4 and redis-py 5.2, keep the promises that the newest keep."""
    python = overlay(environments / "oldest", OLDEST)
    _run_slice(python, *OLDEST_SLICE, "-W", "ignore::DeprecationWarning")


@pytest.mark.parametrize("version", BETWEEN)
def test_other_versions_of_celery_run_beat_beside_the_workers(environments: Path, version: str) -> None:
    """On each version of Celery what its beat submits is the tick of the workers."""
    python = overlay_with(environments / f"celery-{version}", [f"celery=={version}"])
    _run_slice(python, "tests/celery/test_beside_beat.py", "-W", "ignore::DeprecationWarning")


@pytest.mark.parametrize("version", CELERYS)
def test_the_moments_of_schedules_are_equal_on_every_celery(environments: Path, version: str) -> None:
    """On each version of Celery a year of all schedules has the moments of the reference, by two sets of zones."""
    python = overlay_with(environments / f"moments-{version}", [f"celery=={version}", *SUN_AND_ZONES])
    _run_slice(python, *MOMENTS_SLICE)


@pytest.mark.parametrize("version", OTHER_PYTHONS)
def test_other_pythons_run_a_slice_of_the_suite(environments: Path, version: str) -> None:
    """Every supported Python that is installed keeps the promises, with the locked versions of all packages."""
    interpreter = find_python(version)
    if interpreter is None:
        pytest.skip(f"no Python {version} with venv, ssl and sqlite3 on this machine")
    _run_slice(environment(environments / version, interpreter), *SLICE, *DJANGO_SLICE)


def _run_slice(python: Path, *arguments: str) -> None:
    """Run the slice in another environment, on the source of this one."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [str(python), "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider"]
    command += ["-m", "not deep", "--hypothesis-profile", "search", *arguments]  # with other examples in each run
    source = {"PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": ""}  # rewriting assertions takes long
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=variables | source)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
