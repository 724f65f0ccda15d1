"""The laws of examples/job_api: the stack that `make up` starts, the script that checks it, and what compose sets."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from checks.project import ROOT
from examples.job_api.place import Place
from tests.services import eventually, free_port
from tests.tiers import deep

COMMAND = [sys.executable, "-m", "examples.job_api"]
SMOKE = ROOT / "scripts" / "e2e_smoke.sh"
PATIENCE = 100.0
"""Seconds until a stack that starts or ends must have done so; far more than it takes."""


@pytest.fixture
def place() -> Iterator[Place]:
    """Return a place that PostgreSQL's own user may read, unlike the folders of tests."""
    folder = Path(tempfile.mkdtemp(prefix="onejob-job-api-", dir="/tmp"))
    folder.chmod(0o755)
    yield Place(folder)
    shutil.rmtree(folder)


def command(place: Place, *words: str) -> list[str]:
    return [*COMMAND, "--folder", str(place.folder), *words]


def run(place: Place, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(place, *words), cwd=ROOT, capture_output=True, text=True, check=False)


@contextmanager
def stack(place: Place, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Bring a stack up for the block; if it has not ended by then, it is killed."""
    argv = command(place, "up", *options)
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as up:
        try:
            assert up.stdout is not None
            lines: list[str] = []
            ready = any("Ctrl-C ends everything" in (lines.append(line) or line) for line in up.stdout)  # type: ignore[func-returns-value]
            assert ready, "".join(lines)
            yield up
        finally:
            up.kill()


def processes(state: dict[str, Any]) -> list[int]:
    """Return the processes that a state names."""
    servers = [state[name]["pid"] for name in ("postgres", "redis")]
    return [state["pid"], state["api"], *servers, *state["workers"].values()]


def living(pids: list[int]) -> list[int]:
    """Return those processes that are still alive."""
    listed = subprocess.run(
        ["/bin/ps", "-o", "pid=,stat=", "-p", ",".join(map(str, pids))], capture_output=True, text=True, check=False
    ).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if "Z" not in line.split()[1]]


def smoke(place: Place, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHON": sys.executable, "UP_FOLDER": str(place.folder)}
    return subprocess.run([SMOKE, *arguments], env=environment, capture_output=True, text=True, check=False)


@deep
@pytest.mark.timeout(300)
def test_a_stack_answers_and_goes_down_whole(place: Place) -> None:
    """A stack that is up takes a job and shows it, and `down` ends all that `up` has started."""
    with stack(place) as up:
        state = place.state()
        job = submit(state["url"], place)
        assert request(state["url"], place, f"/jobs/{job}")["id"] == job
        assert run(place, "down").returncode == 0
        assert up.wait(PATIENCE) == 0
    assert living(processes(state)) == []


@pytest.mark.deep
@pytest.mark.timeout(600)  # some 60 s of it are work; the rest is for a machine that has other things to do
def test_every_law_holds_from_outside(place: Place) -> None:
    """On a stack of its own the smoke script finds every law kept, and `down` ends all that `up` has started."""
    with stack(place) as up:
        result = smoke(place, place.state()["url"], place.key.read_text().strip())
        assert result.returncode == 0, result.stdout + result.stderr
        lines = result.stdout.splitlines()
        assert lines[-1] == "all laws hold"
        assert len(lines) == SMOKE.read_text().count("\nholds\n") + 2  # the one about keys is indented
        assert {line[:8] for line in lines[:-1]} == {"holds   "}
        started = processes(place.state())
        assert run(place, "down").returncode == 0
        assert up.wait(PATIENCE) == 0
    assert living(started) == []


@pytest.mark.deep
@pytest.mark.timeout(300)
def test_what_is_up_is_up_once_and_ends_whole(place: Place) -> None:
    """A second `up` is refused; Ctrl-C ends everything in order, and the next `up` finds the jobs of the one before."""
    with stack(place) as up:
        state = place.state()
        refused = run(place, "up")
        assert refused.returncode == 1
        assert state["url"] in refused.stderr
        job = submit(state["url"], place)
        up.send_signal(signal.SIGINT)
        assert up.wait(PATIENCE) == 0
    assert living(processes(state)) == []
    assert run(place, "down").stdout == "nothing is up\n"
    with stack(place) as up:
        state = place.state()
        assert request(state["url"], place, f"/jobs/{job}")["id"] == job
        up.kill()
        up.wait(PATIENCE)
    eventually(lambda: not living(processes(state)), PATIENCE)


def submit(url: str, place: Place) -> str:
    body = {"task": "office.count_words", "kwargs": {"text": "one two"}}
    return str(request(url, place, "/jobs", body)["job"]["id"])


def request(url: str, place: Place, path: str, body: object = None) -> Any:
    headers = {"authorization": f"Bearer {place.key.read_text().strip()}"}
    with httpx2.Client(base_url=url, headers=headers, timeout=PATIENCE) as client:
        return (client.get(path) if body is None else client.post(path, json=body)).json()


def test_a_stack_that_is_not_up_is_named(place: Place) -> None:
    """Without a server, the script names the first broken law; workers cannot be stopped; and both exit with 1."""
    checked, stopped = smoke(place, f"http://127.0.0.1:{free_port()}"), run(place, "workers", "stop")
    law = "BROKEN  the server is up, and its ledger and its broker answer: GET /healthz: "
    assert (checked.returncode, checked.stdout[: len(law)]) == (1, law)
    assert (stopped.returncode, stopped.stderr) == (1, "nothing is up: `make up` starts it\n")
