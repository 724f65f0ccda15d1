"""Dataclasses and pydantic models as arguments, results and steps of typed tasks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import InitVar, dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, NewType, NotRequired
from uuid import UUID

import pytest
from celery import Celery
from pydantic import BaseModel, Field, SecretStr
from typing_extensions import TypedDict

import onejob
from onejob.celery.messages.typed import UnfitValueError, codec_of
from onejob.client.jobs import check_duplicate
from onejob.testing import Jobs, isolated
from tests.cases import for_each
from tests.celery.harness import program_environment
from tests.celery.test_async import end
from tests.forks import CELERY
from tests.forks import run as run_program
from tests.stores.support import not_none


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
    size: int = field(init=False, default=3)
    total: Decimal = Decimal(0)


class Address(BaseModel):
    street: str
    cluster: int = Field(default=1, alias="clusterNumber")


class Customer(BaseModel, strict=True):
    name: str
    born: datetime | None = None
    addresses: list[Address] = []


FULL = Order(1, [Line("a"), Line("b", 2)], Kind.GAME, datetime(2026, 1, 1), UUID(int=7), Decimal("1.50"))
ANN = Customer(name="ann", born=datetime(2000, 1, 1), addresses=[Address(street="x", clusterNumber=3)])


@dataclass
class Cart:
    prices: list[int]
    scale: InitVar[int] = 1
    total: int = field(init=False)

    def __post_init__(self, scale: int) -> None:
        self.total = scale * sum(self.prices)


Buyer = NewType("Buyer", Customer)


class Sale(TypedDict):
    line: Line
    others: NotRequired[list[Sale]]


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    """Return the jobs of an app with typed tasks."""
    app: Any = Celery("models", broker="memory://", set_as_current=False)

    @onejob.task(app, name="ship", unique_on=["order.id", "to"], shared=False)
    def ship(order: Order, to: Customer | None = None, *, gifts: dict[str, Line] | None = None) -> list[Order]:
        assert isinstance(order, Order)
        return [order]

    @onejob.task(app, name="greet", shared=False)
    def greet(customer: Customer, order: Order = FULL) -> Customer:
        assert (type(customer), type(order)) == (Customer, Order)
        return customer

    @onejob.task(app, name="count", shared=False)
    def count(orders: list[Order]) -> int:
        return orders[0].id

    @onejob.task(app, name="stepwise", shared=False)
    def stepwise(order: Order) -> list[Any]:
        job = onejob.current_job()
        return [job.step("price", price, order) == Line("total", 1.0), job.step("named", named)]

    with isolated(app) as jobs:
        yield jobs


@pytest.fixture
def app(jobs: Jobs) -> Any:
    """Return the app of the jobs."""
    return jobs.app


priced: list[int] = []


def price(order: Order) -> Line:
    priced.append(order.id)
    return Line("total", float(order.id))


def named() -> dict[str, Any]:
    return {"sku": "a"}


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
        (Cart, Cart([1, 2])),
        (Buyer, ANN),
    ],
)
def test_models_survive_json(annotation: Any, value: Any) -> None:
    """What an annotation names becomes plain JSON, and from that an equal object; JSON that fits stays the same."""
    codec = not_none(codec_of(annotation))
    text = json.dumps(codec.dump(value, "x"))
    assert codec.build(json.loads(text), "x") == value
    assert json.dumps(codec.dump(json.loads(text), "x")) == text


class Login(BaseModel):
    name: str
    password: SecretStr


@dataclass
class Access:
    token: SecretStr


class Reply(BaseModel):
    first_name: str = Field(default="default", serialization_alias="firstName")


class Hidden(BaseModel):
    key: int = Field(default=0, exclude=True)


class VipCustomer(Customer):
    level: int = 1


LOSSES = (
    (Login, Login(name="a", password=SecretStr("s"))), (Access, Access(SecretStr("s"))),
    (Reply, Reply(first_name="a")), (Hidden, Hidden(key=5)), (list[Hidden], [Hidden(), Hidden(key=5)]),
    (Customer, VipCustomer(name="a", level=3)), (Cart, Cart([1, 2], scale=10)),
)  # fmt: skip


@for_each("annotation, value", LOSSES)
def test_what_json_would_change_is_refused(annotation: Any, value: Any) -> None:
    """A value that the run would get otherwise (a masked secret, an excluded field, one of a subclass) is refused."""
    codec = not_none(codec_of(annotation))
    with pytest.raises(UnfitValueError, match=r"^x: JSON does not keep this value, so the run would get another one"):
        codec.dump(value, "x")


def test_what_another_type_represents_is_kept() -> None:
    """A tuple for a list, a whole number for a float, and an excluded field with its default, are no losses."""
    order, hidden = not_none(codec_of(Order)), not_none(codec_of(Hidden))
    assert order.dump(Order(1, lines=(Line("a", 2),)), "x")["lines"] == [{"sku": "a", "price": 2.0}]  # type: ignore[arg-type]
    assert hidden.dump(Hidden(), "x") == {}


def test_the_models_in_a_typed_dict_survive_json() -> None:
    """What the keys of a typed dict name is converted, also in one that has others of its kind."""
    codec = not_none(codec_of(Sale))
    text = json.dumps(codec.dump({"line": Line("a"), "others": [{"line": Line("b")}]}, "x"))
    assert codec.build(json.loads(text), "x") == {"line": Line("a"), "others": [{"line": Line("b")}]}


@for_each("annotation", [int, str | None, list[int], dict[str, Any], Any, None, Kind, NewType("Id", int)])
def test_what_is_plain_json_is_left_alone(annotation: Any) -> None:
    """An annotation without a model is converted by nobody."""
    assert codec_of(annotation) is None


@for_each(
    "annotation, value, where",
    [
        (Order, {"lines": []}, "x.id: Field required$"),
        (Order, {"lines": 1}, r"x.id: Field required \(and 1 more\)$"),
        (Order, {"id": "1"}, "x.id: Input should be a valid integer"),
        (Order, {"id": True}, "x.id: Input should be a valid integer"),
        (Order, {"id": 1, "lines": [{"sku": 1}]}, r"x.lines.0.sku: Input should be a valid string"),
        (Order, {"id": 1, "idd": 1}, "x.idd: Unexpected keyword"),
        (Order, {"id": 1, "kind": "car"}, "x.kind: Input should be 'book' or 'game'"),
        (Order, {"id": 1, "at": "noon"}, "x.at: Input should be a valid datetime"),
        (Order, [], "x: Input should be an object"),
        (Customer, {"name": 1}, "x.name: Input should be a valid string"),
        (list[Customer], [{"name": "a", "addresses": [{}]}], r"x.0.addresses.0.street: Field required"),
        (Order, Order(1, lines=["a"]), "x.lines.0: Input should be an object"),  # type: ignore[list-item]
        (Order, Order(1, lines=[object()]), "x: Unable to serialize unknown type"),  # type: ignore[list-item]
        (Customer, FULL, "x"),
        (Iterable[Line], [{"sku": 1}], "x: Error serializing to JSON"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_field(annotation: Any, value: Any, where: str) -> None:
    """A value that does not fit raises an error that names the field."""
    codec = not_none(codec_of(annotation))
    with pytest.raises(UnfitValueError, match=f"^{where}"):
        codec.dump(value, "x")


def test_equal_models_are_equal_jobs(app: Any) -> None:
    """A model, the JSON of it, and the JSON without its defaults are one job; `unique_on` reaches into models."""
    ship, greet = app.tasks["ship"], app.tasks["greet"]
    first = ship.delay(Order(1, [Line("a")]), ANN)
    assert ship.delay({"id": 1}, to=ANN).id == first.id != ship.delay(Order(2), ANN).id
    assert not_none(check_duplicate(app, "ship", (Order(1), ANN), {}).existing).id == first.id
    hello = greet.delay(ANN)
    same = {"name": "ann", "born": "2000-01-01T00:00:00", "addresses": [{"street": "x", "clusterNumber": 3}]}
    ids = [greet.delay(ANN, FULL).id, greet.submit_many([(same,)])[0].id, greet.s(customer=same).delay().id]
    assert ids == [hello.id] * 3


@for_each(
    "submit, where",
    [
        (lambda ship: ship.delay({"id": "x"}), r"order\.id: Input should be"),
        (lambda ship: ship.submit_many([({"id": "x"},)]), r"order\.id: Input should be"),
        (lambda ship: check_duplicate(ship.app, "ship", ({"id": "x"},), {}), r"order\.id: Input should be"),
        (lambda ship: ship.delay(Order(1), gifts={"a": {}}), r"gifts\.a\.sku: Field required"),
        (lambda ship: ship.delay(Order(1), {"name": 5}), r"to\.name"),
    ],
)
def test_arguments_that_do_not_fit_are_no_jobs(jobs: Jobs, app: Any, submit: Callable[..., Any], where: str) -> None:
    """A wrong field raises `InvalidArgumentsError` at the submission, by every way to submit, and nothing is stored."""
    with pytest.raises(onejob.errors.InvalidArgumentsError, match=rf"'ship'.* {where}"):
        submit(app.tasks["ship"])
    assert jobs.submitted() == []


def test_the_body_and_the_caller_see_models(jobs: Jobs, app: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The body gets objects, the ledger and the next task of a chain JSON; `get` returns objects if these fit."""
    ship, greet, count = app.tasks["ship"], app.tasks["greet"], app.tasks["count"]
    result, hello = ship.delay(FULL), greet.delay(ANN)
    chained = (ship.s({"id": 3}) | count.s()).delay()
    jobs.run_all()
    assert result.get() == ship.AsyncResult(result.id).result == [FULL]
    assert (result.job.result[0]["kind"], hello.get(), chained.get()) == ("game", ANN, 3)
    wrong = app.send_task("ship", ({"id": 6, "lines": 7},))
    jobs.run_all()
    assert "order.lines: Input should be a valid array" in caplog.text
    assert jobs.ledger.get_or_none(wrong.id) is None
    refused = greet.delay(Customer(name="bob"))
    end(app, refused.id, '{"nam": "ann"}')
    with pytest.raises(onejob.errors.InvalidPayloadError, match=r"result\.name"):
        refused.get()
    with jobs.eager():
        assert ship.delay({"id": 4}).get() == [Order(4)]


def test_steps_keep_models(jobs: Jobs, app: Any) -> None:
    """A step whose callable says that it returns a model gives that model, also from the kept value."""
    jobs.lose_worker("step:named")
    result = app.tasks["stepwise"].delay(Order(1))
    jobs.recover()
    assert (result.get(), result.job.attempt, priced) == ([True, {"sku": "a"}], 2, [1])


def test_celery_and_onejob_do_not_both_convert(app: Any) -> None:
    """`typed=True` beside Celery's `pydantic=True` is refused; `pydantic=True` alone is Celery's."""

    def body(customer: Customer) -> None: ...

    decorate: Any = onejob.task
    with pytest.raises(onejob.errors.ConfigurationError, match="pydantic=True"):
        decorate(app, name="both", pydantic=True, typed=True, shared=False)(body)
    assert decorate(app, name="celery_s", pydantic=True, shared=False)(body)._onejob.typed is None


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
def plain(order: int, to: list[str] | None = None) -> dict[str, int]:
    return {}

def ship(order: Order) -> Order:
    return order

print(plain.delay(1).outcome, app.task(base=onejob.Task)(ship).delay(1).outcome)
try:
    onejob.task(app, name="typed ship")(ship)
except onejob.errors.ConfigurationError as error:
    print(error)
"""


def test_only_models_need_pydantic(tmp_path: Path) -> None:
    """Without pydantic, the definition of a typed task with a dataclass is refused; no other task needs it."""
    command = ["-c", WITHOUT_PYDANTIC, str(tmp_path / "ledger.db")]
    done = run_program(command, environment=program_environment(), cwd=tmp_path, modules=CELERY)
    assert (done.stdout.splitlines()[0], done.stderr) == ("admitted admitted", "")
    assert "task typed ship has dataclasses in its annotations" in done.stdout
    assert "pip install pydantic" in done.stdout


class Unknown: ...


@dataclass
class Odd:
    what: Unknown


def test_what_pydantic_does_not_know_is_refused(app: Any) -> None:
    """A dataclass with a field of a type that JSON cannot hold raises `ConfigurationError`, which names the type."""
    with pytest.raises(onejob.errors.ConfigurationError, match=r"Odd.* cannot be converted.*Unknown"):
        codec_of(list[Odd])
