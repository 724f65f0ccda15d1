"""Fixtures of the HTTP tests: one app and one ledger for all of them, which each finds empty, and its clients."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from starlette.testclient import TestClient

from onejob.api import create_app
from onejob.api.api_keys import KeyFile, Role
from onejob.celery.app_state import app_state_of
from onejob.jobs.model import JobRow
from onejob.ledger.ledger import Ledger
from onejob.prometheus import CONTENT_TYPE as EXPOSITION
from tests.api.shop import build
from tests.conftest import KEPT_TABLES
from tests.fundamentals.shop import claimed
from tests.operation_cases import ERROR

LOCAL: dict[str, Any] = {"base_url": "http://127.0.0.1", "client": ("127.0.0.1", 50_000)}
DATA = {"application/json", "application/problem+json", "text/event-stream; charset=utf-8", EXPOSITION}
"""The types of responses, whatever texts of clients and jobs are in them: nothing that a browser executes."""
REMOTE: dict[str, Any] = {"base_url": "http://testserver", "client": ("192.0.2.7", 50_000)}


@dataclass(frozen=True)
class Shop:
    """An app, its ledger, and a client of its API, which sends the key of a name."""

    app: Celery
    client: TestClient
    texts: dict[str, str] = field(default_factory=dict)
    """The API keys by name."""
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def ledger(self) -> Ledger:
        return app_state_of(self.app).ledger

    @property
    def task(self) -> Any:
        return self.app.tasks["shop.invoice"]

    def named(self, name: str) -> Shop:
        return replace(self, headers=bearer(self.texts[name]))

    def request(self, method: str, path: str, *, headers: Any = None, **more: Any) -> Any:
        own = headers if isinstance(headers, list) else self.headers | (headers or {})
        response = self.client.request(method, path, headers=own, **more)
        assert not response.content or response.headers["content-type"] in DATA, "no response is a page"
        return response

    def get(self, path: str, **more: Any) -> Any:
        return self.request("GET", path, **more)

    def post(self, path: str, body: Any = None, **more: Any) -> Any:
        """Send a POST request: a JSON body, which is empty by default, or `content`."""
        own = {} if "content" in more else {"json": {} if body is None else body}
        return self.request("POST", path, **own | more)

    def submit(self, order_id: Any = 7, task: str = "invoice", *, headers: Any = None, **more: Any) -> Any:
        """Submit a job; `kwargs` replaces its arguments."""
        return self.post("/jobs", {"task": f"shop.{task}", "kwargs": {"order_id": order_id}} | more, headers=headers)

    def job_id(self, order_id: Any = 7, task: str = "invoice", **more: Any) -> str:
        response = self.submit(order_id, task, **more)
        assert response.status_code in {200, 202}, response.text
        return str(response.json()["job"]["id"])

    def claimed(self, job_id: str) -> JobRow:
        return claimed(self.ledger, job_id, "node")

    def completed(self, job_id: str, result: str = "1") -> JobRow:
        return self.ledger.complete(self.claimed(job_id), result)

    def failed(self, job_id: str, error: str = ERROR, reason: str = "ValueError: no") -> JobRow:
        return self.ledger.fail(self.claimed(job_id), error, reason)


class Standing:
    """The app of a whole test process, and what serves it: made once, since it takes longer than most tests."""

    def __init__(self, folder: Path) -> None:
        self._stack = ExitStack()
        self._path = folder / "ledger.db"
        self._clients: dict[bool, TestClient] = {}
        self.app = build(f"sqlite:///{self._path}")
        self.keys, self.texts = key_file(folder / "keys.json")
        self._kept = self.keys.path.read_bytes()
        app_state_of(self.app).ledger.store.get_many(["any"])  # which makes the file

    def client(self, *, has_keys: bool) -> TestClient:
        if has_keys not in self._clients:
            web = create_app(self.app, self.keys.path if has_keys else None)
            client = TestClient(web, raise_server_exceptions=False, **(REMOTE if has_keys else LOCAL))
            self._clients[has_keys] = self._stack.enter_context(client)
        return self._clients[has_keys]

    def empty(self) -> None:
        """Delete the jobs of earlier tests, and their keys."""
        with closing(sqlite3.connect(self._path, timeout=30.0)) as connection, connection:
            names = connection.execute("select name from sqlite_master where type = 'table'").fetchall()
            for (name,) in names:
                if name not in KEPT_TABLES:
                    connection.execute(f"delete from {name}")  # noqa: S608 - ours
        if self.keys.path.read_bytes() != self._kept:
            self.keys.path.write_bytes(self._kept)

    def close(self) -> None:
        self._stack.close()
        app_state_of(self.app).ledger.close()


def key_file(path: Path) -> tuple[KeyFile, dict[str, str]]:
    """Make a file with a key of each role, two of tenants, and one that is limited to a task; return their texts."""
    file = KeyFile(path)
    texts = {str(role): file.add(role, role) for role in Role}
    texts |= {name: file.add(name, Role.OPERATE, own_jobs=True) for name in ("one", "two")}
    return file, texts | {"limited": file.add("limited", Role.OPERATE, tasks=["shop.invoice"])}


def bearer(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


@pytest.fixture(scope="session")
def standing_app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standing]:
    standing = Standing(tmp_path_factory.mktemp("http"))
    yield standing
    standing.close()


@pytest.fixture
def standing(standing_app: Standing) -> Standing:
    standing_app.empty()
    return standing_app


@pytest.fixture
def celery_app(standing: Standing) -> Celery:
    """Return the Celery app of all tests with an empty ledger. A test that changes its settings builds its own."""
    return standing.app


@pytest.fixture
def shop(standing: Standing) -> Shop:
    return Shop(standing.app, standing.client(has_keys=False))


@pytest.fixture
def keyed(standing: Standing) -> Shop:
    """Return the shop with an API with API keys, and a remote client that sends none by default."""
    return Shop(standing.app, standing.client(has_keys=True), standing.texts)


@pytest.fixture
def open_shop(tmp_path: Path) -> Iterator[Callable[..., Shop]]:
    """Return a way to open a shop of its own: with settings of the app, with options of `create_app`, on a store."""
    with ExitStack() as stack:

        def opened(
            web: dict[str, Any] | None = None, url: str = "", *, has_keys: bool = False, **settings: Any
        ) -> Shop:
            app = build(url or f"sqlite:///{tmp_path / 'shop.db'}", **settings)
            options: dict[str, Any] = {"raise_server_exceptions": False, **(REMOTE if has_keys else LOCAL)}
            file, texts = key_file(tmp_path / "keys.json") if has_keys else (None, {})
            client = TestClient(create_app(app, file.path if file else None, **(web or {})), **options)
            stack.callback(app_state_of(app).ledger.close)
            return Shop(app, stack.enter_context(client), texts)

        yield opened


def problem(response: Any, status: int, kind: str) -> dict[str, Any]:
    """Assert that a response is a problem of this type, and return it."""
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json"), (
        response.text
    )
    details: dict[str, Any] = response.json()
    assert (details["type"], details["status"]) == (f"urn:onejob:problem:{kind}", status)
    return details
