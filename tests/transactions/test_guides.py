"""The code in the guides runs."""

import asyncio
import importlib.util
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from celery import _state
from fastapi import Depends
from sqlalchemy import event
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from onejob.celery.app_state import app_state_of
from onejob.celery.messages.payload import decode
from onejob.celery.run import Run, set_current_run
from onejob.jobs.lifecycle import State
from onejob.stores.migrate import upgrade
from onejob.transactions.fence import TABLE
from tests.services import PostgresServer, RedisServer
from tests.stores.support import not_none

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"
COMMITTING = ("/orders", "/orders/dependency")
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def blocks_of(name: str) -> list[str]:
    return BLOCK.findall((GUIDES / name).read_text(encoding="utf-8"))


def test_the_guide_to_django_shows_the_shop() -> None:
    """Every block of Python code in the guide is part, word for word, of a file of the shop, which tests run."""
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "examples" / "django_shop").rglob("*.py")]
    blocks = blocks_of("django.md")
    parts = [part.strip() for block in blocks for part in re.split(r"\n\n\n|\n?# \.\.\.\n", block)]
    assert len(parts) > 1
    assert [part for part in parts if not any(part in source for source in sources)] == []


@pytest.fixture(scope="module")
def guide(
    postgres_server: PostgresServer, broker: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    with psycopg.connect(postgres_server.url, autocommit=True) as server:
        server.execute("create database guide")
    url = postgres_server.url.removesuffix("/postgres") + "/guide"
    upgrade(url)
    state: Any = _state
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOP_DATABASE", url)
        patch.setenv("BOOKS_DATABASE", f"sqlite:///{tmp_path_factory.mktemp('books') / 'books.db'}")
        patch.setattr(state, "_on_app_finalizers", {*state._on_app_finalizers})  # its tasks are no other app's
        patch.setenv("SHOP_BROKER", broker.url.replace("/0", "/1998"))
        file = tmp_path_factory.mktemp("guide") / "guide.py"
        file.write_text("\n\n".join([Path(__file__).with_name("guide.py").read_text(), *blocks_of("transactions.md")]))
        guide = _loaded(file)
    for maker in (guide.sessions, guide.books):
        guide.Base.metadata.create_all(maker.kw["bind"])
    with guide.books.begin() as session:
        session.connection().exec_driver_sql(TABLE)
    yield guide
    app_state_of(guide.app).ledger.close()
    guide.app.close()


def _loaded(path: Path) -> Any:
    spec = not_none(importlib.util.spec_from_file_location("onejob_guide", path))
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def messages(guide: Any) -> list[str]:
    with redis.Redis.from_url(guide.BROKER) as broker:
        raws: Any = broker.lrange("celery", 0, -1)
    return [json.loads(raw)["headers"]["id"] for raw in raws]


def run(guide: Any, job_id: str, task: Any, *args: Any) -> None:
    app_state = app_state_of(guide.app)
    job = not_none(app_state.ledger.claim(job_id, nonce=f"nonce-{job_id}"[:16], node="test").job)
    with set_current_run(Run(job, app_state.ledger, app_state.settings.limits)):
        ran = task(*args)
        if inspect.iscoroutine(ran):
            asyncio.run(ran)


@pytest.mark.parametrize(
    ("path", "body"),
    [("/orders", "invoice"), ("/orders/async", "invoice_in_a_coroutine"), ("/orders/dependency", "invoice")],
)
def test_an_order_and_its_job_are_atomic(guide: Any, path: str, body: str) -> None:
    """A request commits an order with its job, which is published, and whose end is committed with the invoice."""
    with TestClient(guide.api) as client:
        job_id = client.post(path, params={"customer": "ann"}).json()["job"]
    assert job_id in messages(guide)
    (order,) = decode(app_state_of(guide.app).ledger.get(job_id).payload).args
    run(guide, job_id, getattr(guide, body), order)
    number = f"R-{order:06}"
    job = app_state_of(guide.app).ledger.get(job_id)
    assert (job.state, job.result) == (State.COMPLETED, f'"{number}"')
    with guide.sessions() as session:
        assert session.get_one(guide.Order, order).invoice == number


def test_a_response_follows_the_commit(guide: Any) -> None:
    """A commit that fails is an error of the request; a dependency of FastAPI's default scope has answered by then."""
    depends = Depends(guide.get_session)

    def late(session: Session = depends) -> dict[str, str]:
        return {"job": guide.invoice.submit(0, session=session).id}

    def fail(_session: Session) -> None:
        raise RuntimeError("the database has gone")

    guide.api.post("/orders/late")(late)
    event.listen(guide.sessions, "before_commit", fail)
    try:
        client = TestClient(guide.api, raise_server_exceptions=False)
        statuses = [client.post(path, params={"customer": "eve"}).status_code for path in COMMITTING]
        promised = client.post("/orders/late")
    finally:
        event.remove(guide.sessions, "before_commit", fail)
    assert statuses == [500] * len(COMMITTING)
    assert promised.status_code == 200, "FastAPI's default: the guide says so"
    assert app_state_of(guide.app).ledger.get_or_none(promised.json()["job"]) is None
    with guide.sessions() as session:
        assert session.query(guide.Order).filter_by(customer="eve").count() == 0


def test_effects_elsewhere_are_guarded(guide: Any) -> None:
    """A second run of the body charges no customer again and writes no second entry."""
    job = guide.book.delay(7)
    run(guide, job.id, guide.book, 7)
    app_state = app_state_of(guide.app)
    app_state.ledger.crash(app_state.ledger.get(job.id), "lost before its end was recorded", "{}")
    app_state.ledger.claim(job.id, nonce="again", node="test")
    again = Run(app_state.ledger.get(job.id), app_state.ledger, app_state.settings.limits)
    with set_current_run(again):
        guide.book(7)
    with guide.books() as session:
        assert (session.query(guide.Entry).count(), list(guide.CHARGES.values())) == (1, [7])
