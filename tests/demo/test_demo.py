"""The laws of `onejob demo`: the whole of it, with real processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.services import eventually

DEMO = [sys.executable, "-c", "from onejob.cli import main; main()", "demo"]
PATIENCE = 150.0


@pytest.fixture
def place(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a demo whose temporary files are in a folder of this test."""
    return os.environ | {"TMPDIR": str(tmp_path), "COLUMNS": "160"}


def processes_of(folder: Path) -> list[str]:
    """Return what is known of the living processes that were started for a folder."""
    if Path("/proc/self/environ").exists():
        found = (_environment(process) for process in Path("/proc").glob("[0-9]*"))
        return [text for text in found if f"ONEJOB_DEMO_FOLDER={folder}" in text or f"TMPDIR={folder}" in text]
    listed = subprocess.run(["/bin/ps", "axeww", "-o", "command="], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if f"TMPDIR={folder}" in line and "/bin/ps" not in line]


def _environment(process: Path) -> str:
    """Return a process's environment; nothing for one that has ended, is a zombie, or is not ours."""
    with suppress(OSError):
        return (process / "environ").read_text(errors="replace")
    return ""


@pytest.mark.deep
@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize("options", [[], ["--in-memory"]])
def test_the_scenario_succeeds(place: dict[str, str], tmp_path: Path, options: list[str]) -> None:
    """The demo plays to its end with exit code 0, resumes the job after the kill, and leaves nothing behind."""
    told = subprocess.run([*DEMO, *options], env=place, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert told.returncode == 0, told.stdout + told.stderr
    assert "1 admitted, 99 attached" in told.stdout
    assert "killed with SIGKILL" in told.stdout
    assert "resumed on worker" in told.stdout
    assert processes_of(tmp_path) == []
    assert list(tmp_path.glob("onejob-demo-*")) == []


@pytest.mark.deep
@pytest.mark.timeout(PATIENCE)
def test_own_documents(place: dict[str, str], tmp_path: Path) -> None:
    """The demo writes its cards from the folder that it is given."""
    folder = tmp_path / "texts"
    folder.mkdir()
    sentences = " ".join(
        f"The {name} is the largest of the {number} moons that Galileo found near Jupiter in January of 1610."
        for number, name in enumerate(
            "Ganymede Callisto Io Europa Amalthea Himalia Elara Pasiphae Sinope Lysithea".split(), 4
        )
    )
    (folder / "moons.txt").write_text(f"Moons\n\n{sentences}\n\n{sentences}\n")
    told = subprocess.run(
        [*DEMO, "--documents", str(folder)], env=place, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert "(Moons" in told.stdout


@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.deep)])
def test_nothing_survives_the_supervisor(place: dict[str, str], tmp_path: Path, number: signal.Signals) -> None:
    """However the supervisor dies, its broker, workers and server die with it, and its folder goes."""
    with subprocess.Popen([*DEMO, "--stay"], env=place, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as demo:
        try:
            assert demo.stdout is not None
            first = next(line for line in demo.stdout if "The page is at" in line)
            assert re.search(r"http://127\.0\.0\.1:\d+/", first)
            assert len(processes_of(tmp_path)) >= 4
            demo.send_signal(number)
            demo.wait(30)
        finally:
            demo.kill()
    eventually(lambda: not processes_of(tmp_path), timeout=20)
    eventually(lambda: not list(tmp_path.glob("onejob-demo-*")), timeout=20)
