"""The stack of deploy/compose.yaml from the programs of this machine: PostgreSQL, Redis, the API and its workers."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import onejob
from examples.job_api.place import StackError
from examples.processes import Processes
from tests.services import PostgresServer, RedisServer, eventually, postgres_folder, redis_binary

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from examples.job_api.place import Place
    from tests.services import Daemon

ROOT = Path(__file__).resolve().parents[2]
APP = "examples.job_api.app"
ONEJOB = str(Path(sys.executable).with_name("onejob"))
"""The command, as it was installed beside this interpreter."""
START_SECONDS = 60.0
END_SECONDS = 30.0
LOOK_SECONDS = 0.2
"""Seconds between two checks of the processes."""


PROCESSES = 2
"""Processes of one worker: how many jobs it runs at once."""
Servers: TypeAlias = tuple[PostgresServer, RedisServer]


@contextmanager
def servers(place: Place) -> Iterator[Servers]:
    """Start PostgreSQL and Redis on the data of a place, as safe as in production. Raises `ServiceError`."""
    postgres_folder()  # both are looked for before anything is made
    redis_binary()
    folders = [place.folder / name for name in ("postgres", "redis")]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    postgres = PostgresServer(folders[0], "fsync=on")
    broker = RedisServer(folders[1], "--appendonly", "yes", "--maxmemory-policy", "noeviction")
    with ExitStack() as stack:
        postgres.create()
        for server in (postgres, broker):
            stack.callback(server.stop)
            server.start()
        with onejob.Client(postgres.url) as client:
            client.migrate()
        yield postgres, broker


def make_key(place: Place) -> None:
    """Make an API key that may do everything, unless the place has one."""
    if place.key.exists():
        return
    place.keys.unlink(missing_ok=True)
    part = place.key.with_suffix(".part")
    part.touch(mode=0o600)
    command = [ONEJOB, "keys", "add", "operator", "--role", "operate", "--file", str(place.keys)]
    part.write_text(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout, encoding="utf-8")
    part.replace(place.key)


class Stack:
    """The API and the workers. They end with this process, however it ends; setting `ending` stops them."""

    def __init__(self, place: Place, servers: Servers, ending: threading.Event, *, port: int, workers: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._place = place
        self._servers = servers
        self._ending = ending
        self._wanted = workers
        self._numbers = itertools.count(1)
        self._processes = Processes(place.logs)
        self._api = self._start_api(port)
        self._workers: dict[str, Daemon] = {}
        self._ready: set[str] = set()

    def start(self) -> None:
        """Wait until the API answers and the workers are ready. Raises `StackError`."""
        self._await("the API", lambda: b"Uvicorn running on" in self._log("api"))
        self._await("a worker", lambda: len(self._ready) == self._wanted)

    def keep(self) -> None:
        """Restart what ends until `ending` is set. Raises `StackError` if that fails."""
        while not self._ending.wait(LOOK_SECONDS):
            self._mend()

    def close(self) -> None:
        """Stop the workers, which release their jobs, and the API."""
        self._end_workers()
        self._processes.end(self._api, END_SECONDS)
        self._processes.close()

    # --- processes ------------------------------------------------------------------------------------------------

    def _start_api(self, port: int) -> Daemon:
        options = ["--port", str(port), "--keys", str(self._place.keys)]
        return self._processes.start("api", [ONEJOB, "serve", f"{APP}:app", *options], self._environment())

    def _start_worker(self) -> None:
        name = f"worker{next(self._numbers)}"
        options = f"-A {APP} worker -n {name}@%h -c {PROCESSES} -l INFO --without-gossip --without-mingle"
        command = [sys.executable, "-m", "celery", *options.split()]
        self._workers[name] = self._processes.start(name, command, self._environment())

    def _end_workers(self) -> None:
        for worker in self._workers.values():
            worker.process.terminate()
        for worker in self._workers.values():
            self._processes.end(worker, END_SECONDS)
        self._workers.clear()

    def _environment(self) -> dict[str, str]:
        postgres, broker = self._servers
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        own = {"ONEJOB_STORE": postgres.url, "JOB_API_BROKER": broker.url, "PYTHONPATH": os.pathsep.join(paths)}
        return os.environ | own

    # --- supervision -------------------------------------------------------------------------------------------

    def _await(self, name: str, ready: Callable[[], bool]) -> None:
        """Restart what ends until a condition holds, or `ending` is set. Raises `StackError`."""

        def arrived() -> bool:
            self._mend()
            return self._ending.is_set() or ready()

        try:
            eventually(arrived, START_SECONDS)
        except AssertionError:
            msg = f"{name} did not start within {START_SECONDS:g} s; its log is in {self._place.logs}"
            raise StackError(msg) from None

    def _mend(self) -> None:
        """Start every process that should run, and write the state."""
        for server in self._servers:
            if not server.alive:
                raise _ended(type(server).__name__, server.log)
        if not self._api.alive:
            raise _ended("the API", self._place.logs / "api.log")
        self._bury()
        if self._place.paused.exists():
            self._end_workers()
        while not self._place.paused.exists() and len(self._workers) < self._wanted:
            self._start_worker()
        self._ready = {name for name in self._workers if name in self._ready or b" ready." in self._log(name)}
        self._tell()

    def _bury(self) -> None:
        """Remove the workers that have ended after a complete start."""
        for name, worker in list(self._workers.items()):
            if worker.alive:
                continue
            if name not in self._ready:
                raise _ended(name, self._place.logs / f"{name}.log")
            self._processes.kill(self._workers.pop(name))
            print(f"{name} ended with code {worker.process.returncode}; another one starts")

    def _tell(self) -> None:
        postgres, broker = self._servers
        self._place.write_state({
            "pid": os.getpid(), "url": self.url, "key": str(self._place.key), "api": self._api.pid,
            "postgres": {"pid": postgres.pid, "url": postgres.url}, "redis": {"pid": broker.pid, "url": broker.url},
            "wanted": self._wanted, "workers": {name: self._workers[name].pid for name in sorted(self._ready)},
        })  # fmt: skip

    def _log(self, name: str) -> bytes:
        return (self._place.logs / f"{name}.log").read_bytes()


def _ended(name: str, log: Path) -> StackError:
    end = log.read_text(errors="replace")[-2000:]
    return StackError(f"{name} has ended by itself; {log} ends with:\n{end}")
