"""Quotas: how many new jobs a caller may ask for, and that what makes no new job costs nothing."""

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
from onejob.api.quotas import Quota, Quotas
from onejob.celery.app_state import app_state_of
from onejob.cli import main
from onejob.errors import ConfigurationError, StoreError, StoreUnavailableError
from onejob.jobs.records import Query
from tests.cases import for_each
from tests.contract.races import together
from tests.http.conftest import LOCAL, Shop, problem
from tests.http.test_keys import bearer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from celery import Celery

DAY = 86_400


@pytest.fixture
def opened(celery_app: Celery) -> Iterator[Callable[..., Shop]]:
    """Return a way to open the shop for everybody, within quotas."""
    clients: list[TestClient] = []

    def shop(**quotas: str) -> Shop:
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
    """A quota says how many within which period, and is written as it is read."""
    quota = Quota.parse(text)
    assert (quota.limit, quota.period, str(quota)) == (limit, period, text)


@for_each(
    "text",
    ["", "5", "5/", "/day", "0/day", "-1/day", "5/fortnight", "5/0", "5/days", "5/day ", "5 / day", "1.5/day",
     "1e3/day", "5/day/day", "5/31622401", "99999999999/day", "٣/day", "5/Day", 5, None],
)  # fmt: skip
def test_what_is_no_quota_is_told(text: Any) -> None:
    """What is no quota is refused, with the value and what one looks like."""
    with pytest.raises(ConfigurationError, match="20/day"):
        Quota.parse(text)


def test_new_jobs_are_counted(opened: Callable[..., Shop]) -> None:
    """As many new jobs as the quota has are accepted; the next is 429, tells until when, and stores nothing."""
    shop = opened(quota="2/day")
    assert [shop.post("invoice", {"order_id": number}).status_code for number in range(2)] == [202, 202]
    answer = shop.post("invoice", {"order_id": 2})
    told = problem(answer, 429, "quota-exceeded")
    assert (told["quota"], told["limit"]) == ("quota", "2/day")
    left = (datetime.fromisoformat(told["reset_at"]) - datetime.now(UTC)).total_seconds()
    assert DAY - 600 < left <= DAY
    assert left <= int(answer.headers["retry-after"]) <= DAY
    assert len(shop.ledger.find(Query())) == 2


def test_a_duplicate_costs_nothing(opened: Callable[..., Shop]) -> None:
    """Submissions that meet a job, are refused by one or repeat a key cost nothing, within the quota and over it."""
    shop = opened(quota="3/day")
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


def test_what_comes_to_nothing_costs_nothing(opened: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments that do not fit, a check, and a ledger that fails before the submission take nothing from the quota."""
    shop = opened(quota="1/day", identity_quota="1/day")
    assert shop.post("invoice", {"order_id": "1"}).status_code == 422
    assert shop.post("invoice", {"order_id": 1}, validate_only=True).status_code == 200
    consume = shop.ledger.consume

    def broken(name: str, **more: Any) -> Any:
        if name.endswith(f":{DAY}"):  # the second of the two
            raise StoreError("refused")
        return consume(name, **more)

    with monkeypatch.context() as patched:
        patched.setattr(shop.ledger, "spend", broken)
        problem(shop.post("invoice", {"order_id": 1}), 500, "internal")
    assert shop.post("invoice", {"order_id": 1}).status_code == 202


def test_what_may_have_come_to_something_stays_counted(
    opened: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the ledger does not say what came of a submission, its use stays counted, rather than be counted too few."""
    shop = opened(quota="1/day")

    def lost(*_args: Any, **_more: Any) -> Any:
        raise StoreUnavailableError("the answer was lost")

    with monkeypatch.context() as patched:
        patched.setattr(shop.ledger.store, "submit_many", lost)
        problem(shop.post("invoice", {"order_id": 1}), 503, "store-unavailable")
    problem(shop.post("invoice", {"order_id": 1}), 429, "quota-exceeded")


def test_the_same_again_has_a_quota_of_its_own(opened: Callable[..., Shop]) -> None:
    """The identity's quota counts new jobs of the same arguments, and what it refuses takes nothing from the other."""
    shop = opened(quota="4/day", identity_quota="2/day")
    for expected in (202, 202, 429, 429, 429):
        answer = shop.post("invoice", {"order_id": 1})
        assert answer.status_code == expected
        if expected == 202:
            shop.failed(answer.json()["job"]["id"])
    told = problem(shop.post("invoice", {"order_id": 1}), 429, "quota-exceeded")
    assert (told["quota"], told["limit"]) == ("identity_quota", "2/day")
    assert [shop.post("invoice", {"order_id": number}).status_code for number in (2, 3, 4)] == [202, 202, 429]


def test_over_the_quota_nothing_is_changed(opened: Callable[..., Shop]) -> None:
    """Over the quota a job that is there is not replaced, and none is queued behind it."""
    shop = opened(quota="2/day")
    waiting = shop.post("newest", {"document": 1, "text": "a"}, countdown=60).json()["job"]["id"]
    assert shop.post("newest", {"document": 1, "text": "b"}, countdown=60).json()["outcome"] == "replaced"
    running = shop.post("again", {"customer": 1}).json()["job"]["id"]
    shop.claimed(running)
    problem(shop.post("newest", {"document": 1, "text": "c"}, countdown=60), 429, "quota-exceeded")
    problem(shop.post("again", {"customer": 1}), 429, "quota-exceeded")
    assert json.loads(shop.ledger.get(waiting).payload)["kwargs"]["text"] == "b"
    assert {job.id for job in shop.ledger.find(Query())} == {waiting, running}


def test_a_job_that_ends_meanwhile_is_not_followed_by_one_too_many(
    opened: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the quota, when the job that would answer ends at that moment, nothing runs, and the identity is free."""
    shop = opened(quota="1/day")
    job_id = shop.post("invoice", {"order_id": 1}).json()["job"]["id"]
    job, find_existing = shop.ledger.get(job_id), shop.ledger.store.find_existing

    def ends_meanwhile(*asked: Any) -> Any:
        found = find_existing(*asked)
        shop.ledger.cancel(job.id)
        return found

    monkeypatch.setattr(shop.ledger.store, "find_existing", ends_meanwhile)
    problem(shop.post("invoice", {"order_id": 1}), 429, "quota-exceeded")
    assert {each.state for each in shop.ledger.find(Query())} == {"canceled"}
    task: Any = shop.app.tasks["shop.invoice"]
    assert task.delay(1).outcome == "admitted"


def test_at_once_no_more_than_the_quota(opened: Callable[..., Shop]) -> None:
    """Of many who ask at the same moment, as many get new jobs as the quota has."""
    shop = opened(quota="3/day")
    answers = together(*[partial(shop.post, "invoice", {"order_id": number}) for number in range(12)])
    assert sorted(answer.status_code for answer in answers) == [202] * 3 + [429] * 9
    assert len(shop.ledger.find(Query())) == 3


def test_a_second_click_on_the_last_is_answered(opened: Callable[..., Shop]) -> None:
    """Of many equal submissions at the same moment, when one is left, one is new and the others get its job."""
    shop = opened(quota="1/day")
    answers = together(*[partial(shop.post, "invoice", {"order_id": 1}) for _ in range(12)])
    assert sorted(answer.status_code for answer in answers) == [200] * 11 + [202]
    assert len({answer.json()["job"]["id"] for answer in answers}) == 1


def test_each_key_has_quotas_of_its_own(celery_app: Celery, tmp_path: Path) -> None:
    """What one key uses up is there for another, and a key without quotas has none."""
    file = KeyFile(tmp_path / "keys.json")
    names = ("a", "b", "free")
    texts = {
        name: file.add(name, Role.SUBMIT, Quotas.parse(None if name == "free" else "1/day", None)) for name in names
    }
    with TestClient(create_app(celery_app, keys=file.path)) as client:

        def asked(name: str, number: int) -> int:
            body = {"task": "shop.invoice", "kwargs": {"order_id": number}}
            return client.post("/jobs", json=body, headers=bearer(texts[name])).status_code

        assert [asked("a", 1), asked("a", 2), asked("b", 3), asked("b", 4)] == [202, 429, 202, 429]
        assert [asked("free", number) for number in (5, 6, 7)] == [202, 202, 202]


def test_a_quota_belongs_to_a_key_when_there_are_keys(celery_app: Celery, tmp_path: Path) -> None:
    """Quotas for everybody cannot be given beside keys, and a key that asks for nothing has none."""
    file = KeyFile(tmp_path / "keys.json")
    file.add("a", Role.SUBMIT)
    for start in (router, create_app):
        with pytest.raises(ConfigurationError, match="onejob keys add"):
            start(celery_app, keys=file.path, quota="1/day")
        with pytest.raises(ConfigurationError, match="is no quota"):
            start(celery_app, identity_quota="often")
    with pytest.raises(ConfigurationError, match="role submit"):
        file.add("b", Role.READ, Quotas.parse("1/day", None))


def test_the_command_line_knows_quotas(tmp_path: Path) -> None:
    """`keys add` takes quotas and refuses what is none, `keys list` shows them, and the file keeps them as texts."""
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
