"""Packages that watch or change Celery see the same of an app, whether onejob is installed beside it or not."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.release.environments import ROOT, install, new_environment, pip_of
from tests.services import eventually

PACKAGES = (
    "celery", "celery-aio-pool", "sentry-sdk", "opentelemetry-sdk", "opentelemetry-instrumentation-celery",
)  # fmt: skip
POOLS: dict[str, dict[str, str]] = {
    "prefork": {}, "threads": {}, "solo": {},
    "custom": {"CELERY_CUSTOM_WORKER_POOL": "celery_aio_pool.pool:AsyncIOPool"},
}  # fmt: skip
"""The names of pools, and the environment variables of their workers."""
EVENTS = {
    "result works SUCCESS 42",
    "result fails FAILURE ValueError(21)",
    "sentry transaction works ok",
    "sentry transaction fails internal_error",
    "sentry event fails ValueError",
    "opentelemetry CONSUMER run/works UNSET",
    "opentelemetry CONSUMER run/fails ERROR",
    "opentelemetry PRODUCER apply_async/works UNSET",
    "opentelemetry PRODUCER apply_async/fails UNSET",
}
"""What is recorded of an app, once each."""
pytestmark = [pytest.mark.deep, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def pythons(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return two Pythons with the same packages: without onejob, and with it."""
    folder = tmp_path_factory.mktemp("beside")
    without, beside = (new_environment(folder / name, *PACKAGES) for name in ("without", "with"))
    install([*pip_of(beside), str(ROOT)])
    return without, beside


@pytest.mark.parametrize("pool", POOLS)
def test_an_app_is_watched_alike_beside_onejob(pythons: tuple[Path, Path], tmp_path: Path, pool: str) -> None:
    """Errors, transactions, spans and results of an app that never imports onejob are the same with it installed."""
    without, beside = (record_of(python, tmp_path / python.parents[1].name, pool) for python in pythons)
    assert without == beside
    assert {*without.values()} == {1}
    expected = EVENTS if pool != "custom" else {"result awaits SUCCESS 42"}  # there Sentry's tracer is replaced, too
    assert expected - without.keys() == set()


def record_of(python: Path, folder: Path, pool: str) -> Counter[str]:
    """Run the app with a worker; return what was recorded, and how often."""
    folder.mkdir()
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHON"))}
    variables |= {"BESIDE": str(folder), "PYTHONPATH": str(Path(__file__).parent)} | POOLS[pool]
    command = [str(python), "-m", "celery", "-A", "beside", "worker", "--pool", pool, "-c", "2", "-l", "INFO"]
    with (folder / "log").open("w") as log:
        worker = subprocess.Popen(command, env=variables, cwd=folder, stdout=log, stderr=log)
    try:
        eventually(lambda: "ready." in (folder / "log").read_text() or worker.poll() is not None, 60)
        subprocess.run([str(python), "-m", "beside"], env=variables, cwd=folder, check=True)
    finally:
        worker.terminate()
        worker.wait(60)
    lines = (folder / "record").read_text().splitlines()
    return Counter(line for line in lines if "backend_cleanup" not in line)
