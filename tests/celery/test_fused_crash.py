"""A connection that is lost, or a process that dies, anywhere in the submission that also pushes the message.

A proxy stands before the one Redis of ledger and broker, and cuts the connection of a submission at some points.
"""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from onejob.celery.app_state import app_state_of
from onejob.errors import StoreUnavailableError
from tests.cases import for_each
from tests.celery.app import build
from tests.celery.harness import PATIENCE, ROOT, House, Proxy, program_environment
from tests.forks import fork
from tests.services import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.services import RedisServer

POINTS = ("before the request", "in the request", "before the reply", "in the reply")
SUBMIT = """\
import json, sys
from tests.celery.app import Stage, build
app = build(json.loads(sys.argv[1]))
play = app.tasks["play"]
play.delay("first", ["return"])  # so that the next one is a single script
print("ready", flush=True)
Stage(app.conf["test_stage"]).wait("go")
play.delay("killed", ["return"])
"""


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
        return [self.keys()[json.loads(text)["headers"]["id"]] for text in texts]

    def keys(self) -> dict[str, str]:
        """Return the keys of all jobs by id, oldest first."""
        return {job.id: json.loads(job.payload)["args"][0] for job in reversed(self.jobs())}

    def jobs_since(self, first: str) -> list[str]:
        """Return the keys of a job and of all later ones, oldest first."""
        keys = [*self.keys().values()]
        return keys[keys.index(first) :]


@pytest.fixture
def house(tmp_path: Path, broker: RedisServer) -> Iterator[FusedHouse]:
    """Return such a house without a worker."""
    made = FusedHouse(tmp_path, broker, "redis")
    yield made
    made.proxy.close()
    made.close()


@for_each("point", POINTS)
def test_a_submission_that_lost_its_connection_is_made_once(house: FusedHouse, point: str) -> None:
    """A submission whose connection is lost is repeated by the client: it makes one job, and pushes one message."""
    first, cut = f"first {point}", f"cut {point}"
    app = build(house.remote_config)
    app.tasks["play"].delay(first, ["return"])
    assert app_state_of(app).publisher.fuses
    house.proxy.arm(point, 1)
    result: Any = app.tasks["play"].delay(cut, ["return"])
    assert house.proxy.reached.is_set()
    assert house.jobs_since(first) == house.messages()[-2:] == [first, cut]
    assert house.keys()[result.id] == cut


@for_each("point", POINTS)
def test_a_job_has_a_message_exactly_if_it_is_in_the_ledger(house: FusedHouse, point: str) -> None:
    """When each attempt loses its connection, the submission raises, and leaves a job with its message or nothing."""
    first, cut = f"first {point}", f"cut {point}"
    app = build(house.remote_config)
    app.tasks["play"].delay(first, ["return"])
    house.proxy.arm(point, 100)
    with pytest.raises(StoreUnavailableError):
        app.tasks["play"].delay(cut, ["return"])
    house.proxy.arm(point, 0)
    expected = [first, cut] if point.endswith("reply") else [first]
    assert house.jobs_since(first) == house.messages()[-len(expected) :] == expected


@pytest.mark.parametrize("point", ["in the request", pytest.param("before the reply", marks=pytest.mark.deep)])
def test_a_submitter_that_is_killed_leaves_a_job_with_its_message_or_nothing(
    house: FusedHouse, point: str, tmp_path: Path
) -> None:
    """A process that is killed while it submits leaves a job whose message is in the queue, or neither."""
    command, output = ["-c", SUBMIT, json.dumps(house.remote_config)], tmp_path / "output"
    process = fork(command, environment=program_environment(), cwd=ROOT, output=output)
    eventually(lambda: "ready" in output.read_text())
    house.proxy.on_cut = process.kill
    house.proxy.arm(point, 1)
    house.open("go")
    assert house.proxy.reached.wait(PATIENCE)
    assert process.wait() == -signal.SIGKILL
    expected = ["first", "killed"] if point.endswith("reply") else ["first"]
    eventually(lambda: house.jobs_since("first") == expected)
    assert house.messages() == expected
