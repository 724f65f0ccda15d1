"""Budgets: when the jobs of a submitter have cost enough for the day, it gets answers, and no new job."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import celery
import pytest

import onejob
from onejob.celery import app_state
from onejob.celery.app_state import app_state_of
from onejob.errors import ConfigurationError, PartlySubmittedError, QuotaExceededError
from onejob.ledger.ledger import Ledger
from tests.cases import for_each
from tests.conftest import on_stores
from tests.fundamentals.shop import claimed
from tests.stores.support import StoreAddress

fresh_address = on_stores("sqlite", "postgresql", "redis")
BUDGET = {"usd": "20/day", "tokens": "1000/day"}


@pytest.fixture
def app(store_address: StoreAddress, monkeypatch: pytest.MonkeyPatch) -> Iterator[celery.Celery]:
    """Return an app that knows at once what was spent."""
    monkeypatch.setattr(app_state, "BUDGET_SECONDS", 0.0)
    changes = {"onejob_store": store_address.url, "onejob_namespace": store_address.namespace}
    app = celery.Celery(
        "budgets", broker="onejob://" if "redis" not in store_address.url else "memory://", changes=changes
    )
    app.task(base=onejob.Task, name="ask", shared=False)(ask)
    yield app
    app_state_of(app).close()


@pytest.fixture
def ledger(app: celery.Celery) -> Ledger:
    return app_state_of(app).ledger


def ask(number: int) -> None: ...


def spend(ledger: Ledger, job_id: str, **amounts: str) -> None:
    """Have a run of a job cost something, and end."""
    job = ledger.add_cost(claimed(ledger, job_id), {unit: Decimal(amount) for unit, amount in amounts.items()})
    ledger.complete(job, "null")


def test_a_spent_budget_refuses_new_jobs_alone(app: celery.Celery, ledger: Ledger) -> None:
    """At the budget a new job is refused with the end of the day, a duplicate is answered, and others are free."""
    task: Any = app.tasks["ask"]
    with onejob.submitter("ann", budget=BUDGET):
        first, live = task.delay(1), task.delay(2)
        spend(ledger, first.id, usd="19.999999999")
        third = task.delay(3)
        spend(ledger, third.id, usd="0.000000001")
        with pytest.raises(QuotaExceededError, match="the budget of 20 usd/day is spent: retry in") as refused:
            task.delay(4)
        assert (refused.value.option, refused.value.limit) == ("budget", "20 usd/day")
        assert 0 < refused.value.retry_after <= 86_400
        assert task.delay(2).id == live.id
        with pytest.raises(QuotaExceededError):
            asyncio.run(task.aapply_async((4,)))
        with pytest.raises(PartlySubmittedError) as partly:
            task.submit_many([(2,), (5,)])
        assert [isinstance(each, QuotaExceededError) for each in partly.value.results] == [False, True]
    with onejob.submitter("ann", budget={"usd": "21/day"}):
        assert task.delay(6).outcome is onejob.Outcome.ADMITTED
    with onejob.submitter("bob", budget=BUDGET):
        assert task.delay(7).outcome is onejob.Outcome.ADMITTED
    with onejob.submitter("ann"):
        assert task.delay(8).outcome is onejob.Outcome.ADMITTED


def test_each_unit_has_its_own_budget(app: celery.Celery, ledger: Ledger) -> None:
    """The first unit that is spent refuses, whatever is left of the others."""
    task: Any = app.tasks["ask"]
    with onejob.submitter("ann", budget=BUDGET):
        spend(ledger, task.delay(1).id, usd="1", tokens="1000")
        with pytest.raises(QuotaExceededError, match="the budget of 1000 tokens/day is spent"):
            task.delay(2)


@for_each("budget, why", [
    ({"usd": "20"}, "'20' is not a budget: write AMOUNT/day"), ({"usd": "20/hour"}, "added up by days"),
    ({"usd": "0/day"}, "with an amount above 0"), ({"usd": 20}, "20 is not a budget"),
    ({"us dollar": "20/day"}, "'us dollar' is no unit of a cost"), ({"usd": "0.0000000001/day"}, "is not a budget"),
])  # fmt: skip
def test_a_budget_that_cannot_work_is_refused(budget: dict[str, Any], why: str) -> None:
    """A budget without a period or with another one, an amount that is none, and a unit that is none are refused."""
    with pytest.raises(ConfigurationError, match=why), onejob.submitter("ann", budget=budget):
        pass
