"""Fixtures of the HTTP tests: an app on a real ledger, and an HTTP client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from starlette.testclient import TestClient

from onejob.api import create_app
from onejob.celery.app_state import app_state_of
from tests.http.shop import build

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery import Celery

    from onejob.jobs.model import Job
    from onejob.ledger.ledger import Ledger

LOCAL: dict[str, Any] = {"base_url": "http://127.0.0.1", "client": ("127.0.0.1", 50_000)}


@dataclass(frozen=True)
class Shop:
    """An app, its ledger, and a client of its API."""

    app: Celery
    client: TestClient

    @property
    def ledger(self) -> Ledger:
        """The app's ledger."""
        return app_state_of(self.app).ledger

    def post(self, task: str, /, kwargs: dict[str, Any] | None = None, **more: Any) -> Any:
        """Submit a job."""
        headers = more.pop("headers", None)
        body = {"task": f"shop.{task}", "kwargs": kwargs or {}, **more}
        return self.client.post("/jobs", json=body, headers=headers)

    def claimed(self, job_id: str) -> Job:
        """Claim a job, as a worker does."""
        job = self.ledger.claim(job_id, nonce="n", node="node").job
        assert job is not None
        return job

    def failed(self, job_id: str) -> Job:
        """Claim a job and let its run fail."""
        error = '{"type": "ValueError", "message": "no", "traceback": "secret"}'
        return self.ledger.fail(self.claimed(job_id), error, "ValueError: no")


@pytest.fixture
def celery_app(tmp_path: Path) -> Celery:
    """Return an app with an SQLite ledger."""
    return build(f"sqlite:///{tmp_path / 'ledger.db'}")


@pytest.fixture
def shop(celery_app: Celery) -> Iterator[Shop]:
    """Return the shop with an API without API keys."""
    with TestClient(create_app(celery_app), raise_server_exceptions=False, **LOCAL) as client:
        yield Shop(celery_app, client)
    app_state_of(celery_app).ledger.close()


def problem(response: Any, status: int, kind: str) -> dict[str, Any]:
    """Assert that a response is a problem of this type, and return it."""
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json"), (
        response.text
    )
    details: dict[str, Any] = response.json()
    assert (details["type"], details["status"]) == (f"urn:onejob:problem:{kind}", status)
    return details
