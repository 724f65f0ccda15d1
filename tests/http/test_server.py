"""A real server process: concurrent submissions, waits that hold no thread, streams of events."""

from __future__ import annotations

import json
import signal
import socket
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from onejob.celery.app_state import app_state_of
from onejob.jobs.records import Query
from tests.http.shop import BROKER, STORE, build
from tests.services import Daemon, eventually, free_port, start_redis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onejob.jobs.model import Job
    from onejob.ledger.ledger import Ledger

ROOT = Path(__file__).parents[2]
SERVE = "from onejob.cli import main; main()"
PATIENCE = 40.0


class Live:
    """A server, its address, and the ledger behind it."""

    def __init__(self, url: str, ledger: Ledger, pid: int = 0) -> None:
        self.url = url
        self.pid = pid
        self.ledger = ledger
        # The server closes a connection that is idle for 5 s: a request at that moment would get no answer.
        limits = httpx2.Limits(max_connections=300, keepalive_expiry=1)
        self.client = httpx2.Client(base_url=url, timeout=PATIENCE, limits=limits)

    def submitted(self, order_id: int) -> str:
        """Submit a job and return its id."""
        body = {"task": "shop.invoice", "kwargs": {"order_id": order_id}}
        return str(self.client.post("/jobs", json=body).json()["job"]["id"])

    def claimed(self, job_id: str) -> Job:
        """Claim a job, as a worker does."""
        job = self.ledger.claim(job_id, nonce="n", node="node").job
        assert job is not None
        return job


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Return the environment of the server and the worker: an SQLite ledger and a Redis broker."""
    folder = tmp_path_factory.mktemp("live")
    redis = start_redis(folder)
    yield [f"{STORE}=sqlite:///{folder / 'ledger.db'}", f"{BROKER}={redis.url}"]
    redis.stop()


def served(environment: list[str], folder: Path, *options: str) -> tuple[Daemon, str]:
    """Start `onejob serve`, and return the process and its address."""
    port = free_port()
    serve = ["serve", "tests.http.shop:app", "--port", str(port), *options]
    command = ["env", *environment, sys.executable, "-c", SERVE, *serve]
    return Daemon(command, log=folder / "log", cwd=ROOT), f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def live(environment: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Return a running server."""
    server, url = served(environment, tmp_path_factory.mktemp("server"))
    store, broker = (each.partition("=")[2] for each in environment)
    ledger = app_state_of(app := build(store, broker)).ledger
    live = Live(url, ledger, server.pid)
    eventually(lambda: _answers(live.client), 30)
    yield live
    live.client.close()
    server.process.terminate()
    server.process.wait(20)
    ledger.close()
    app.close()


def _answers(client: httpx2.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx2.TransportError:
        return False


def test_concurrent_submissions_get_one_job(live: Live) -> None:
    """Of fifty concurrent equal submissions one is admitted, the others are attached, and none fails."""
    body = {"task": "shop.invoice", "kwargs": {"order_id": 50}}
    with ThreadPoolExecutor(50) as pool:
        responses = list(pool.map(lambda _: live.client.post("/jobs", json=body), range(50)))
    assert Counter(response.status_code for response in responses) == {202: 1, 200: 49}
    assert len({response.json()["job"]["id"] for response in responses}) == 1
    assert Counter(response.json()["outcome"] for response in responses) == {"admitted": 1, "attached": 49}


def test_a_wait_ends_with_the_job(live: Live) -> None:
    """`Prefer: wait` ends when the job has ended, long before its timeout."""
    job_id = live.submitted(1)
    job = live.claimed(job_id)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(live.client.get, f"/jobs/{job_id}", headers={"prefer": "wait=30"})
        started = time.monotonic()
        live.ledger.complete(job, '"done"')
        response = waiting.result()
    assert time.monotonic() - started < 20
    assert (response.json()["state"], response.json()["result"]) == ("completed", "done")
    assert response.headers["preference-applied"] == "wait=30"


def test_a_wait_ends_with_a_change(live: Live) -> None:
    """With If-None-Match a wait ends with the first change, or with 304 after its timeout."""
    job_id = live.submitted(2)
    tag = live.client.get(f"/jobs/{job_id}").headers["etag"]
    headers = {"prefer": "wait=1", "if-none-match": tag}
    assert live.client.get(f"/jobs/{job_id}", headers=headers).status_code == 304
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(live.client.get, f"/jobs/{job_id}", headers=headers | {"prefer": "wait=30"})
        live.claimed(job_id)
        assert waiting.result().json()["state"] == "running"


def test_waiting_holds_no_thread(live: Live) -> None:
    """Two hundred waits for one job do not block other requests, and all get its result."""
    job_id = live.submitted(3)
    job = live.claimed(job_id)
    with ThreadPoolExecutor(200) as pool:
        waiting = [pool.submit(live.client.get, f"/jobs/{job_id}", headers={"prefer": "wait=30"}) for _ in range(200)]
        assert live.client.get(f"/jobs/{live.submitted(4)}").json()["state"] == "queued"
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
    """A stream has the current job, then each change of state and progress, and ends with the job."""
    job_id = live.submitted(5)
    stream = events(live, job_id)
    first = next(stream)
    assert (first["event"], first["data"]["state"]) == ("state", "queued")
    job = live.claimed(job_id)
    running = next(stream)
    assert (running["event"], running["data"]["state"]) == ("state", "running")
    live.ledger.report(job, '{"done": 1}')
    progress = next(stream)
    assert (progress["event"], progress["data"]["progress"]) == ("progress", {"done": 1})
    live.ledger.complete(job, "1")
    assert [(each["event"], each["data"]["state"]) for each in stream] == [("state", "completed")]


def test_a_stream_resumes_after_the_last_event(live: Live) -> None:
    """A client that reconnects with Last-Event-ID gets only later changes."""
    job_id = live.submitted(6)
    first = next(events(live, job_id))
    job = live.claimed(job_id)
    again = events(live, job_id, after=first["id"])
    assert next(again)["data"]["state"] == "running"
    live.ledger.complete(job, "1")
    assert [each["data"]["state"] for each in again] == ["completed"]


def test_a_hundred_streams_share_one_job(live: Live) -> None:
    """All streams of a job get its events, and the server handles other requests meanwhile."""
    job_id = live.submitted(7)
    job = live.claimed(job_id)
    with ThreadPoolExecutor(100) as pool:
        streams = [events(live, job_id) for _ in range(100)]
        assert {event["data"]["state"] for event in pool.map(next, streams)} == {"running"}
        assert live.client.get("/healthz").status_code == 200
        live.ledger.complete(job, "1")
        ends = list(pool.map(_states, streams))
    assert set(ends) == {("completed",)}


def test_shutdown_ends_streams_and_waits(live: Live, environment: list[str], tmp_path: Path) -> None:
    """A server that is terminated ends its streams, and waits respond with the current job."""
    server, url = served(environment, tmp_path)
    other = Live(url, live.ledger)
    eventually(lambda: _answers(other.client), 30)
    job_id = other.submitted(9)
    stream = events(other, job_id)
    assert next(stream)["data"]["state"] == "queued"
    steps: list[str] = []
    extensions = {"trace": lambda step, _info: steps.append(step)}
    with ThreadPoolExecutor(1) as pool:
        wait = pool.submit(other.client.get, f"/jobs/{job_id}", headers={"prefer": "wait=30"}, extensions=extensions)
        eventually(lambda: "http11.send_request_body.complete" in steps, 30)
        assert _answers(other.client)  # sent later, so that the server has read the request before it
        server.process.terminate()
        assert list(stream) == []  # it ends as a stream ends
        response = wait.result(30)
    server.process.wait(20)
    other.client.close()
    assert not server.alive
    assert (response.status_code, response.json()["state"]) == (200, "queued")
    assert "ERROR" not in (tmp_path / "log").read_text()


def test_the_log_is_json_lines(live: Live, environment: list[str], tmp_path: Path) -> None:
    """With `--log-json` every line of the log is JSON, of job events and requests alike."""
    server, url = served(environment, tmp_path, "--log-json")
    other = Live(url, live.ledger)
    eventually(lambda: _answers(other.client), 30)
    job_id = other.submitted(10)
    other.client.get("/jobs/x%0AERROR:%20forged")
    server.process.terminate()
    server.process.wait(20)
    other.client.close()
    notice, *lines = (tmp_path / "log").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert notice.startswith("No API keys")
    assert [record["outcome"] for record in records if record.get("job_id") == job_id] == ["admitted"]
    assert {"onejob.jobs", "uvicorn.access", "uvicorn.error"} <= {record["logger"] for record in records}


def _states(stream: Iterator[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(each["data"]["state"] for each in stream)


@pytest.mark.parametrize("piece", [b"x-long: " + b"a" * 70_000, b"a" * 70_000, b"x-many: a\r\n" * 7_000])
def test_headers_are_limited(live: Live, piece: bytes) -> None:
    """A request with more than 64 KiB of headers gets a 4XX and its connection is closed."""
    host, _, port = live.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n")
        response = b""
        with suppress(ConnectionError):
            for _ in range(10):
                connection.sendall(piece)
        with suppress(ConnectionError):
            response = connection.recv(1000)
    assert response == b"" or response.startswith(b"HTTP/1.1 4")
    assert live.client.get("/healthz").status_code == 200


def memory(live: Live) -> int:
    """Return the largest resident memory that the server has had so far, in MB."""
    lines = Path(f"/proc/{live.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))


def connected(live: Live) -> socket.socket:
    """Open a connection."""
    host, _, port = live.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=30)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_endless_trailers_cost_no_memory(live: Live) -> None:
    """A connection that sends a large body, which nobody reads, and then trailers without end costs no memory."""
    before = memory(live)
    head = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n"
    trailers = b"".join(b"x-%03d: %s\r\n" % (number, b"a" * 50) for number in range(1000))
    with connected(live) as connection, suppress(ConnectionError):
        connection.sendall(head + (b"10000\r\n" + b"a" * 65536 + b"\r\n") * 100 + b"0\r\n")
        for _ in range(500):
            connection.sendall(trailers)
    assert memory(live) - before < 30


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_pipelined_requests_cost_no_memory(live: Live) -> None:
    """Twenty connections that send 200 KB of requests each, and read nothing, cost no memory and delay nobody."""
    before = memory(live)
    with ExitStack() as stack:
        for _ in range(20):
            connection = stack.enter_context(connected(live))
            with suppress(ConnectionError):
                connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 4_700)
        assert live.client.get("/healthz").status_code == 200
    assert memory(live) - before < 30


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_lists_cost_little_memory(live: Live) -> None:
    """Eight clients that list many large results at once cost little memory."""
    result = json.dumps("a" * 240_000)
    for number in range(100, 140):
        live.ledger.complete(live.claimed(live.submitted(number)), result)
    before = memory(live)
    with ThreadPoolExecutor(8) as pool:
        responses = list(pool.map(lambda _: live.client.get("/jobs?limit=200&include=result"), range(16)))
    assert {response.status_code for response in responses} == {200}
    assert max(len(response.content) for response in responses) < 1_100_000
    assert memory(live) - before < 60


def test_the_access_log_has_no_key(live: Live, environment: list[str], tmp_path: Path) -> None:
    """An API key that a client puts into a URL, where none is accepted, is not logged, however it is written."""
    server, url = served(environment, tmp_path)
    other = Live(url, live.ledger)
    eventually(lambda: _answers(other.client), 30)
    key = "onejob_" + "Zx9-_" * 8
    written = (f"/{key}", f"?key={key}", f"?task={key}", f"?x=onejob%5F{key[7:]}", f"?access_token={key[7:]}")
    for path in (*written, f"/x?limit=1&api%5Fkey={key[7:]}", f"/x/{key}/y?a=b"):
        other.client.get(f"/jobs{path}")
    other.client.get("/jobs?limit=7")
    server.end(signal.SIGTERM)
    other.client.close()
    log = (tmp_path / "log").read_text()
    assert log.count("[redacted]") == 7
    assert "GET /jobs?limit=7 " in log
    assert key[7:] not in log


@pytest.mark.parametrize("end", [b"x-trailer: " + b"a" * 9_000 + b"\r\n", b"a" * 9_000])
def test_trailers_are_limited(live: Live, end: bytes) -> None:
    """Trailers of a chunked body are limited like headers."""
    host, _, port = live.url.removeprefix("http://").partition(":")
    head = b"POST /jobs HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(head + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n")
        with pytest.raises(ConnectionError):
            connection.sendall(end * 10_000)
    assert live.client.get("/healthz").status_code == 200


def test_a_worker_runs_a_submitted_job(live: Live, environment: list[str], tmp_path: Path) -> None:
    """A job submitted over HTTP runs on a worker, once, and its result is returned over HTTP."""
    for job in live.ledger.find(Query(limit=1000)):
        live.ledger.cancel(job.id)
    command = [sys.executable, "-m", "celery", "-A", "tests.http.shop", "worker", "-c", "1", "--without-gossip"]
    worker = Daemon(["env", *environment, *command], log=tmp_path / "log", cwd=ROOT)
    try:
        job_id = live.submitted(8)
        headers = {"prefer": "wait=30"}
        response = eventually(lambda: _ended(live.client.get(f"/jobs/{job_id}", headers=headers)), PATIENCE)
    finally:
        worker.process.terminate()
        worker.process.wait(30)
    assert (response["state"], response["result"], response["attempt"]) == ("completed", "invoice 8", 1)


def _ended(response: Any) -> Any:
    return response.json() if response.json()["finished_at"] else None
