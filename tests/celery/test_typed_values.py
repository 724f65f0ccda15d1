"""Dataclasses and pydantic models as arguments, results and steps of typed tasks."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from celery import Celery
from pydantic import BaseModel, Field

import onejob
from onejob.celery.app_state import app_state_of
from onejob.celery.current_job import RunningJob, set_current_job
from onejob.celery.duplicate_check import check_duplicate
from onejob.celery.typed_values import UnfitValueError, codec_of
from onejob.jobs.transitions import new_nonce
from tests.cases import for_each
from tests.celery.app import TYPED
from tests.celery.harness import program_environment
from tests.celery.test_async import end
from tests.forks import CELERY
from tests.forks import run as run_program
from tests.services import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Kind(Enum):
    BOOK = "book"
    GAME = "game"


@dataclass
class Line:
    sku: str
    price: float = 1.0


@dataclass
class Order:
    id: int
    lines: list[Line] = field(default_factory=list)
    kind: Kind | None = None
    at: datetime | None = None
    key: UUID | None = None
    total: Decimal = Decimal(0)


class Address(BaseModel):
    street: str
    house: int = Field(default=1, alias="houseNumber")


class Customer(BaseModel, strict=True):
    name: str
    born: datetime | None = None
    addresses: list[Address] = []


FULL = Order(1, [Line("a"), Line("b", 2)], Kind.GAME, datetime(2026, 1, 1), UUID(int=7), Decimal("1.50"))
ANN = Customer(name="ann", born=datetime(2000, 1, 1), addresses=[Address(street="x", houseNumber=3)])


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Any]:
    app: Any = Celery("models", broker="memory://", set_as_current=False)
    app.conf.onejob_store = f"sqlite:///{tmp_path / 'ledger.db'}"

    @onejob.task(app, name="ship", unique_on=["order.id", "to"], shared=False)
    def ship(order: Order, to: Customer | None = None, *, gifts: dict[str, Line] | None = None) -> list[Order]:
        assert isinstance(order, Order)
        return [order]

    @onejob.task(app, name="greet", shared=False)
    def greet(customer: Customer, order: Order = FULL) -> Customer:
        assert isinstance(customer, Customer)
        assert isinstance(order, Order)
        return customer

    @onejob.task(app, name="plain", shared=False)
    def plain(order: dict[str, Any]) -> dict[str, Any]:
        return order

    app.finalize()
    yield app
    app_state_of(app).ledger.close()


def run(app: Any, result: Any) -> Any:
    """Run a job as a worker's child would, and store its end; return what its result gives."""
    ledger = app_state_of(app).ledger
    job = ledger.claim(result.id, nonce=new_nonce(), node="north").job
    assert job is not None
    task, message = app.tasks[job.task], json.loads(job.payload)
    body = task._onejob.typed.wrap(task.run)
    ledger.complete(job, json.dumps(body(*message["args"], **message["kwargs"])))
    return result.get(timeout=1)


@for_each(
    "annotation, value",
    [
        (Order, FULL),
        (Order | None, None),
        (list[Order], [FULL, Order(2)]),
        (dict[str, list[Line]], {"x": [Line("a")]}),
        (tuple[Line, Customer], (Line("a"), ANN)),
        (tuple[Line, ...], (Line("a"), Line("b"))),
        (Customer, ANN),
        (Customer | Order, FULL),
        (dict[str, Customer | None], {"a": ANN, "b": None}),
    ],
)
def test_models_survive_json(annotation: Any, value: Any) -> None:
    """What an annotation names becomes plain JSON, and from that an equal object; JSON that fits stays the same."""
    codec = codec_of(annotation)
    assert codec is not None
    text = json.dumps(codec.dump(value, "x"))
    assert codec.build(json.loads(text), "x") == value
    assert json.dumps(codec.dump(json.loads(text), "x")) == text


@for_each("annotation", [int, str | None, list[int], dict[str, Any], Any, None, Kind])
def test_what_is_plain_json_is_left_alone(annotation: Any) -> None:
    """An annotation without a model is converted by nobody."""
    assert codec_of(annotation) is None


@for_each(
    "annotation, value, where",
    [
        (Order, {"lines": []}, "x.id: the field is missing"),
        (Order, {"id": "1"}, "x.id: must be int, not str"),
        (Order, {"id": True}, "x.id: must be int, not bool"),
        (Order, {"id": 1, "lines": [{"sku": 1}]}, r"x.lines.0.sku: must be str"),
        (Order, {"id": 1, "idd": 1}, "x.idd: Order has no such field"),
        (Order, {"id": 1, "kind": "car"}, "x.kind: must be Kind, not 'car'"),
        (Order, {"id": 1, "at": "noon"}, "x.at: must be datetime"),
        (Order, [], "x: must be Order, not list"),
        (Customer, {"name": 1}, "x.name: Input should be a valid string"),
        (list[Customer], [{"name": "a", "addresses": [{}]}], r"x.0.addresses.0.street: Field required"),
        (Customer, FULL, "x"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_field(annotation: Any, value: Any, where: str) -> None:
    """A value that does not fit raises an error that names the field."""
    codec = codec_of(annotation)
    assert codec is not None
    with pytest.raises(UnfitValueError, match=f"^{where}"):
        codec.dump(value, "x")


def test_equal_models_are_equal_jobs(app: Any) -> None:
    """A model, the JSON of it, and the JSON without its defaults are one job; `unique_on` reaches into models."""
    ship, greet = app.tasks["ship"], app.tasks["greet"]
    first = ship.delay(Order(1, [Line("a")]), ANN)
    assert ship.delay({"id": 1}, to=ANN).id == first.id
    assert ship.delay(Order(2), ANN).id != first.id
    existing = check_duplicate(app, "ship", (Order(1), ANN), {}).existing
    assert existing is not None
    assert existing.id == first.id
    hello = greet.delay(ANN)
    assert hello.id == greet.delay(ANN, FULL).id
    same = {"name": "ann", "born": "2000-01-01T00:00:00", "addresses": [{"street": "x", "houseNumber": 3}]}
    assert hello.id == greet.submit_many([(same,)])[0].id == greet.s(customer=same).delay().id


def test_arguments_that_do_not_fit_are_no_jobs(app: Any) -> None:
    """A wrong field raises `InvalidArgumentsError` at the submission, by every way to submit, and nothing is stored."""
    ship = app.tasks["ship"]
    for call in (
        lambda: ship.delay({"id": "x"}),
        lambda: ship.submit_many([({"id": "x"},)]),
        lambda: check_duplicate(app, "ship", ({"id": "x"},), {}),
    ):
        with pytest.raises(onejob.InvalidArgumentsError, match=r"'ship'.* order\.id: must be int, not str"):
            call()
    with pytest.raises(onejob.InvalidArgumentsError, match=r"gifts\.a\.sku: the field is missing"):
        ship.delay(Order(1), gifts={"a": {}})
    with pytest.raises(onejob.InvalidArgumentsError, match=r"to\.name"):
        ship.delay(Order(1), {"name": 5})


def test_the_body_and_the_caller_see_models(app: Any) -> None:
    """The body gets objects, the ledger has JSON, and `get` returns objects where the annotation accepts it."""
    ship, greet = app.tasks["ship"], app.tasks["greet"]
    result = ship.delay(FULL)
    assert run(app, result) == [FULL]
    assert result.job.result[0]["kind"] == "game"
    assert ship.AsyncResult(result.id).result == [FULL]
    assert run(app, greet.delay(ANN)) == ANN
    assert run(app, app.tasks["plain"].delay({"id": "x"})) == {"id": "x"}
    refused = greet.delay(ANN)
    end(app, refused.id, '{"nam": "ann"}')
    with pytest.raises(onejob.InvalidPayloadError, match=r"result\.name"):
        refused.get(timeout=1)
    app.conf.task_always_eager = True
    assert ship.delay({"id": 3}).get() == [Order(3)]
    with pytest.raises(onejob.InvalidArgumentsError):
        ship.delay({})


calls: list[int] = []


def price(order: Order) -> Line:
    calls.append(order.id)
    return Line("total", float(order.id))


def named() -> dict[str, Any]:
    return {"sku": "a"}


def test_steps_keep_models(app: Any) -> None:
    """A step whose callable says that it returns a model gives that model, also from the kept value."""
    result = app.tasks["ship"].delay(FULL)
    ledger, limits = app_state_of(app).ledger, app_state_of(app).settings.limits
    job = ledger.claim(result.id, nonce=new_nonce(), node="north").job
    assert job is not None
    for _ in range(2):  # the second one reads what the first has kept
        with set_current_job(RunningJob(job, ledger, limits)) as running:
            assert running.step("price", price, FULL) == Line("total", 1.0)
            assert running.step("named", named) == {"sku": "a"}
    assert calls == [1]


def test_celery_and_onejob_do_not_both_convert(app: Any) -> None:
    """`typed=True` beside Celery's `pydantic=True` is refused; `pydantic=True` alone is Celery's."""

    def body(customer: Customer) -> None: ...

    decorate: Any = onejob.task
    with pytest.raises(onejob.ConfigurationError, match="pydantic=True"):
        decorate(app, name="both", pydantic=True, typed=True, shared=False)(body)
    celery_s = decorate(app, name="celery_s", pydantic=True, shared=False)(body)
    assert celery_s._onejob.typed is None
    assert onejob.Task.typed is False


WITHOUT_PYDANTIC = """
import sys
sys.modules["pydantic"] = None
from dataclasses import dataclass
import celery, onejob
app = celery.Celery("x", broker="memory://")
app.conf.onejob_store = "sqlite:///" + sys.argv[1]

@dataclass
class Order:
    id: int

@onejob.task(app)
def ship(order: Order) -> Order:
    return order

print(ship.delay(Order(1)).outcome, ship.delay({"id": 1}).outcome)
"""


def test_dataclasses_need_no_pydantic(tmp_path: Path) -> None:
    """Without pydantic dataclasses are converted all the same."""
    command = ["-c", WITHOUT_PYDANTIC, str(tmp_path / "ledger.db")]
    done = run_program(command, environment=program_environment(), cwd=tmp_path, modules=CELERY)
    assert (done.stdout, done.stderr) == ("admitted attached\n", "")


def test_a_worker_builds_and_dumps(new_house: Any, tmp_path: Path) -> None:
    """A real worker gives the body models, stores JSON, and passes JSON on to the next task of a chain."""
    house = new_house(tmp_path, "sqlite", **{TYPED: True})
    house.worker("-c", "1")
    ship, count = house.app.tasks["typed_ship"], house.app.tasks["typed_count"]
    first = ship.delay({"id": 4, "lines": [{"sku": "a"}]})
    assert type(first.get(40)).__name__ == "TypedOrder"
    assert first.job.result == {"id": 4, "lines": [{"sku": "a", "price": 1.0}]}
    chain = (ship.s({"id": 5, "lines": []}) | count.s()).delay()
    eventually(chain.ready)
    assert chain.get(40) == 5
    with pytest.raises(TypeError, match="lines"):
        house.app.send_task("typed_ship", ({"id": 6, "lines": 7},)).get(40)
    house.close()
