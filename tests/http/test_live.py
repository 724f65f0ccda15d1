"""A real server in a process of its own: many at once, waiting without holding a thread, streams of events."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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

    def __init__(self, url: str, ledger: Ledger) -> None:
        self.url = url
        self.ledger = ledger
        self.client = httpx2.Client(base_url=url, timeout=PATIENCE, limits=httpx2.Limits(max_connections=300))

    def submitted(self, order_id: int) -> str:
        """Ask for a job and return its id."""
        body = {"task": "shop.invoice", "kwargs": {"order_id": order_id}}
        return str(self.client.post("/jobs", json=body).json()["job"]["id"])

    def claimed(self, job_id: str) -> Job:
        """Begin a run, as a worker would."""
        job = self.ledger.claim(job_id, nonce="n", node="node").job
        assert job is not None
        return job


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Return the variables of the server's and the worker's processes: a ledger in a file, and a broker."""
    folder = tmp_path_factory.mktemp("live")
    redis = start_redis(folder)
    yield [f"{STORE}=sqlite:///{folder / 'ledger.db'}", f"{BROKER}={redis.url}"]
    redis.stop()


def served(environment: list[str], folder: Path, *options: str) -> tuple[Daemon, str]:
    """Start a server by `onejob serve`, and return it with its address."""
    port = free_port()
    serve = ["serve", "tests.http.shop:app", "--port", str(port), *options]
    command = ["env", *environment, sys.executable, "-c", SERVE, *serve]
    return Daemon(command, log=folder / "log", cwd=ROOT), f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def live(environment: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Return a server that `onejob serve` started."""
    server, url = served(environment, tmp_path_factory.mktemp("server"))
    store, broker = (each.partition("=")[2] for each in environment)
    ledger = app_state_of(app := build(store, broker)).ledger
    live = Live(url, ledger)
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


def test_fifty_at_once_get_one_job(live: Live) -> None:
    """Fifty threads that post the same body get one job: one is admitted, the others attached, and none fails."""
    body = {"task": "shop.invoice", "kwargs": {"order_id": 50}}
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: live.client.post("/jobs", json=body), range(50)))
    assert Counter(answer.status_code for answer in answers) == {202: 1, 200: 49}
    assert len({answer.json()["job"]["id"] for answer in answers}) == 1
    assert Counter(answer.json()["outcome"] for answer in answers) == {"admitted": 1, "attached": 49}


def test_a_wait_ends_with_the_job(live: Live) -> None:
    """`Prefer: wait` is answered when the job has ended, long before its time is over."""
    job_id = live.submitted(1)
    job = live.claimed(job_id)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(live.client.get, f"/jobs/{job_id}", headers={"prefer": "wait=30"})
        begun = time.monotonic()
        live.ledger.complete(job, '"done"')
        answer = waiting.result()
    assert time.monotonic() - begun < 20
    assert (answer.json()["state"], answer.json()["result"]) == ("completed", "done")
    assert answer.headers["preference-applied"] == "wait=30"


def test_a_wait_ends_with_a_change(live: Live) -> None:
    """With If-None-Match a wait ends with the first change; without one, 304 when its time is over."""
    job_id = live.submitted(2)
    tag = live.client.get(f"/jobs/{job_id}").headers["etag"]
    headers = {"prefer": "wait=1", "if-none-match": tag}
    assert live.client.get(f"/jobs/{job_id}", headers=headers).status_code == 304
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(live.client.get, f"/jobs/{job_id}", headers=headers | {"prefer": "wait=30"})
        live.claimed(job_id)
        assert waiting.result().json()["state"] == "running"


def test_waiting_holds_no_thread(live: Live) -> None:
    """Two hundred who wait for one job leave the server free for others, and all get its end."""
    job_id = live.submitted(3)
    job = live.claimed(job_id)
    with ThreadPoolExecutor(200) as pool:
        waiting = [pool.submit(live.client.get, f"/jobs/{job_id}", headers={"prefer": "wait=30"}) for _ in range(200)]
        assert live.client.get(f"/jobs/{live.submitted(4)}").json()["state"] == "queued"
        assert not any(each.done() for each in waiting)
        live.ledger.complete(job, "1")
        assert {each.result().json()["state"] for each in waiting} == {"completed"}


def events(live: Live, job_id: str, after: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream as they come."""
    headers = {} if after is None else {"last-event-id": after}
    with live.client.stream("GET", f"/jobs/{job_id}/events", headers=headers) as answer:
        fields: dict[str, Any] = {}
        for line in answer.iter_lines():
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif "data" in fields:
                yield fields | {"data": json.loads(fields["data"])}
                fields = {}


def test_a_stream_tells_a_life(live: Live) -> None:
    """A stream shows the job as it is, then each state and progress that it comes to, and ends with it."""
    job_id = live.submitted(5)
    stream = events(live, job_id)
    first = next(stream)
    assert (first["event"], first["data"]["state"]) == ("state", "queued")
    job = live.claimed(job_id)
    begun = next(stream)
    assert (begun["event"], begun["data"]["state"]) == ("state", "running")
    live.ledger.report(job, '{"done": 1}')
    told = next(stream)
    assert (told["event"], told["data"]["progress"]) == ("progress", {"done": 1})
    live.ledger.complete(job, "1")
    assert [(each["event"], each["data"]["state"]) for each in stream] == [("state", "completed")]


def test_a_stream_goes_on_where_it_was(live: Live) -> None:
    """Who comes again with the last event's id is not shown that event again, only what has changed since."""
    job_id = live.submitted(6)
    first = next(events(live, job_id))
    job = live.claimed(job_id)
    again = events(live, job_id, after=first["id"])
    assert next(again)["data"]["state"] == "running"
    live.ledger.complete(job, "1")
    assert [each["data"]["state"] for each in again] == ["completed"]


def test_a_hundred_streams_are_told_of_one_job(live: Live) -> None:
    """Everybody who listens is told, and the server answers others meanwhile."""
    job_id = live.submitted(7)
    job = live.claimed(job_id)
    with ThreadPoolExecutor(100) as pool:
        streams = [events(live, job_id) for _ in range(100)]
        assert {event["data"]["state"] for event in pool.map(next, streams)} == {"running"}
        assert live.client.get("/healthz").status_code == 200
        live.ledger.complete(job, "1")
        ends = list(pool.map(_states, streams))
    assert set(ends) == {("completed",)}


def test_a_stream_does_not_keep_a_server_up(live: Live, environment: list[str], tmp_path: Path) -> None:
    """A server that is told to end does so, and those who wait for a job that goes on get what there is to tell."""
    server, url = served(environment, tmp_path)
    other = Live(url, live.ledger)
    eventually(lambda: _answers(other.client), 30)
    job_id = other.submitted(9)
    stream = events(other, job_id)
    assert next(stream)["data"]["state"] == "queued"
    with ThreadPoolExecutor(1) as pool:
        wait = pool.submit(other.client.get, f"/jobs/{job_id}", headers={"prefer": "wait=30"})
        eventually(lambda: "prefer" in wait.__dict__ or wait.running(), 30)
        server.process.terminate()
        assert list(stream) == []  # it ends as a stream ends
        answer = wait.result(30)
    server.process.wait(20)
    other.client.close()
    assert not server.alive
    assert (answer.status_code, answer.json()["state"]) == (200, "queued")
    assert "ERROR" not in (tmp_path / "log").read_text()


def test_a_log_is_json_line_by_line(live: Live, environment: list[str], tmp_path: Path) -> None:
    """With `--log-json` every line of the server's log is JSON, what happens to jobs and requests alike."""
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
def test_a_head_without_end_is_refused(live: Live, piece: bytes) -> None:
    """A request's head of more than 64 KiB gets a 4XX and the connection is closed, though the head goes on."""
    host, _, port = live.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n")
        answer = b""
        with suppress(ConnectionError):
            for _ in range(10):
                connection.sendall(piece)
        with suppress(ConnectionError):
            answer = connection.recv(1000)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    assert live.client.get("/healthz").status_code == 200


@pytest.mark.parametrize("end", [b"x-trailer: " + b"a" * 9_000 + b"\r\n", b"a" * 9_000])
def test_what_follows_a_body_has_a_limit_too(live: Live, end: bytes) -> None:
    """Trailers of a body that go on and on are refused like a head that does."""
    host, _, port = live.url.removeprefix("http://").partition(":")
    head = b"POST /jobs HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(head + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n")
        with pytest.raises(ConnectionError):
            connection.sendall(end * 10_000)
    assert live.client.get("/healthz").status_code == 200


def test_a_worker_runs_what_was_posted(live: Live, environment: list[str], tmp_path: Path) -> None:
    """A job that was asked for over HTTP runs on a plain worker, once, and its result is read over HTTP."""
    for job in live.ledger.find(Query(limit=1000)):
        live.ledger.cancel(job.id)
    command = [sys.executable, "-m", "celery", "-A", "tests.http.shop", "worker", "-c", "1", "--without-gossip"]
    worker = Daemon(["env", *environment, *command], log=tmp_path / "log", cwd=ROOT)
    try:
        job_id = live.submitted(8)
        headers = {"prefer": "wait=30"}
        answer = eventually(lambda: _ended(live.client.get(f"/jobs/{job_id}", headers=headers)), PATIENCE)
    finally:
        worker.process.terminate()
        worker.process.wait(30)
    assert (answer["state"], answer["result"], answer["attempt"]) == ("completed", "invoice 8", 1)


def _ended(answer: Any) -> Any:
    return answer.json() if answer.json()["finished_at"] else None
