"""The Flask shop of the examples passes its own tests, run as its users run them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.project.tree import ROOT

if TYPE_CHECKING:
    from tests.services import RedisServer

SHOP = ROOT / "examples" / "flask_shop"


def test_the_flask_shop_passes_its_tests(redis_server: RedisServer) -> None:
    """Double clicks, the dashboard with the session's users, and a worker in the context of the app work in Flask."""
    environment = os.environ | {
        "FLASK_CELERY__broker_url": redis_server.url.removesuffix("/0") + "/15",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--rootdir=.",
        "-c",
        os.devnull,
        "-p",
        "no:cacheprovider",
        "-p",
        "no:schemathesis",
    ]
    done = subprocess.run(command, cwd=SHOP, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout
