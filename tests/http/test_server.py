"""A real server process: concurrent submissions, waits that hold no thread, streams of events, its end and its log."""

from __future__ import annotations

import json
import signal
import socket
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from onejob.celery.app_state import app_state_of
from onejob.jobs.records import Query
from tests.fundamentals.shop import claimed
from tests.http.shop import BROKER, STORE, build
from tests.quiet import LogReader
from tests.services import Daemon, eventually, free_port, start_redis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onejob.ledger.ledger import Ledger

ROOT = Path(__file__).parents[2]
SERVE = "from onejob.cli import main; main()"
PATIENCE = 40.0
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


class Live:
    """A server, its address, and the ledger behind it."""

    def __init__(self, ledger: Ledger, environment: list[str], folder: Path, *options: str) -> None:
        port = free_port()
        serve = ["serve", "tests.http.shop:app", "--port", str(port), *options]
        self.log = folder / "log"
        self.process = Daemon(["env", *environment, sys.executable, "-c", SERVE, *serve], log=self.log, cwd=ROOT)
        self.address, self.ledger = ("127.0.0.1", port), ledger
        # The server closes a connection that is idle for 5 s: a request at that moment would get no answer.
        limits = httpx2.Limits(max_connections=300, keepalive_expiry=1)
        self.client = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE, limits=limits)

    def answers(self) -> bool:
        """Return whether the server is ready."""
        try:
            return self.client.get("/readyz").status_code == 200
        except httpx2.TransportError:
            return False

    def submitted(self, order_id: int) -> str:
        """Submit a job and return its id."""
        body = {"task": "shop.invoice", "kwargs": {"order_id": order_id}}
        return str(self.client.post("/jobs", json=body).json()["job"]["id"])

    def memory(self) -> int:
        """Return the largest resident memory that the server has had so far, in MB."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Return the environment of the server and the worker: an SQLite ledger and a Redis broker."""
    folder = tmp_path_factory.mktemp("live")
    redis = start_redis(folder)
    yield [f"{STORE}=sqlite:///{folder / 'ledger.db'}", f"{BROKER}={redis.url}"]
    redis.stop()


@contextmanager
def served(environment: list[str], folder: Path, *options: str) -> Iterator[Live]:
    """Run `onejob serve` for the length of a block."""
    app = build(*(each.partition("=")[2] for each in environment[:2]))
    live = Live(app_state_of(app).ledger, environment, folder, *options)
    eventually(live.answers, 30)
    yield live
    live.client.close()
    live.process.end(signal.SIGTERM)
    live.ledger.close()
    app.close()


@pytest.fixture(scope="module")
def live(environment: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Return a running server."""
    with served(environment, tmp_path_factory.mktemp("server")) as live:
        yield live


def test_concurrent_submissions_get_one_job(live: Live) -> None:
    """Of fifty concurrent equal submissions one is admitted, the others are attached, and none fails."""
    body = {"task": "shop.invoice", "kwargs": {"order_id": 50}}
    with ThreadPoolExecutor(50) as pool:
        responses = list(pool.map(lambda _: live.client.post("/jobs", json=body), range(50)))
    assert Counter(response.status_code for response in responses) == {202: 1, 200: 49}
    assert len({response.json()["job"]["id"] for response in responses}) == 1
    assert Counter(response.json()["outcome"] for response in responses) == {"admitted": 1, "attached": 49}


# --- waits and streams ----------------------------------------------------------------------------------------------


def test_waiting_holds_no_thread(live: Live) -> None:
    """Two hundred waits for one job do not block other requests, and all get its result; a change is enough for one."""
    job_id = live.submitted(3)
    tag = live.client.get(f"/jobs/{job_id}").headers["etag"]
    headers = {"prefer": "wait=1", "if-none-match": tag}
    assert live.client.get(f"/jobs/{job_id}", headers=headers).status_code == 304
    with ThreadPoolExecutor(201) as pool:
        waiting = [pool.submit(live.client.get, f"/jobs/{job_id}", headers={"prefer": "wait=30"}) for _ in range(200)]
        changing = pool.submit(live.client.get, f"/jobs/{job_id}", headers=headers | {"prefer": "wait=30"})
        assert live.client.get(f"/jobs/{live.submitted(4)}").json()["state"] == "queued"
        job = claimed(live.ledger, job_id)
        assert changing.result().json()["state"] == "running"
        assert not any(each.done() for each in waiting)
        live.ledger.complete(job, "1")
        assert {each.result().json()["state"] for each in waiting} == {"completed"}


def events(live: Live, job_id: str, after: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream as they arrive."""
    headers = {} if after is None else {"last-event-id": after}
    with live.client.stream("GET", f"/jobs/{job_id}/events", headers=headers) as response:
        fields: dict[str, Any] = {}
        for line in response.iter_lines():
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif "data" in fields:
                yield fields | {"data": json.loads(fields["data"])}
                fields = {}


def test_a_stream_has_each_change(live: Live) -> None:
    """A stream has the job and each change of state and progress, to its end; one that resumes has the later ones."""
    job_id = live.submitted(5)
    stream = events(live, job_id)
    first = next(stream)
    assert (first["event"], first["data"]["state"]) == ("state", "queued")
    job = claimed(live.ledger, job_id)
    running = next(stream)
    assert (running["event"], running["data"]["state"]) == ("state", "running")
    again = events(live, job_id, after=first["id"])
    assert next(again)["data"]["state"] == "running"
    live.ledger.report(job, '{"done": 1}')
    for each in (next(stream), next(again)):
        assert (each["event"], each["data"]["progress"]) == ("progress", {"done": 1})
    live.ledger.complete(job, "1")
    for rest in (stream, again):
        assert [(each["event"], each["data"]["state"]) for each in rest] == [("state", "completed")]


# --- what one client may cost ---------------------------------------------------------------------------------------


@linux_only
def test_no_connection_costs_memory(live: Live) -> None:
    """Trailers without end after a large body, and 200 KB of pipelined requests from twenty clients each, cost none."""
    before = live.memory()
    head = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    trailers = b"".join(b"x-%03d: %s\r\n" % (number, b"a" * 50) for number in range(1000))
    with socket.create_connection(live.address, timeout=30) as connection, suppress(ConnectionError):
        connection.sendall(head + b"transfer-encoding: chunked\r\n\r\n")
        connection.sendall((b"10000\r\n" + b"a" * 65536 + b"\r\n") * 100 + b"0\r\n")
        for _ in range(500):
            connection.sendall(trailers)
    with ExitStack() as stack:
        for _ in range(20):
            connection = stack.enter_context(socket.create_connection(live.address, timeout=30))
            with suppress(ConnectionError):
                connection.sendall((head + b"\r\n") * 4_700)
        assert live.client.get("/healthz").status_code == 200
    assert live.memory() - before < 30


# --- the end of a server, and its log -------------------------------------------------------------------------------

KEY = "onejob_" + "Zx9-_" * 8
WITH_KEY = (
    f"/{KEY}", f"?key={KEY}", f"?task={KEY}", f"?x=onejob%5F{KEY[7:]}", f"?access_token={KEY[7:]}",
    f"/x?limit=1&api%5Fkey={KEY[7:]}", f"/x/{KEY}/y?a=b",
)  # fmt: skip


def test_shutdown_ends_streams_and_waits(environment: list[str], tmp_path: Path) -> None:
    """A server that is terminated ends its streams and waits, and its log is lines of JSON without any API key."""
    with served(environment, tmp_path, "--log-json") as live:
        job_id = live.submitted(9)
        for path in (*WITH_KEY, "?limit=7", "/x%0AERROR:%20forged"):
            live.client.get(f"/jobs{path}")
        stream = events(live, job_id)
        assert next(stream)["data"]["state"] == "queued"
        steps: list[str] = []
        trace = {"trace": lambda step, _info: steps.append(step)}
        with ThreadPoolExecutor(1) as pool:
            wait = pool.submit(live.client.get, f"/jobs/{job_id}", headers={"prefer": "wait=30"}, extensions=trace)
            eventually(lambda: "http11.send_request_body.complete" in steps, 30)
            assert live.answers()  # sent later, so that the server has read the request before it
            live.process.process.terminate()
            assert [*stream] == []  # it ends as a stream ends
            assert (wait.result(30).status_code, wait.result().json()["state"]) == (200, "queued")
        live.process.process.wait(20)
        log = live.log.read_text()
    notice, *lines = log.splitlines()
    records = [json.loads(line) for line in lines]
    assert notice.startswith("No API keys")
    assert [record["outcome"] for record in records if record.get("job_id") == job_id] == ["admitted"]
    assert {"onejob.jobs", "uvicorn.access", "uvicorn.error"} <= {record["logger"] for record in records}
    assert (log.count("[redacted]"), "GET /jobs?limit=7 " in log) == (len(WITH_KEY), True)
    assert [text for text in (KEY[7:], '"ERROR"') if text in log] == []


# --- a worker -------------------------------------------------------------------------------------------------------


@contextmanager
def working(environment: list[str], log: Path) -> Iterator[Daemon]:
    """Run a worker for the length of a block."""
    command = [sys.executable, "-m", "celery", "-A", "tests.http.shop", "worker", "-c", "1", "--without-gossip"]
    worker = Daemon(["env", *environment, *command], log=log, cwd=ROOT)
    try:
        yield worker
    finally:
        worker.process.terminate()
        worker.process.wait(PATIENCE)


def test_a_worker_runs_a_submitted_job(live: Live, environment: list[str], tmp_path: Path) -> None:
    """A job submitted over HTTP runs on a worker, once, and its result is returned over HTTP."""
    for job in live.ledger.find(Query(limit=1000)):
        live.ledger.cancel(job.id)
    with working(environment, tmp_path / "log"):
        job_id = live.submitted(8)
        headers = {"prefer": "wait=30"}
        response = eventually(lambda: _ended(live.client.get(f"/jobs/{job_id}", headers=headers)), PATIENCE)
    assert (response["state"], response["result"], response["attempt"]) == ("completed", "invoice 8", 1)
    assert [*LogReader(tmp_path / "log").troubles()] == []


def _ended(response: Any) -> Any:
    return response.json() if response.json()["finished_at"] else None
