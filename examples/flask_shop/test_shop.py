"""The tests of the shop. One runs a worker: `FLASK_CELERY__broker_url` names a Redis that it may use."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from shop import create_app

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery import Celery
    from flask import Flask
    from flask.testing import FlaskClient

    from onejob.testing import Jobs

PATIENCE = 60.0


@pytest.fixture
def app() -> Flask:
    """Return the shop."""
    return create_app({"TESTING": True})


@pytest.fixture
def celery_app(app: Flask) -> Celery:
    """Return the Celery app that the fixture `jobs` isolates."""
    return app.extensions["celery"]


@pytest.fixture
def client(app: Flask, jobs: Jobs) -> FlaskClient:
    """Return a browser at the shop, whose ledger and broker are this test's own."""
    return app.test_client()


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FlaskClient]:
    """Return a browser at the shop, with a ledger of this test's own and a worker on the real broker."""
    monkeypatch.setenv("FLASK_CELERY__onejob_store", f"sqlite:///{tmp_path / 'ledger.db'}")
    command = [sys.executable, "-m", "celery", "-A", "make_celery", "worker", "--pool", "solo"]
    with subprocess.Popen([*command, "--without-mingle", "--without-gossip"]) as process:
        yield create_app({"TESTING": True}).test_client()
        process.terminate()


def test_a_double_click_is_one_job(client: FlaskClient, jobs: Jobs) -> None:
    """The second click gets the job of the first one, which runs once, and the dashboard shows who clicked."""
    client.post("/login", data={"user": "olga"})
    first, second = client.post("/orders/42/invoice"), client.post("/orders/42/invoice")
    assert (first.status_code, second.status_code) == (202, 200)
    assert first.json["job"] == second.json["job"]
    assert second.json["outcome"] == "attached"
    shown = client.get(f"/onejob/jobs/{first.json['job']}?format=json").json
    assert shown["job"]["submitter"] == "olga"
    assert [each["submitter"] for each in shown["duplicates"]] == ["olga"]
    jobs.run_all()
    assert client.get(f"/jobs/{first.json['job']}").json == {
        "state": "completed",
        "result": "shop: invoice 000042 in en",
    }


def test_the_dashboard_is_for_the_staff(client: FlaskClient) -> None:
    """A customer does not see the dashboard, and a reader sees it without buttons."""
    assert client.get("/onejob/jobs").status_code == 403
    client.post("/login", data={"user": "ann"})
    assert client.get("/onejob/jobs").status_code == 403
    job = client.post("/orders/7/invoice").json["job"]
    client.post("/login", data={"user": "rita"})
    assert 'value="cancel"' not in client.get(f"/onejob/jobs/{job}").text
    client.post("/login", data={"user": "olga"})
    assert 'value="cancel"' in client.get(f"/onejob/jobs/{job}").text


def test_a_worker_runs_the_job_in_the_app(served: FlaskClient) -> None:
    """A worker runs the job in the context of the Flask app, and its page shows the result."""
    job = served.post("/orders/42/invoice").json["job"]
    deadline = time.monotonic() + PATIENCE
    while (shown := served.get(f"/jobs/{job}").json)["state"] != "completed":
        assert time.monotonic() < deadline, shown
        time.sleep(0.05)
    assert shown["result"] == "shop: invoice 000042 in en"


def test_an_unknown_job_is_not_found(client: FlaskClient) -> None:
    """The page of a job that does not exist says so."""
    assert client.get("/jobs/unknown").status_code == 404
