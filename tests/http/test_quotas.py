"""Quotas limit new jobs; a submission that creates no job consumes none."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

from onejob.api import create_app, router
from onejob.api.api_keys import KeyFile, Role
from onejob.celery.app_state import app_state_of
from onejob.cli import main
from onejob.errors import ConfigurationError, StoreError, StoreUnavailableError
from onejob.jobs.quota import Quota, Quotas
from onejob.jobs.records import Query
from tests.cases import for_each
from tests.contract.races import together
from tests.http.conftest import LOCAL, Shop, problem
from tests.http.test_api_keys import bearer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from celery import Celery

DAY = 86_400


@pytest.fixture
def open_shop(celery_app: Celery) -> Iterator[Callable[..., Shop]]:
    """Return a function that opens the shop, without API keys, with quotas."""
    clients: list[TestClient] = []

    def shop(**quotas: Any) -> Shop:
        clients.append(TestClient(create_app(celery_app, **quotas), **LOCAL))
        return Shop(celery_app, clients[-1])

    yield shop
    for client in clients:
        client.close()
    app_state_of(celery_app).ledger.close()


@pytest.mark.parametrize(
    ("text", "limit", "period"),
    [("1/second", 1, 1), ("30/minute", 30, 60), ("7/hour", 7, 3600), ("20/day", 20, DAY), ("1/week", 1, 7 * DAY),
     ("5/90", 5, 90), ("1000000000/31622400", 10**9, 366 * DAY)],
)  # fmt: skip
def test_a_quota_is_a_number_and_a_period(text: str, limit: int, period: int) -> None:
    """A quota is a limit and a period in seconds, and its text can be parsed again."""
    quota = Quota.parse(text)
    assert (quota.limit, quota.period, str(quota)) == (limit, period, text)


@for_each(
    "text",
    ["", "5", "5/", "/day", "0/day", "-1/day", "5/fortnight", "5/0", "5/days", "5/day ", "5 / day", "1.5/day",
     "1e3/day", "5/day/day", "5/31622401", "99999999999/day", "٣/day", "5/Day", 5, None],
)  # fmt: skip
def test_an_invalid_quota_is_refused(text: Any) -> None:
    """An invalid quota is a `ConfigurationError` with the value and an example."""
    with pytest.raises(ConfigurationError, match="20/day"):
        Quota.parse(text)


def test_new_jobs_are_limited(open_shop: Callable[..., Shop]) -> None:
    """New jobs are accepted up to the quota; the next is 429 with the time of the reset, and nothing is stored."""
    shop = open_shop(quota="2/day")
    assert [shop.post("invoice", {"order_id": number}).status_code for number in range(2)] == [202, 202]
    response = shop.post("invoice", {"order_id": 2})
    details = problem(response, 429, "quota-exceeded")
    assert (details["quota"], details["limit"]) == ("quota", "2/day")
    left = (datetime.fromisoformat(details["reset_at"]) - datetime.now(UTC)).total_seconds()
    assert DAY - 600 < left <= DAY
    assert left <= int(response.headers["retry-after"]) <= DAY
    assert len(shop.ledger.find(Query())) == 2


def test_a_duplicate_consumes_no_quota(open_shop: Callable[..., Shop]) -> None:
    """Attached, rejected and repeated submissions consume no quota, below the limit and above it."""
    shop = open_shop(quota="3/day")
    keyed = {"idempotency_key": "k"}
    first = shop.post("invoice", {"order_id": 1}, **keyed).json()["job"]["id"]
    shop.failed(first)
    strict = shop.post("strict", {"order_id": 1}).json()["job"]["id"]

    def twice() -> None:
        assert shop.post("strict", {"order_id": 1}).status_code == 409
        assert shop.post("invoice", {"order_id": 2}, on_duplicate="raise").status_code == 409
        again = shop.post("invoice", {"order_id": 1}, **keyed)
        assert (again.status_code, again.json()["job"]["id"]) == (200, first)
        assert shop.post("invoice", {"order_id": 9}, **keyed).status_code == 422
        attached = shop.post("invoice", {"order_id": 2, "note": "twice"})
        assert (attached.status_code, attached.json()["outcome"]) == (200, "attached")

    assert shop.post("invoice", {"order_id": 2}).status_code == 202
    twice()
    problem(shop.post("invoice", {"order_id": 3}), 429, "quota-exceeded")
    twice()
    assert {job.id for job in shop.ledger.find(Query())} >= {first, strict}
    assert len(shop.ledger.find(Query())) == 3
    assert shop.ledger.get(strict).expires_at is None


def test_a_failed_submission_consumes_no_quota(open_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch) -> None:
    """Invalid arguments, a check, and a ledger error before the submission consume no quota."""
    shop = open_shop(quota="1/day", identity_quota="1/day")
    assert shop.post("invoice", {"order_id": "1"}).status_code == 422
    assert shop.post("invoice", {"order_id": 1}, validate_only=True).status_code == 200
    consume = shop.ledger.consume

    def broken(name: str, **more: Any) -> Any:
        if name.endswith(f":{DAY}"):  # the second of the two
            raise StoreError("refused")
        return consume(name, **more)

    with monkeypatch.context() as patched:
        patched.setattr(shop.ledger, "consume", broken)
        problem(shop.post("invoice", {"order_id": 1}), 500, "internal")
    assert shop.post("invoice", {"order_id": 1}).status_code == 202


def test_an_unknown_result_consumes_quota(open_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch) -> None:
    """If the result of a submission is unknown, its quota is not refunded, so the limit always holds."""
    shop = open_shop(quota="1/day")

    def lost(*_args: Any, **_more: Any) -> Any:
        raise StoreUnavailableError("the response was lost")

    with monkeypatch.context() as patched:
        patched.setattr(shop.ledger.store, "submit_many", lost)
        problem(shop.post("invoice", {"order_id": 1}), 503, "store-unavailable")
    problem(shop.post("invoice", {"order_id": 1}), 429, "quota-exceeded")


def test_the_identity_quota_is_separate(open_shop: Callable[..., Shop]) -> None:
    """The identity quota limits new jobs of one identity, and a submission that it refuses consumes no total quota."""
    shop = open_shop(quota="4/day", identity_quota="2/day")
    for expected in (202, 202, 429, 429, 429):
        response = shop.post("invoice", {"order_id": 1})
        assert response.status_code == expected
        if expected == 202:
            shop.failed(response.json()["job"]["id"])
    details = problem(shop.post("invoice", {"order_id": 1}), 429, "quota-exceeded")
    assert (details["quota"], details["limit"]) == ("identity_quota", "2/day")
    assert [shop.post("invoice", {"order_id": number}).status_code for number in (2, 3, 4)] == [202, 202, 429]


def test_above_the_quota_no_job_is_changed(open_shop: Callable[..., Shop]) -> None:
    """Above the quota an existing job is not replaced, and no next run is queued."""
    shop = open_shop(quota="2/day")
    waiting = shop.post("newest", {"document": 1, "text": "a"}, countdown=60).json()["job"]["id"]
    assert shop.post("newest", {"document": 1, "text": "b"}, countdown=60).json()["outcome"] == "replaced"
    running = shop.post("again", {"customer": 1}).json()["job"]["id"]
    shop.claimed(running)
    problem(shop.post("newest", {"document": 1, "text": "c"}, countdown=60), 429, "quota-exceeded")
    problem(shop.post("again", {"customer": 1}), 429, "quota-exceeded")
    assert json.loads(shop.ledger.get(waiting).payload)["kwargs"]["text"] == "b"
    assert {job.id for job in shop.ledger.find(Query())} == {waiting, running}


def test_a_job_that_ends_meanwhile_is_not_replaced_above_the_quota(
    open_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the quota, if the existing job ends meanwhile, no job is created, and the identity is free."""
    shop = open_shop(quota="1/day")
    job_id = shop.post("invoice", {"order_id": 1}).json()["job"]["id"]
    job, find_existing = shop.ledger.get(job_id), shop.ledger.store.find_existing

    def ends_meanwhile(*args: Any) -> Any:
        found = find_existing(*args)
        shop.ledger.cancel(job.id)
        return found

    monkeypatch.setattr(shop.ledger.store, "find_existing", ends_meanwhile)
    problem(shop.post("invoice", {"order_id": 1}), 429, "quota-exceeded")
    assert {each.state for each in shop.ledger.find(Query())} == {"canceled"}
    task: Any = shop.app.tasks["shop.invoice"]
    assert task.delay(1).outcome == "admitted"


def test_concurrent_submissions_respect_the_quota(open_shop: Callable[..., Shop]) -> None:
    """Concurrent submissions create as many jobs as the quota allows."""
    shop = open_shop(quota="3/day")
    responses = together(*[partial(shop.post, "invoice", {"order_id": number}) for number in range(12)])
    assert sorted(response.status_code for response in responses) == [202] * 3 + [429] * 9
    assert len(shop.ledger.find(Query())) == 3


def test_concurrent_duplicates_attach_to_the_last_job(open_shop: Callable[..., Shop]) -> None:
    """Of concurrent equal submissions with a quota of one, one creates the job and the others get it."""
    shop = open_shop(quota="1/day")
    responses = together(*[partial(shop.post, "invoice", {"order_id": 1}) for _ in range(12)])
    assert sorted(response.status_code for response in responses) == [200] * 11 + [202]
    assert len({response.json()["job"]["id"] for response in responses}) == 1


def test_each_api_key_has_its_own_quotas(celery_app: Celery, tmp_path: Path) -> None:
    """A key does not consume the quota of another, and a key without quotas is unlimited."""
    file = KeyFile(tmp_path / "keys.json")
    names = ("a", "b", "free")
    texts = {
        name: file.add(name, Role.SUBMIT, Quotas.parse(None if name == "free" else "1/day", None)) for name in names
    }
    with TestClient(create_app(celery_app, keys=file.path)) as client:

        def submit(name: str, number: int) -> int:
            body = {"task": "shop.invoice", "kwargs": {"order_id": number}}
            return client.post("/jobs", json=body, headers=bearer(texts[name])).status_code

        assert [submit("a", 1), submit("a", 2), submit("b", 3), submit("b", 4)] == [202, 429, 202, 429]
        assert [submit("free", number) for number in (5, 6, 7)] == [202, 202, 202]


def test_quotas_are_set_per_api_key(celery_app: Celery, tmp_path: Path) -> None:
    """Quotas of the router cannot be combined with API keys, and a key that cannot submit cannot have quotas."""
    file = KeyFile(tmp_path / "keys.json")
    file.add("a", Role.SUBMIT)
    for start in (router, create_app):
        with pytest.raises(ConfigurationError, match="onejob keys add"):
            start(celery_app, keys=file.path, quota="1/day")
        with pytest.raises(ConfigurationError, match="is not a quota"):
            start(celery_app, identity_quota="often")
    with pytest.raises(ConfigurationError, match="role submit"):
        file.add("b", Role.READ, Quotas.parse("1/day", None))


def test_the_command_line_sets_quotas(tmp_path: Path) -> None:
    """`keys add` sets quotas and refuses invalid ones, `keys list` shows them, and the file stores them as texts."""
    path = tmp_path / "keys.json"

    def call(*args: str) -> Any:
        return CliRunner().invoke(main, ["keys", *args, "--file", str(path)])

    both = ("--quota", "1000/day", "--identity-quota", "20/86400")
    assert call("add", "shop", "--role", "submit", *both).exit_code == 0
    assert call("add", "plain", "--role", "submit").exit_code == 0
    wrong = call("add", "wrong", "--role", "submit", "--quota", "many")
    assert (wrong.exit_code, "20/day" in wrong.output) == (1, True)
    listed = {row["name"]: (row["quota"], row["identity_quota"]) for row in json.loads(call("list", "--json").output)}
    assert listed == {"shop": ("1000/day", "20/day"), "plain": (None, None)}
    assert "1000/day" in call("list").output
    assert [key.quotas for key in KeyFile(path).read()] == [Quotas.parse("1000/day", "20/day"), Quotas()]
    rows = json.loads(path.read_text())
    assert (rows[0]["quota"], "quota" in rows[1]) == ("1000/day", False)
