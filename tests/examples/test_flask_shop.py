"""The Flask shop of the examples passes its own tests, run as its users run them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from checks.project import ROOT
from tests.services import RedisServer

SHOP = ROOT / "examples" / "flask_shop"


def run_tests(broker: RedisServer, *options: str) -> str:
    """Run the tests of the shop, and return what pytest prints."""
    url = broker.url.removesuffix("/0") + "/15"
    environment = os.environ | {"FLASK_CELERY__broker_url": url, "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # the example needs ours alone: importing all takes seconds
    plain = ["-p", "no:cacheprovider", "-p", "onejob.testing.plugin"]
    command = [sys.executable, "-m", "pytest", "-q", *plain, *options]
    done = subprocess.run(command, cwd=SHOP, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_flask_shop_passes_its_tests(redis_server: RedisServer) -> None:
    """Double clicks, and the dashboard with the users of the session, work in Flask."""
    assert "3 passed" in run_tests(redis_server, "-k", "not worker")


@pytest.mark.deep
def test_the_flask_shop_runs_its_jobs(redis_server: RedisServer) -> None:
    """A worker of the Flask shop runs its jobs in the context of the app."""
    assert "1 passed" in run_tests(redis_server, "-k", "worker")
