"""Django's own tests of its task framework, from the source of its release, with our backend."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.release.environments import ROOT, download_source, later_python

DJANGO = "6.1.3"
"""The release whose tests run: that of requirements/dev.txt for Python 3.12 and later."""
HARNESS = ROOT / "tests" / "django" / "public_suite"
MODULES = ("tasks.test_dummy_backend", "tasks.test_tasks", "tasks.test_custom_backend")
"""Those of the dummy backend, which runs nothing itself: ours stands in for it."""
NUMBER = 60
"""How many tests these modules have at least."""
ASSIGNS = "It assigns a status to the object that the dummy backend keeps in memory, and expects to read it again."
EXCEPTIONS = {
    "tasks.test_dummy_backend.DummyBackendTestCase.test_refresh_result": ASSIGNS,
    "tasks.test_dummy_backend.DummyBackendTestCase.test_refresh_result_async": ASSIGNS,
}
"""The tests that cannot pass, and why."""
pytestmark = [pytest.mark.deep, pytest.mark.timeout(1800)]


def test_the_tests_of_django_pass(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    """Django's tests of the dummy backend pass with ours in its place, but for those that look into its memory."""
    environments = pytestconfig.cache.mkdir("versions")
    python = later_python(environments, "3.12", "3.13", "3.14")  # which Django 6 needs
    _extract(download_source(environments, str(python), "django", DJANGO), tmp_path)
    variables = {
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", HARNESS, tmp_path))),
        "DJANGO_SETTINGS_MODULE": "suite_settings",
        "SUITE_DATABASE": str(tmp_path / "suite.db"),
    }
    command = [str(python), str(HARNESS / "run_suite.py"), *MODULES]
    done = subprocess.run(
        command, env=os.environ | variables, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    number, failed = json.loads(done.stdout.strip().splitlines()[-1])
    assert number >= NUMBER, done.stderr
    assert failed.keys() == EXCEPTIONS.keys(), done.stderr


def _extract(source: Path, folder: Path) -> None:
    """Write the tests of the framework to a folder, with our backend for Django's dummy backend."""
    (folder / "tasks").mkdir()
    with tarfile.open(source) as archive:
        for member in archive.getmembers():
            _, _, name = member.name.partition("/tests/tasks/")
            file = archive.extractfile(member) if name and "/" not in name else None
            if file is not None:
                text = file.read().decode().replace("django.tasks.backends.dummy", "suite_backend")
                (folder / "tasks" / name).write_text(text, encoding="utf-8")
