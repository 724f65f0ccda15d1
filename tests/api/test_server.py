"""The server: what one connection may cost, bytes that are no HTTP, a real process with its streams, end and log."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.types import Receive, Scope, Send

from chaos.hangups import hang_up, served
from onejob.api.checked_request import BODY_LIMIT
from onejob.api.problems import SECURITY_HEADERS
from onejob.api.server import PIPELINE_LIMIT, SPARE_CONNECTIONS, Limits
from tests.api.conftest import Shop
from tests.api.serving import PATIENCE, ServerThread, serving
from tests.api.shop import BROKER, STORE
from tests.cases import for_each
from tests.conftest import on_every_store
from tests.services import Daemon, eventually, free_port
from tests.stores.support import StoreAddress

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
    app = EchoApp()
    yield app
    app.release.set()


def read_all(connection: socket.socket) -> bytes:
    received = b""
    with connection, suppress(ConnectionError):
        while part := connection.recv(65536):
            received += part
    return received


def read_echo(connection: socket.socket) -> Any:
    """Return what the app has answered; the connection stays open."""
    response = HTTPResponse(connection)
    response.begin()
    return json.load(response)


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


def test_a_client_that_still_sends_gets_the_refusal(app: EchoApp) -> None:
    """A client whose request is refused can send on, and gets the response; one that sends for ever does not."""
    with serving(app) as server:
        connection = server.connect()
        connection.sendall(POST + b"x: " + b"a" * 4_000_000)
        assert read_problem(connection)[:2] == (400, "bad-request")
        assert is_refused(server.connect(POST + b"x: "), b"a" * 65536)
        eventually(lambda: not server.connections)


def test_a_client_that_ends_its_side_gets_the_response_to_a_post() -> None:
    """The response to a POST is sent, and the connection closed, also if the client has shut its sending side."""
    shut = threading.Event()

    async def respond(_scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await asyncio.to_thread(shut.wait, PATIENCE)
        for _ in range(10):  # the event loop reads the end
            await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    with serving(respond) as server:
        for sent, received in (
            (POST + b"content-length: 1\r\n\r\na", b"\r\n\r\nok"), (POST + b"content-length: 2\r\n\r\na", b""),
            (GET, b""), (GET[:5], b""), (b"", b""),
        ):  # fmt: skip
            shut.clear()
            connection = server.connect(sent)
            connection.shutdown(socket.SHUT_WR)
            shut.set()
            assert read_all(connection)[-6:] == received


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
            read_echo(connection)
            started = time.monotonic()
            connection.sendall(GET[:-2])

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


def test_a_stream_ends_when_a_pipelining_client_has_gone() -> None:
    """An app hears that its client has gone, also while another request waits behind the one that it answers."""
    heard: list[str] = []

    async def stream(_scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        end = asyncio.ensure_future(receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not end.done():
            await send({"type": "http.response.body", "body": b"a", "more_body": True})
            await asyncio.sleep(0.01)
        heard.append(end.result()["type"])

    with serving(stream) as served:
        with served.connect(GET * 2) as connection:
            assert connection.recv(1)
        eventually(lambda: heard == ["http.disconnect"])


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
            names, size = read_echo(client)
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


def test_invalid_http_is_refused(shop: Shop) -> None:
    """What is no HTTP is a problem, and contradictory HTTP is refused: nothing after it is processed."""
    with serving(shop.client.app) as server:
        for sent in (b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"\x16\x03\x01\x00"):
            assert read_problem(server.connect(sent))[:2] == (400, "bad-request")
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
    assert count.held, count
    assert count.asked > 0, count
    assert count.hangups.total() == HANGUPS, count


# The server closes a connection that is idle for 5 s: a request at that moment would get no answer.
LIMITS = httpx2.Limits(max_connections=300, keepalive_expiry=1)


def client_of(url: str) -> httpx2.Client:
    return httpx2.Client(base_url=url, timeout=2 * PATIENCE, limits=LIMITS)


def submitted(client: httpx2.Client, order_id: int) -> str:
    body = {"task": "shop.invoice", "kwargs": {"order_id": order_id}}
    return str(client.post("/jobs", json=body).json()["job"]["id"])


@pytest.fixture
def client(shop: Shop) -> Iterator[httpx2.Client]:
    with serving(shop.client.app) as server, client_of(server.url) as client:
        yield client


# --- waits and streams ----------------------------------------------------------------------------------------------


def test_waiting_holds_no_thread(shop: Shop, client: httpx2.Client) -> None:
    """Two hundred waits for one job do not block other requests, and all get its result; a change is enough for one."""
    job_id = submitted(client, 3)
    tag = client.get(f"/jobs/{job_id}").headers["etag"]
    headers = {"prefer": "wait=1", "if-none-match": tag}
    assert client.get(f"/jobs/{job_id}", headers=headers).status_code == 304
    with ThreadPoolExecutor(201) as pool:
        waiting = [pool.submit(client.get, f"/jobs/{job_id}", headers={"prefer": "wait=30"}) for _ in range(200)]
        changing = pool.submit(client.get, f"/jobs/{job_id}", headers=headers | {"prefer": "wait=30"})
        assert client.get(f"/jobs/{submitted(client, 4)}").json()["state"] == "queued"
        job = shop.claimed(job_id)
        assert changing.result().json()["state"] == "running"
        assert not any(each.done() for each in waiting)
        shop.ledger.complete(job, "1")
        ended = {(each.result().json()["state"], each.result().headers["preference-applied"]) for each in waiting}
        assert ended == {("completed", "wait=30")}


def events(client: httpx2.Client, job_id: str, after: str | None = None) -> Iterator[dict[str, Any]]:
    headers = {} if after is None else {"last-event-id": after}
    with client.stream("GET", f"/jobs/{job_id}/events", headers=headers) as response:
        fields: dict[str, Any] = {}
        for line in response.iter_lines():
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif "data" in fields:
                yield fields | {"data": json.loads(fields["data"])}
                fields = {}


def test_a_stream_has_each_change(shop: Shop, client: httpx2.Client) -> None:
    """A stream has the job and each change of state and progress, to its end; one that resumes has the later ones."""
    job_id = submitted(client, 5)
    stream = events(client, job_id)
    first = next(stream)
    assert (first["event"], first["data"]["state"]) == ("state", "queued")
    job = shop.claimed(job_id)
    running = next(stream)
    assert (running["event"], running["data"]["state"]) == ("state", "running")
    again = events(client, job_id, after=first["id"])
    assert next(again)["data"]["state"] == "running"
    shop.ledger.report(job, '{"done": 1}')
    for each in (next(stream), next(again)):
        assert (each["event"], each["data"]["progress"]) == ("progress", {"done": 1})
    shop.ledger.complete(job, "1")
    for rest in (stream, again):
        assert [(each["event"], each["data"]["state"]) for each in rest] == [("state", "completed")]


# --- the end of a server, and its log -------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
SERVE = "import sys; from onejob.cli.commands import main; main(['serve', 'tests.api.shop:app', *sys.argv[1:]])"
KEY = "onejob_" + "Zx9-_" * 8
WITH_KEY = (
    f"/{KEY}", f"?key={KEY}", f"?task={KEY}", f"?x=onejob%5F{KEY[7:]}", f"?access_token={KEY[7:]}",
    f"/x?limit=1&api%5Fkey={KEY[7:]}", f"/x/{KEY}/y?a=b",
)  # fmt: skip


def test_shutdown_ends_streams_and_waits(tmp_path: Path) -> None:
    """A server that is terminated ends its streams and waits, and its log is lines of JSON without any API key."""
    address = ["--port", str(free_port())]
    command = ["env", f"{STORE}=sqlite:///{tmp_path / 'ledger.db'}", f"{BROKER}=memory://", sys.executable, "-c", SERVE]
    daemon = Daemon([*command, *address, "--log-json"], log=tmp_path / "log", cwd=ROOT)
    with daemon as server, client_of(f"http://127.0.0.1:{address[1]}") as client:

        def answers() -> bool:
            with suppress(httpx2.TransportError):
                return client.get("/readyz").status_code == 200
            return False

        eventually(answers, 100)
        job_id = submitted(client, 9)
        for path in (*WITH_KEY, "?limit=7", "/x%0AERROR:%20forged"):
            client.get(f"/jobs{path}")
        stream = events(client, job_id)
        assert next(stream)["data"]["state"] == "queued"
        steps: list[str] = []
        trace = {"trace": lambda step, _info: steps.append(step)}
        with ThreadPoolExecutor(1) as pool:
            wait = pool.submit(client.get, f"/jobs/{job_id}", headers={"prefer": "wait=30"}, extensions=trace)
            eventually(lambda: "http11.send_request_body.complete" in steps)
            assert answers()  # sent later, so that the server has read the request before it
            server.process.terminate()
            assert [*stream] == []  # it ends as a stream ends
            assert (wait.result(30).status_code, wait.result().json()["state"]) == (200, "queued")
        eventually(lambda: not server.alive)
    log = (tmp_path / "log").read_text()
    notice, *lines = log.splitlines()
    records = [json.loads(line) for line in lines]
    assert notice.startswith("No API keys")
    assert [record["outcome"] for record in records if record.get("job_id") == job_id] == ["admitted"]
    assert {"onejob.jobs", "uvicorn.access", "uvicorn.error"} <= {record["logger"] for record in records}
    assert log.count("[redacted]") == len(WITH_KEY)
    assert "GET /jobs?limit=7 " in log
    assert [text for text in (KEY[7:], '"ERROR"') if text in log] == []
