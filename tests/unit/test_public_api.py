"""The names of the package."""

from __future__ import annotations

import subprocess
import sys

import pytest

import onejob


def test_dir_is_the_public_api() -> None:
    """`dir(onejob)` lists exactly the public names, sorted, and each of them exists."""
    assert dir(onejob) == sorted(onejob.__all__)
    assert [name for name in dir(onejob) if not hasattr(onejob, name)] == []


def test_the_package_and_its_pytest_plugin_import_no_celery() -> None:
    """Pytest imports the package for its plugin at each start: that imports neither Celery nor a ledger."""
    script = "import onejob.testing.plugin, sys; print(*(n for n in sys.modules if n.startswith(('celery', 'onejob'))))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(ran.stdout.split()) == {"onejob", "onejob.testing", "onejob.testing.plugin"}


def test_public_names_are_the_same_objects_at_each_use() -> None:
    """A name that is imported at its first use is then an attribute, which costs nothing more."""
    assert onejob.Task is vars(onejob)["Task"]
    assert onejob.errors.JobCanceled is onejob.JobCanceled
    with pytest.raises(AttributeError, match="no attribute 'tusk'"):
        _ = onejob.tusk
