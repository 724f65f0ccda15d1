"""The server: what one connection may cost, bytes that are no HTTP, a real process with its streams, end and log."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from chaos.hangups import hang_up, served
from onejob.api.checked_request import BODY_LIMIT
from onejob.api.problems import SECURITY_HEADERS
from onejob.api.server import PIPELINE_LIMIT, SPARE_CONNECTIONS, Limits
from onejob.celery.app_state import app_state_of
from tests.cases import for_each
from tests.fundamentals.shop import claimed
from tests.http.serving import PATIENCE, serving
from tests.http.shop import BROKER, STORE, build
from tests.pages.browser import on_every_store
from tests.services import Daemon, eventually, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import Receive, Scope, Send

    from onejob.ledger.ledger import Ledger
    from tests.contract.support import StoreAddress
    from tests.http.conftest import Shop
    from tests.http.serving import ServerThread

SHORT = 0.3
GET = b"GET /anything HTTP/1.1\r\nhost: localhost\r\n\r\n"
POST = b"POST /anything HTTP/1.1\r\nhost: localhost\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"


class EchoApp:
    """An app that answers a POST with the names of its headers and the size of its body, a GET once it is released."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.release.set()
        self.seen = 0
        """How many requests have been started."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.seen += 1
        if scope["method"] == "GET":
            await asyncio.to_thread(self.release.wait, PATIENCE)
        size, more = 0, scope["method"] == "POST"
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            size, more = size + len(message.get("body", b"")), message.get("more_body", False)
        names = sorted(name.decode() for name, _ in scope["headers"])
        body = b"a" * 50_000_000 if scope["path"] == "/large" else json.dumps([names, size]).encode()
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@pytest.fixture
def app() -> Iterator[EchoApp]:
    """Return the app."""
    app = EchoApp()
    yield app
    app.release.set()


def read_all(connection: socket.socket) -> bytes:
    """Return what the server sends until it closes the connection."""
    received = b""
    with connection, suppress(ConnectionError):
        while part := connection.recv(65536):
            received += part
    return received


def read_problem(connection: socket.socket) -> tuple[int, str, dict[str, str]]:
    """Return the status, the slug and the headers of the problem after which the server closes the connection."""
    head, _, body = read_all(connection).partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert headers["content-type"] == "application/problem+json"
    assert headers["connection"] == "close"
    assert {name: headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
    return int(first.split()[1]), json.loads(body)["type"].rpartition(":")[2], headers


def test_a_long_head_in_one_read_is_refused(app: EchoApp) -> None:
    """The limit of a head holds however its bytes arrive, also for a second request; a large body is none."""
    long = POST + b"x: " + b"a" * 120_000 + b"\r\ncontent-length: 0\r\n\r\n"
    big = POST + b"content-length: 500000\r\nconnection: close\r\n\r\n" + b"a" * 500_000
    with serving(app) as server:
        for sent in (long, POST.replace(b"/anything", b"/" + b"a" * 70_000) + b"content-length: 0\r\n\r\n"):
            assert read_problem(server.connect(sent))[:2] == (400, "bad-request")
        assert read_all(server.connect(big)).endswith(b"500000]")
        assert app.seen == 1
        assert b"200 OK" not in read_all(server.connect(POST + b"content-length: 0\r\n\r\n" + long)).partition(b"]")[2]


def is_refused(connection: socket.socket, part: bytes) -> bool:
    """Send something over and over; return whether the server closes the connection within 50 MB."""
    with connection, suppress(ConnectionError):
        for _ in range(50_000_000 // len(part)):
            connection.sendall(part)
        return False
    return True


# --- time -----------------------------------------------------------------------------------------------------------


@for_each("limits, sent", [
    (Limits(head=SHORT), (b"", b"\r\n", b"GET", GET[:-2], GET[:-2] + b"x-more: a\r\n")),
    (Limits(body=SHORT), (POST + b"content-length: 5\r\n\r\na", CHUNKED, CHUNKED + b"1\r\na\r\n0\r\nx-t: a")),
])  # fmt: skip
def test_a_slow_request_ends(app: EchoApp, limits: Limits, sent: tuple[bytes, ...]) -> None:
    """A request whose head, body or trailers are incomplete after the limit gets a 408 and its connection is closed."""
    with serving(app, limits) as served:
        for connection in [served.connect(each) for each in sent]:
            assert read_problem(connection)[:2] == (408, "request-timeout")


def test_each_request_has_its_deadline(app: EchoApp) -> None:
    """A response may take longer than its request; the next request has a deadline, which progress does not extend."""
    with serving(app, Limits(head=SHORT, body=SHORT)) as served:
        app.release.clear()
        with served.connect(GET) as connection:
            eventually(lambda: app.seen)
            time.sleep(3 * SHORT)  # as long as no deadline may last
            app.release.set()
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
            connection.sendall(GET[:-2])
            started = time.monotonic()

            def refused() -> bool:
                with suppress(ConnectionError):
                    connection.sendall(b"x-y: z\r\n")
                    return False
                return True

            eventually(refused)
            assert time.monotonic() - started >= SHORT


def test_a_client_that_does_not_read_is_disconnected(app: EchoApp) -> None:
    """A client that leaves a full buffer of its response unread for the limit is disconnected."""
    with serving(app, Limits(response=SHORT)) as served, served.connect(GET.replace(b"/anything", b"/large")):
        eventually(lambda: app.seen)
        eventually(lambda: not served.connections)


# --- numbers --------------------------------------------------------------------------------------------------------


def test_pipelined_requests_are_limited(app: EchoApp) -> None:
    """As many requests as may wait are answered in order; with more the connection ends, and none of them runs."""
    with serving(app) as served:
        app.release.clear()
        requests = [POST + b"content-length: %d\r\n\r\n" % size + b"a" * size for size in range(PIPELINE_LIMIT)]
        with served.connect(b"".join([GET, *requests])) as connection:
            eventually(lambda: app.seen)
            app.release.set()
            received = b""
            while received.count(b"HTTP/1.1 200") <= PIPELINE_LIMIT or not received.endswith(b"]"):
                received += connection.recv(65536)
        sizes = [int(part.rpartition(b"]")[0].split()[-1]) for part in received.split(b"HTTP/1.1 200")[2:]]
        assert sizes == list(range(PIPELINE_LIMIT))
        eventually(lambda: not served.connections)
        app.release.clear()
        app.seen = 0
        connections = [served.connect(GET * 4000) for _ in range(5)]
        eventually(lambda: not served.connections)
        app.release.set()
        assert b"".join(map(read_all, connections)).count(b"HTTP/1.1 200") <= len(connections)
        assert app.seen <= len(connections)


def test_requests_at_once_are_limited(app: EchoApp) -> None:
    """Above the limit a request gets a 503, but not a health check, and far above it the end; later ones are served."""
    with serving(app, Limits(connections=3)) as served, ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(served.connect())
        eventually(lambda: served.connections == 3)
        status, kind, headers = read_problem(served.connect(GET))
        assert (status, kind, headers["retry-after"]) == (503, "overloaded", "1")
        with served.connect(GET.replace(b"/anything", b"/healthz")) as check:
            assert check.recv(65536).startswith(b"HTTP/1.1 200")
        eventually(lambda: served.connections == 3)
        for _ in range(SPARE_CONNECTIONS):
            stack.enter_context(served.connect())
        eventually(lambda: served.connections == 3 + SPARE_CONNECTIONS)
        assert read_all(served.connect()) == b""
        stack.close()
        eventually(lambda: not served.connections)
        with served.connect(GET) as connection:
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")


# --- trailers and bodies --------------------------------------------------------------------------------------------


def test_trailers_are_limited_and_dropped(app: EchoApp) -> None:
    """Trailers are no headers, and are limited like these, however large the body; so is a body that nobody reads."""
    chunk = b"%x\r\n" % BODY_LIMIT + b"a" * BODY_LIMIT + b"\r\n"
    with serving(app) as served:
        with served.connect(CHUNKED + b"1\r\na\r\n0\r\nauthorization: Bearer x\r\ncontent-type: a\r\n\r\n") as client:
            names, size = json.loads(client.recv(65536).rpartition(b"\r\n")[2])
        assert (names, size) == (["host", "transfer-encoding"], 1)
        for path in (b"GET /anything", b"POST /anything"):
            connection = served.connect(path + CHUNKED.partition(b"/anything")[2] + chunk, b"0\r\n")
            assert is_refused(connection, b"x-trailer: " + b"a" * 9_000 + b"\r\n")
        unread = served.connect(b"GET" + CHUNKED.removeprefix(b"POST"))
        assert is_refused(unread, b"%x\r\n" % 65536 + b"a" * 65536 + b"\r\n")


# --- what is no HTTP ------------------------------------------------------------------------------------------------


def statuses_of(server: ServerThread, *requests: bytes) -> list[bytes]:
    """Send raw requests and a last valid one, and return the status of each response."""
    return re.findall(rb"HTTP/1\.1 (\d{3}) ", read_all(server.connect(b"".join([*requests, LAST]))))


LAST = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
JSON = b"host: localhost\r\ncontent-type: application/json\r\n"
SMUGGLED = b"POST /jobs/x/cancel HTTP/1.1\r\n" + JSON + b"content-length: 2\r\n\r\n{}"
BAD: dict[str, bytes] = {
    "a very long line": b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "two lengths": b"POST /jobs HTTP/1.1\r\n" + JSON + b"content-length: 1\r\ncontent-length: 2\r\n\r\n{}",
    "a length that is none": b"POST /jobs HTTP/1.1\r\n" + JSON + b"content-length: -1\r\n\r\n{}",
    "an unknown coding": b"POST /jobs HTTP/1.1\r\n" + JSON + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a chunk that is none": b"POST /jobs HTTP/1.1\r\n" + JSON + b"transfer-encoding: chunked\r\n\r\nzz\r\n\r\n",
    "a header without a name": b"GET /jobs HTTP/1.1\r\nhost: localhost\r\n: x\r\n\r\n",
}


def test_invalid_http_is_refused(shop: Shop) -> None:
    """What is no HTTP is a problem, and contradictory HTTP is refused: nothing after it is processed."""
    with serving(shop.client.app) as server:
        for sent in (b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"\x16\x03\x01\x00"):
            assert read_problem(server.connect(sent))[:2] == (400, "bad-request")
        for name, request in BAD.items():
            assert statuses_of(server, request) in ([b"400"], []), f"{name}: a reset may overtake the response"
        for coding in (b"chunked", b"Chunked", b"chunked, identity", b"\tchunked"):
            both = b"content-length: %d\r\ntransfer-encoding: %s\r\n\r\n0\r\n\r\n" % (5 + len(SMUGGLED), coding)
            for begin in (b"POST /jobs", b"GET /jobs"):
                assert statuses_of(server, begin + b" HTTP/1.1\r\n" + JSON + both + SMUGGLED) == [b"400"]
        assert statuses_of(server) == [b"200"]


def test_the_server_is_not_a_proxy(shop: Shop) -> None:
    """A request to another host, or with two Host headers, is refused."""
    with serving(shop.client.app) as server:
        for hosts in (["evil.example"], ["localhost", "evil.example"], ["evil.example", "localhost"]):
            lines = "".join(f"host: {host}\r\n" for host in hosts)
            for path in ("/jobs", "http://evil.example/jobs"):
                assert statuses_of(server, f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())[0] in {b"400", b"403"}


# --- clients that disconnect ----------------------------------------------------------------------------------------


SEED = 1
HANGUPS = 300


@on_every_store
def test_disconnects_do_not_affect_other_clients(store_address: StoreAddress) -> None:
    """While clients disconnect at every stage of a request, others get their own jobs, and no thread or watch leaks."""
    with served(store_address.url, store_address.namespace, "memory://") as (app, server):
        count = hang_up(app, server, HANGUPS, 4, SEED)
    assert (count.held, count.asked > 0, count.hangups.total()) == (True, True, HANGUPS), count


ROOT = Path(__file__).parents[2]
SERVE = "from onejob.cli import main; main()"
PATIENT = 40.0
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
        self.client = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENT, limits=limits)

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
def environment(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the environment of the server: an SQLite ledger, and a broker in its own memory."""
    return [f"{STORE}=sqlite:///{tmp_path_factory.mktemp('live') / 'ledger.db'}", f"{BROKER}=memory://"]


@contextmanager
def running(environment: list[str], folder: Path, *options: str) -> Iterator[Live]:
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
    with running(environment, tmp_path_factory.mktemp("server")) as live:
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
    with running(environment, tmp_path, "--log-json") as live:
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
