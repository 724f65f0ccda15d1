"""Send the job API requests that its OpenAPI document allows, and others, and check the responses against it.

    python -m chaos.fuzz_api --cases 10000 --seed 1 --store postgresql

The app has tasks with rich signatures, on a ledger of its own. Half of the cases fit the document, half break it
somewhere. For every answer Schemathesis checks what it can: no 5xx; status, content type, headers and body as declared;
what fits is taken, what does not is refused. Exit code 1 when an answer is wrong.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta  # noqa: TC003 - the API reads the hints of tasks
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID  # noqa: TC003 - as above

import celery
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from pydantic import BaseModel, Field
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance
from typing_extensions import TypedDict  # pydantic asks for this one up to Python 3.11

import onejob
from chaos.command import STORES, parser
from chaos.testbed import NAMESPACE, start_testbed
from onejob.api import create_app
from onejob.api.problems import PREFIX
from onejob.celery.app_state import app_state_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from onejob.ledger.ledger import Ledger

STREAM = "/jobs/{job_id}/events"
GONE = 410
REFUSED = 422
UNSAYABLE = {PREFIX + "key-reused", PREFIX + "invalid-arguments"}
"""A key that belongs to other arguments, and arguments with a text that no store takes, however deep."""


class Colour(StrEnum):
    """One of a few texts."""

    RED = "red"
    BLUE = "blue"


class Line(BaseModel):
    """A line of an order."""

    sku: Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[A-Z0-9-]+$")]
    count: Annotated[int, Field(ge=1, le=1000)] = 1
    colours: list[Colour] = []


class Place(TypedDict):
    """Where something is."""

    city: str
    zip: str | None


class Card(BaseModel):
    """One way to pay."""

    kind: Literal["card"]
    number: str


class Invoice(BaseModel):
    """Another."""

    kind: Literal["invoice"]
    days: int


def order(lines: Annotated[list[Line], Field(max_length=5)], to: Place, *, gift: bool = False) -> None:
    """Take an order."""


def pay(by: Annotated[Card | Invoice, Field(discriminator="kind")], amount: float, note: str | None = None) -> None:
    """Take a payment."""


def remind(day: date, at: datetime, every: timedelta, who: UUID, *, share: float = 0.5) -> None:
    """Send a reminder."""


def tag(names: list[str], weights: dict[str, float], pair: tuple[int, str], colour: Colour = Colour.RED) -> None:
    """Tag something."""


def anything(value: Any, more: dict[str, Any] | None = None) -> None:
    """Take anything."""


def nothing() -> None:
    """Take nothing."""


TASKS: dict[Any, dict[str, Any]] = {
    order: {"unique_on": ["to.city"], "on_duplicate": "run_again"},
    pay: {"requires_key": True},
    remind: {"on_duplicate": "replace"},
    tag: {"on_duplicate": "raise"},
    anything: {},
    nothing: {"unique_for": 60},
}


@dataclass
class WebhookUrl:
    """The app's document, its ledger, and jobs that there are."""

    schema: Any
    ledger: Ledger
    live: list[str]
    """Jobs that live, or can live again: their events have no end."""
    ended: list[str]


@dataclass
class Score:
    """The requests that were sent, and the wrong responses."""

    cases: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        answers = ", ".join(f"{status}: {count}" for status, count in sorted(self.statuses.items()))
        return f"{self.cases} cases, {len(self.wrong)} wrong answers ({answers})"


def web_on(store: str, namespace: str = "unused") -> tuple[ASGIApp, celery.Celery]:
    """Build the app on a ledger with a live worker, and return its API and itself."""
    app = celery.Celery("fuzzed", broker="memory://", set_as_current=False)
    app.conf.update(onejob_store=store, onejob_namespace=namespace)
    define: Any = app.task  # the published types know no task that a base class gives options
    for body, options in TASKS.items():
        define(name=f"fuzz.{body.__name__}", base=onejob.Task, shared=False, expose=True, **options)(body)
    web = create_app(app, quota="3/second")
    app_state_of(app).ledger.heartbeat("node", lasts=86_400.0)
    return web, app


def target_on(store: str, namespace: str) -> WebhookUrl:
    """Build the app on a ledger with jobs."""
    web, app = web_on(store, namespace)
    ledger = app_state_of(app).ledger
    live, ended = _jobs(app, ledger)
    return WebhookUrl(schemathesis.openapi.from_asgi("/openapi.json", _from_here(web)), ledger, live, ended)


def _from_here(web: ASGIApp) -> ASGIApp:
    """Use the host name of this machine: the one that Schemathesis sends by default is refused."""

    async def local(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name, b"localhost" if name == b"host" else value) for name, value in scope.get("headers", ())]
        await web({**scope, "client": ("127.0.0.1", 50_000), "headers": headers}, receive, send)

    return local


def _jobs(app: celery.Celery, ledger: Ledger) -> tuple[list[str], list[str]]:
    """Let there be jobs that wait, that run, and that have ended in each way."""
    task: Any = app.tasks["fuzz.anything"]
    ids = [task.apply_async((number,), countdown=3600 if number < 2 else None).id for number in range(8)]
    runs = [ledger.claim(job_id, nonce="n", node="node").job for job_id in ids[2:]]
    _, _, done, failed, stopped, again = runs
    ledger.complete(done, '{"a": [1, null]}')  # type: ignore[arg-type] # all of them can be claimed
    ledger.fail(failed, '{"type": "ValueError", "message": "no"}', "ValueError: no")  # type: ignore[arg-type]
    ledger.abandon(stopped, "canceled")  # type: ignore[arg-type]
    ledger.fail(again, '{"type": "LookupError", "message": "no"}', "LookupError: no")  # type: ignore[arg-type]
    return [*ids[:4], ids[5], ids[7]], [ids[4], ids[6]]


def fuzz(target: WebhookUrl, cases: int, chosen: int) -> Score:
    """Send so many requests, evenly over the operations, half of them valid and half invalid."""
    score = Score()
    parts = [_Part(each.ok(), mode) for each in target.schema.get_all_operations() for mode in GenerationMode]
    seeds = itertools.count(chosen * 1_000_000)
    while score.cases < cases and parts:
        share = max((cases - score.cases) // len(parts), 1)
        parts = [part for part in parts if _ask(target, score, part, min(share, cases - score.cases), next(seeds))]
    return score


@dataclass(frozen=True)
class _Part:
    """One operation, and whether its requests are valid by the document."""

    operation: Any
    mode: GenerationMode


def _ask(target: WebhookUrl, score: Score, part: _Part, share: int, chosen: int) -> bool:
    """Send so many requests, some with ids of existing jobs; return whether there were so many cases."""
    known = target.ended if part.operation.path == STREAM else [*target.live, *target.ended]
    before = score.cases
    if not share:
        return False

    @seed(chosen)
    @settings(
        max_examples=share, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck]
    )
    @given(case=part.operation.as_strategy(generation_mode=part.mode), job_id=st.none() | st.sampled_from(known))
    def send(case: Any, job_id: str | None) -> None:
        if score.cases - before >= share:
            return
        if job_id is not None and "job_id" in (case.path_parameters or {}):
            case.path_parameters["job_id"] = job_id
        if part.mode is GenerationMode.POSITIVE:
            case.body = sendable(case.body)
        _check(score, case)

    with suppress(Unsatisfiable):  # there is nothing in it that could be broken
        send()
    return score.cases - before >= share


def sendable(body: Any) -> Any:
    """Return a body without what no schema can exclude: an eta too far in the future, and what `_plain` changes."""
    body = _plain(body)
    if isinstance(body, dict) and isinstance(eta := body.get("eta"), str) and eta[:4].isdecimal():
        body["eta"] = f"{min(eta[:4], '2020')}{eta[4:]}"
    return body


def _plain(value: Any) -> Any:
    """Return a value without NUL, which no store takes, and without 7.0, an integer to JSON Schema and not to tasks."""
    if isinstance(value, dict):
        return {name.replace("\0", ""): _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, str):
        return value.replace("\0", "")
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _check(score: Score, case: Any) -> None:
    score.cases += 1
    response = case.call()
    score.statuses[str(response.status_code)] += 1
    beyond = [positive_data_acceptance] if _says_more_than_the_document(response) else []
    try:
        case.validate_response(response, excluded_checks=beyond)
    except BaseExceptionGroup as group:
        found = "\n".join(map(str, group.exceptions))
        request = f"{case.method} {case.formatted_path} {case.query or ''} {case.headers or ''} {case.body!r:.2000}"
        score.wrong.append(f"{request}\n{found}\n{response.status_code} {response.text:.500}")


def _says_more_than_the_document(response: Any) -> bool:
    """Return whether a refusal is for a rule that no schema can express: about earlier requests, or nested values."""
    return response.status_code == GONE or (response.status_code == REFUSED and response.json()["type"] in UNSAYABLE)


def main() -> int:
    """Fuzz, and print the wrong responses."""
    made = parser(__doc__)
    made.add_argument("--cases", type=int, default=10_000)
    made.add_argument("--store", choices=STORES, default="sqlite")
    made.add_argument("--show", type=int, default=20, help="how many wrong answers to print")
    options = made.parse_args()
    began = time.monotonic()
    with start_testbed(options.store) as testbed:
        target = target_on(testbed.store, NAMESPACE)
        score = fuzz(target, options.cases, options.seed)
        target.ledger.close()
    for each in score.wrong[: options.show]:
        print(each, end="\n\n")
    print(f"seed {options.seed}, {options.store}: {score}, {time.monotonic() - began:.0f} s")
    return 1 if score.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
