"""A fork of a prepared process is what a new interpreter would be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests import forks
from tests.celery.harness import ROOT, is_running
from tests.services import eventually

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(not forks.FORKS, reason="needs Linux")
STATE = """
import atexit, json, os, signal, sys, threading, warnings
atexit.register(lambda: print(file=sys.stderr))
default = {number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_DFL}
print(json.dumps({
    "argv": sys.argv, "path": sys.path, "name": __name__, "main": sys.modules["__main__"].__name__,
    "here": globals() is vars(sys.modules["__main__"]), "cwd": os.getcwd(), "environment": dict(os.environ),
    "files": sorted(os.listdir("/proc/self/fd")), "leader": os.getpgid(0) == os.getpid(), "input": sys.stdin.read(),
    "default": sorted(default), "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "threads": threading.active_count(), "filters": [str(each[:4]) for each in warnings.filters],
    "preloaded": "celery" in sys.modules,
}))
sys.exit(3)
"""
WAIT = "import signal; print('ready', flush=True); signal.pause()"
START = """
import os, pathlib, sys
from tests import forks
here, output = pathlib.Path("/"), pathlib.Path(sys.argv[2])
print(forks.fork(["-c", sys.argv[1]], environment=os.environ, cwd=here, output=output).pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("form", ["-c", "-m", "file"])
@pytest.mark.parametrize("variables", [{}, {"PYTHONWARNINGS": "error", "PYTHONPATH": "/nowhere"}])
def test_a_program_finds_what_a_new_interpreter_gives_it(tmp_path: Path, form: str, variables: dict[str, str]) -> None:
    """Arguments, path, environment, folder, files, signals, warnings and exit code are those of a new interpreter."""
    (tmp_path / "program.py").write_text(STATE)
    argv = {"-c": ["-c", STATE, "a"], "-m": ["-m", "program", "a"], "file": ["program.py", "a"]}[form]
    environment = os.environ | variables
    done = forks.run(argv, environment=environment, cwd=tmp_path, modules=("celery",))
    real = subprocess.run(
        [sys.executable, *argv], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
        process_group=0, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    found, expected = json.loads(done.stdout), json.loads(real.stdout)
    assert (found.pop("preloaded"), expected.pop("preloaded")) == (True, False)
    assert found == expected
    assert (done.returncode, done.stderr) == (real.returncode, real.stderr) == (3, "\n")


def test_a_fork_can_be_killed_and_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """A signal ends a fork and is its exit code; a killed process leaves no fork behind."""
    output = tmp_path / "output"
    program = forks.fork(["-c", WAIT], environment=os.environ, cwd=tmp_path, output=output)
    eventually(lambda: output.read_text() == "ready\n")
    program.kill()
    assert program.wait() == -signal.SIGKILL
    command = [sys.executable, "-c", START, WAIT, str(tmp_path / "other")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        os.kill(pid, 0)
        starter.kill()
    eventually(lambda: not is_running(pid))
