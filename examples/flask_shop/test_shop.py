"""The tests of the shop. `FLASK_CELERY__broker_url` names a Redis that they may use."""

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

    from flask.testing import FlaskClient

PATIENCE = 60.0


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FlaskClient:
    """Return a browser at the shop, whose ledger is this test's own."""
    monkeypatch.setenv("FLASK_CELERY__onejob_store", f"sqlite:///{tmp_path / 'ledger.db'}")
    return create_app({"TESTING": True}).test_client()


@pytest.fixture
def worker(client: FlaskClient) -> Iterator[None]:
    """Run a worker of the shop."""
    command = [sys.executable, "-m", "celery", "-A", "make_celery", "worker", "--pool", "solo"]
    with subprocess.Popen([*command, "--without-mingle", "--without-gossip"]) as process:
        yield
        process.terminate()


def test_a_double_click_is_one_job(client: FlaskClient) -> None:
    """The second click gets the job of the first one, and the dashboard shows who clicked."""
    client.post("/login", data={"user": "olga"})
    first, second = client.post("/orders/42/invoice"), client.post("/orders/42/invoice")
    assert (first.status_code, second.status_code) == (202, 200)
    assert first.json["job"] == second.json["job"]
    assert second.json["outcome"] == "attached"
    shown = client.get(f"/onejob/jobs/{first.json['job']}?format=json").json
    assert shown["job"]["submitter"] == "olga"
    assert [each["submitter"] for each in shown["duplicates"]] == ["olga"]


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


def test_a_worker_runs_the_job_in_the_app(client: FlaskClient, worker: None) -> None:
    """The job runs in the context of the Flask app, and its page shows the result."""
    job = client.post("/orders/42/invoice").json["job"]
    deadline = time.monotonic() + PATIENCE
    while (shown := client.get(f"/jobs/{job}").json)["state"] != "completed":
        assert time.monotonic() < deadline, shown
        time.sleep(0.05)
    assert shown["result"] == "shop: invoice 000042 in en"


def test_an_unknown_job_is_not_found(client: FlaskClient) -> None:
    """The page of a job that does not exist says so."""
    assert client.get("/jobs/unknown").status_code == 404
