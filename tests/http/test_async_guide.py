"""The FastAPI app in the guide about types and async works."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from starlette.testclient import TestClient

from onejob.celery.app_state import app_state_of
from onejob.celery.failure import encode_failure
from tests.celery.test_async import end
from tests.fundamentals.shop import claimed
from website.blocks import read

if TYPE_CHECKING:
    from collections.abc import Iterator

PLACE = "docs/guides/types-and-async.md"
GUIDE = Path(__file__).parents[2] / PLACE


@pytest.fixture
def guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any]]:
    """Return the Celery app and the web app of the guide, on an SQLite ledger."""
    here = f'"memory://", changes={{"onejob_store": "sqlite:///{tmp_path / "ledger.db"}"}}'
    for name, text in read(PLACE, GUIDE.read_text(encoding="utf-8")).files(only_run=False).items():
        own = text.replace('"redis://localhost:6379/0"', here).replace("task(app,", "task(app, shared=False,")
        (tmp_path / f"{name}.py").write_text(own, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import shop  # type: ignore[import-not-found]
    import web  # type: ignore[import-not-found]

    yield shop.app, web.web
    app_state_of(shop.app).ledger.close()
    for name in ("shop", "web"):
        del sys.modules[name]


def test_the_endpoints_of_the_guide_work(guide: tuple[Any, Any]) -> None:
    """Two clicks are one job, whose result the other endpoint waits for."""
    app, web = guide
    with TestClient(web) as client:
        first, second = (client.post("/invoices/7", params={"user": "ann"}).json() for _ in range(2))
        assert (first["outcome"], second["outcome"], second["job"]) == ("admitted", "attached", first["job"])
        assert app_state_of(app).ledger.get(first["job"]).submitter == "user:ann"
        end(app, first["job"])
        assert client.get(f"/invoices/{first['job']}").json() == {"state": "completed", "invoice": "done"}


def test_an_unknown_and_a_failed_job_are_answers(guide: tuple[Any, Any]) -> None:
    """The endpoint answers 404 for an id that nobody submitted, and the error of the body for a failed job."""
    app, web = guide
    ledger = app_state_of(app).ledger
    with TestClient(web) as client:
        assert client.get("/invoices/nope").status_code == 404
        job = client.post("/invoices/8").json()["job"]
        ledger.fail(claimed(ledger, job), encode_failure(ValueError("no paper")), "no paper")
        assert client.get(f"/invoices/{job}").json() == {"state": "failed", "error": "no paper"}
