"""An application of a user, with tasks to test. Its broker and its ledger do not exist: no test may reach them."""

from typing import Any

from celery import Celery

import onejob

app = Celery(
    "testing_shop", broker="redis://broker.invalid:1/0", backend="redis://broker.invalid:1/1", set_as_current=False
)
app.conf.onejob_store = "redis://ledger.invalid:1/0"
calls: list[Any] = []
"""What the bodies have done outside, which each test begins without."""


class GatewayDownError(Exception):
    """A failure that passes."""


def called(name: str, value: Any) -> Any:
    calls.append(name)
    return value


@app.task(shared=False, base=onejob.Task, unique_on=["order_id"])
def invoice(order_id: int, note: str = "") -> str:
    calls.append(order_id)
    return f"invoice {order_id}"


@app.task(shared=False, base=onejob.Task)
def plan(project: str, cards: int = 2) -> dict[str, Any]:
    job = onejob.current_job()
    job.progress(0, 2, "outline")
    outline = job.step("outline", called, "outline", f"outline of {project}")
    job.progress(1, 2, "cards")
    written = job.step("cards", called, "cards", [f"{outline} {n}" for n in range(cards)])
    return {"cards": written, "attempt": job.attempt, "key": job.effect_key("mail")}


@app.task(shared=False, base=onejob.Task, bind=True, max_retries=3)
def fetch(self: Any, url: str) -> int:
    if self.request.retries < 2:
        raise self.retry(countdown=60 * 2**self.request.retries, exc=GatewayDownError(url))
    return int(self.request.retries)


@app.task(shared=False, base=onejob.Task)
def fail(text: str) -> None:
    raise ValueError(text)


@app.task(shared=False, base=onejob.Task)
def unstorable() -> Any:
    return object()


@app.task(shared=False, base=onejob.Task, unique_for=600)
def report(day: str) -> str:
    calls.append(day)
    return f"report of {day}"


@app.task(shared=False, base=onejob.Task)
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(shared=False, base=onejob.Task)
def double(number: int) -> int:
    calls.append(number)
    return 2 * number


@app.task(shared=False, base=onejob.Task)
def parent(number: int) -> str:
    return str(double.delay(number).id)


@app.task(shared=False)
def plain(number: int) -> int:
    calls.append(number)
    return number


@app.task(shared=False, base=onejob.Task)
def endless(number: int) -> None:
    endless.delay(number + 1)


@app.task(shared=False, base=onejob.Task, limits=[onejob.Limit("model", rate="2/minute", burst=2)])
def ask(model: str, number: int) -> int:
    """Ask a model whose provider permits two calls a minute."""
    return number


@app.task(shared=False, base=onejob.Task, limits=[onejob.Limit("customer", running=1)])
def charge_one(customer: str, number: int) -> int:
    """Charge a customer, one at a time."""
    return number


@app.task(
    shared=False,
    base=onejob.Task,
    limits=[onejob.Limit(name="tokens", rate="8/hour", burst=8, weight=lambda expected, **_: expected)],
)
def weigh(expected: int, really: int) -> int:
    """Use other tokens than expected."""
    onejob.current_job().spent("tokens", used=really)
    return really
