"""A connection that is lost, or a process that dies, anywhere in the submission that also pushes the message.

A proxy stands before the one Redis of ledger and broker, and cuts the connection of a submission at some points.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from onejob.celery.app_state import app_state_of
from onejob.errors import StoreUnavailableError
from onejob.jobs.records import Query
from tests.celery.app import build
from tests.celery.harness import House
from tests.services import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.services import RedisServer

POINTS = ("before the request", "in the request", "before the reply", "in the reply")
SUBMIT = """\
import json, sys
from tests.celery.app import build
app = build(json.loads(sys.argv[1]))
play = app.tasks["play"]
play.delay("first", ["return"])  # so that the next one is a single script
print("ready", flush=True)
sys.stdin.readline()
play.delay("killed", ["return"])
"""


class Proxy:
    """Passes bytes to a Redis and back; while it is armed, it cuts the next submissions at a point."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.point = ""
        self.cuts = 0
        """How many submissions are still to be cut."""
        self.reached = threading.Event()
        self.on_cut: Callable[[], None] = lambda: None
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, point: str, cuts: int) -> None:
        """Cut the next submissions at a point."""
        self.point, self.cuts = point, cuts
        self.reached.clear()

    def close(self) -> None:
        """Accept no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._target)) as server, suppress(OSError):
            while request := client.recv(1 << 20):
                cut = self.cuts > 0 and b"EVALSHA" in request
                self.cuts -= cut
                if not self._pass_on(client, server, request, self.point if cut else ""):
                    self.on_cut()
                    self.reached.set()
                    return

    @staticmethod
    def _pass_on(client: socket.socket, server: socket.socket, request: bytes, point: str) -> bool:
        """Pass on a request and its reply; False if the connection is to be cut."""
        if point == "before the request":
            return False
        server.sendall(request[: len(request) // 2] if point == "in the request" else request)
        if point == "in the request":
            return False
        reply = server.recv(1 << 20)
        if point != "before the reply":
            client.sendall(reply[: len(reply) // 2] if point == "in the reply" else reply)
        return not point


class FusedHouse(House):
    """A house whose ledger is in the database of its broker, and whose submitters reach it through a proxy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.config["onejob_store"] = self.config["broker_url"]
        self.app.close()
        self.app = build(self.config)
        self.proxy = Proxy(self.server.port)
        url = self.config["broker_url"].replace(f":{self.server.port}/", f":{self.proxy.port}/")
        self.remote_config = self.config | {"broker_url": url, "onejob_store": url}

    def messages(self) -> list[str]:
        """Return the keys of the jobs whose messages are in the queue, oldest first."""
        texts = reversed(self.broker.lrange("celery", 0, -1))
        return [self.jobs()[json.loads(text)["headers"]["id"]] for text in texts]

    def jobs(self) -> dict[str, str]:
        """Return the keys of all jobs by id."""
        found = self.ledger.find(Query(limit=100))
        return {job.id: json.loads(self.ledger.get(job.id).payload)["args"][0] for job in found}


@pytest.fixture
def house(tmp_path: Path, broker: RedisServer) -> Iterator[FusedHouse]:
    """Return such a house without a worker."""
    made = FusedHouse(tmp_path, broker, "redis")
    yield made
    made.proxy.close()
    made.close()


@pytest.mark.parametrize("point", POINTS)
def test_a_submission_that_lost_its_connection_is_made_once(house: FusedHouse, point: str) -> None:
    """A submission whose connection is lost is repeated by the client: it makes one job, and pushes one message."""
    app = build(house.remote_config)
    app.tasks["play"].delay("first", ["return"])
    assert app_state_of(app).publisher.fuses
    house.proxy.arm(point, 1)
    result: Any = app.tasks["play"].delay("cut", ["return"])
    assert house.proxy.reached.is_set()
    assert sorted(house.jobs().values()) == ["cut", "first"]
    assert house.messages() == ["first", "cut"]
    assert house.jobs()[result.id] == "cut"


@pytest.mark.parametrize("point", POINTS)
def test_a_job_has_a_message_exactly_if_it_is_in_the_ledger(house: FusedHouse, point: str) -> None:
    """When each attempt loses its connection, the submission raises, and leaves a job with its message or nothing."""
    app = build(house.remote_config)
    app.tasks["play"].delay("first", ["return"])
    house.proxy.arm(point, 100)
    with pytest.raises(StoreUnavailableError):
        app.tasks["play"].delay("cut", ["return"])
    house.proxy.arm(point, 0)
    expected = ["first", "cut"] if point.endswith("reply") else ["first"]
    assert sorted(house.jobs().values()) == sorted(expected)
    assert house.messages() == expected


@pytest.mark.parametrize("point", POINTS)
def test_a_submitter_that_is_killed_leaves_a_job_with_its_message_or_nothing(house: FusedHouse, point: str) -> None:
    """A process that is killed while it submits leaves a job whose message is in the queue, or neither."""
    process = subprocess.Popen(
        [sys.executable, "-c", SUBMIT, json.dumps(house.remote_config)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "ready\n"
    house.proxy.on_cut = process.kill
    house.proxy.arm(point, 1)
    process.stdin.write("\n")
    process.stdin.flush()
    assert house.proxy.reached.wait(40)
    assert process.wait(40) == -signal.SIGKILL
    process.stdin.close()
    process.stdout.close()
    expected = ["first", "killed"] if point.endswith("reply") else ["first"]
    eventually(lambda: sorted(house.jobs().values()) == sorted(expected))
    assert house.messages() == expected
