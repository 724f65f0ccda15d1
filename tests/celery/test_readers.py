"""Programs of others that build Celery's `AsyncResult`, in an environment of their own, find jobs by `onejob://`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.celery.harness import Cluster, program_environment
from tests.quiet import provokes
from tests.release.environments import ROOT, overlay
from tests.services import eventually, free_port

pytestmark = [pytest.mark.deep, pytest.mark.timeout(900)]
LIBRARIES = Path(__file__).with_name("readers.txt")
APP = """
from celery import Celery

app = Celery("shop")
app.conf.update({conf!r})
"""
STATUS = """
import json, sys
from celery_fastapi import CeleryFastAPIBridge
from fastapi import FastAPI
from fastapi.testclient import TestClient
from status import app

api = FastAPI()
CeleryFastAPIBridge(app, api).register_routes()
client = TestClient(api)
found = {}
for name, id in json.loads(sys.argv[1]).items():
    # Its route "/tasks/ID" has no answer for a failure, whatever the result backend is: the exception is no JSON.
    is_failure = name in ("FAILURE", "REVOKED")
    answer = client.get(f"/tasks/{id}" + is_failure * "/events")
    found[name] = json.loads(answer.text.split("data: ")[1]) if is_failure else answer.json()
print(json.dumps(found))
"""


@pytest.fixture
def reader(pytestconfig: pytest.Config, cluster: Cluster) -> tuple[str, dict[str, str]]:
    """Return a Python with the programs, and its variables; its app in the folder of the cluster has no task."""
    python = overlay(pytestconfig.cache.mkdir("versions") / "readers", LIBRARIES)
    names = ("broker_url", "onejob_store", "result_backend")
    (cluster.directory / "status.py").write_text(APP.format(conf={name: cluster.config[name] for name in names}))
    variables = program_environment()
    variables["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(cluster.directory)])
    return str(python), variables


@pytest.fixture
def cluster(new_cluster: Callable[..., Cluster]) -> Cluster:
    """Return a cluster with the result backend, and a worker that sends events."""
    cluster = new_cluster(result_backend="onejob://")
    cluster.worker("-c", "2", "-E")
    return cluster


def jobs_of(cluster: Cluster) -> dict[str, Any]:
    """Return the results of jobs that have completed, failed and been canceled, and of one that runs."""
    results = {
        "SUCCESS": cluster.play.delay("completed", ["return:value"]),
        "FAILURE": cluster.play.delay("failed", ["lookup:where"]),
        "REVOKED": cluster.play.apply_async(("canceled", ["return"]), countdown=3600),
    }
    results["REVOKED"].revoke()
    for result in results.values():
        result.get(40, propagate=False)
    return results | {"STARTED": cluster.begin("running")}


@provokes(because="a job fails and one is canceled")
def test_celery_fastapi_shows_jobs(cluster: Cluster, reader: tuple[str, dict[str, str]]) -> None:
    """The status routes of celery-fastapi have the states and results of jobs, in an app that has no task."""
    results, (python, variables) = jobs_of(cluster), reader
    ids = {name: result.id for name, result in results.items()} | {"PENDING": "unknown"}
    command = [python, "-c", STATUS, json.dumps(ids)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables, cwd=cluster.directory)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert {name: each["state"] for name, each in shown.items()} == {name: name for name in ids}
    assert shown["SUCCESS"]["result"] == "value"
    assert shown["SUCCESS"]["date_done"] is not None
    assert "LookupError: where" in shown["FAILURE"]["error"]
    cluster.open("running")


@contextmanager
def flower(python: str, variables: dict[str, str], cluster: Cluster) -> Iterator[httpx2.Client]:
    """Run Flower, and yield a client."""
    port = free_port()
    command = [python, "-m", "celery", "-A", "status", "flower", f"--port={port}", "--address=127.0.0.1"]
    allowed = variables | {"FLOWER_UNAUTHENTICATED_API": "true"}
    log = (cluster.directory / "flower.log").open("w")
    with log, subprocess.Popen(command, env=allowed, cwd=cluster.directory, stdout=log, stderr=log) as process:
        try:
            with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=10.0) as client:
                yield client
        finally:
            process.terminate()


def answer_of(client: httpx2.Client, path: str) -> Any:
    """Return the answer to a request, once the server listens."""

    def get() -> Any:
        try:
            return client.get(path)
        except httpx2.TransportError:
            return None

    return eventually(get)


@provokes(because="a job fails and one is canceled")
def test_flower_shows_jobs(cluster: Cluster, reader: tuple[str, dict[str, str]]) -> None:
    """Flower's API has the states and results of jobs, and its page of a task has those of which it saw the events."""
    with flower(*reader, cluster) as client:
        eventually(lambda: answer_of(client, "/api/workers?refresh=1").json())
        results = jobs_of(cluster)
        for state, result in results.items():
            answer = answer_of(client, f"/api/task/result/{result.id}")
            assert (answer.status_code, answer.json()["state"]) == (200, state), answer.text
        done = answer_of(client, f"/api/task/result/{results['SUCCESS'].id}").json()
        assert (done["task-id"], done["result"]) == (results["SUCCESS"].id, "value")
        eventually(lambda: client.get(f"/task/{results['SUCCESS'].id}").status_code == 200)
        assert "SUCCESS" in client.get(f"/task/{results['SUCCESS'].id}").text
        cluster.open("running")
