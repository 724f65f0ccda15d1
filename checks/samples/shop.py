"""A user's module: tasks of every kind. No line of it is an error."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypedDict

from celery import Celery  # type: ignore[import-untyped, unused-ignore]  # pyright: ignore[reportMissingTypeStubs]

import onejob

if TYPE_CHECKING:
    from collections.abc import Awaitable

app = Celery("shop")


class Invoice(TypedDict):
    number: str
    total: float


@onejob.task(app, unique_on=["order_id"], unique_for="day@Europe/Berlin", autoretry_for=(OSError,), max_retries=3)
def invoice(order_id: int, note: str = "") -> Invoice:
    return {"number": f"{order_id}{note}", "total": 1.0}


@onejob.task(app, bind=True, lease=60, queue="slow")
def report(self: onejob.Task[..., str], day: str, *, pages: int = 1) -> str:
    return f"{self.name} {self.request.id} {self.request.retries} {day} {pages}"


@onejob.task(unique_until="started")
def shared(name: str) -> None:
    print(name)


class Traced(onejob.Task):
    max_wait = 5.0
    trace = "on"

    def on_failure(self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        print(exc, task_id, self.trace)


class Exact(onejob.Task[[int], str]):
    pass


@onejob.task(app, base=Traced, on_duplicate="replace")
def traced(a: int, b: int) -> int:
    return a + b


@app.task(base=onejob.Task)  # type: ignore[untyped-decorator, unused-ignore]  # pyright: ignore
def plain(order_id: int) -> str:
    return str(order_id)


def takes_any_task(task: onejob.Task) -> str:
    return task.name


def calls() -> None:
    first: onejob.AsyncResult[Invoice] = invoice.delay(42)
    number: str = first.get(timeout=10)["number"]
    invoice.delay(order_id=42, note="again")
    invoice.submit(42, note="again")
    invoice.submit(42, session=object())
    done: Invoice = invoice(42)
    shared.delay("x")
    text: str = report.delay("2026-01-01", pages=2).get()
    total: int = traced.s(1, 2).apply_async().get()
    traced.si(1, 2).delay()
    traced.s(3)
    chained = invoice.s(1) | shared.si("done")
    many: list[onejob.AsyncResult[int]] = traced.submit_many([(1, 2), {"a": 1, "b": 2}, traced.s(1, 2)])
    later = invoice.apply_async((42,), {"note": "x"}, countdown=3, queue="q", idempotency_key="k", webhook_url=None)
    invoice.apply_async((42,), on_duplicate="raise")
    at = invoice.apply_async(args=[42], eta=datetime.now(UTC), expires=60.0, priority=3, headers={"a": "b"})
    print(number, done, text, total, chained, many, later.id, later.state, at.ready(), first.outcome)
    print(first.job.state, first.job.id, first.get(propagate=False), takes_any_task(invoice))
    print(first.job.created_at.isoformat(), first.job.error and first.job.error.message)


async def coroutines() -> None:
    result = await invoice.asubmit(42, note="again")
    number: str = (await result.aget(timeout=10))["number"]
    many: list[onejob.AsyncResult[int]] = await traced.asubmit_many([(1, 2)])
    later = await invoice.aapply_async((42,), countdown=3, idempotency_key="k")
    await invoice.asubmit(42, session=object())
    print(number, many, later.id, (await result.ajob()).state)


def operations(client: onejob.Client) -> None:
    job = client.get("id")
    state: onejob.State = job.state
    page = client.find(state=["queued", onejob.State.RETRYING], task="shop.invoice", since=timedelta(hours=1), limit=9)
    following: str | None = client.find(cursor=page.next, state="failed", until=datetime.now(UTC), tag=None).next
    ids: list[str] = [each.id for each in client.find_all(submitter="ann")]
    total: int = client.count(worker="north").by_state[state]
    done: list[str] = client.bulk("redrive", error="Timeout", limit=100, dry_run=True).done
    client.bulk("cancel", job_ids=ids)
    outcome: onejob.Outcome = client.edit(job.id, args=[42], kwargs={"note": "x"}).outcome
    paused: bool = client.schedules.pause("hourly").paused
    sentences: list[str] = client.why(job.id).sentences
    with onejob.Client("sqlite:///jobs.db", namespace="n", actor="ann") as other:
        print(other.cancel("id", force=True).state, following, total, done, outcome, paused, sentences)


async def awaited_operations() -> None:
    async with onejob.Client(app) as client:
        state: onejob.State = (await client.aget("id")).state
        ids: list[str] = [each.id async for each in client.afind_all(state="failed")]
        page = await client.afind(state="failed", limit=9)
        done: list[str] = (await client.abulk("run_now", task="shop.invoice")).done
        entry: str = await client.schedules.arun("hourly")
        print(state, ids, page.next, done, entry)


def price(order_id: int, currency: str = "EUR") -> float:
    return float(order_id) if currency else 0.0


@onejob.task(app)
def body(order_id: int) -> float:
    job = onejob.current_job()
    job.progress(1, 2)
    amount: float = job.step("price", price, order_id, currency="EUR")
    pages: int = job.step("pages", lambda: 3)
    return amount + pages + job.attempt


class Connection:
    async def execute(self, statement: str) -> int:
        return len(statement)

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...


async def connect() -> Connection:
    return Connection()


class Engine:
    def connect(self) -> Awaitable[Connection]:
        return connect()


async def fetch(url: str, retries: int = 3) -> bytes:
    return url.encode() * retries


@onejob.task(app, unique_on=["url"])
async def crawl(url: str, depth: int = 1) -> Invoice:
    job = onejob.current_job()
    await job.aprogress(1, 2, "fetching")
    page: bytes = await job.astep("page", fetch, url, retries=2)
    amount: float = await job.astep("price", price, depth)
    pages: int = await job.astep("pages", lambda: 3)
    both: tuple[bytes, float] = await asyncio.gather(job.astep("a", fetch, url), job.astep("b", price, 1))
    await job.acost(usd="0.1", tokens=pages)
    await job.aspent("model", tokens=pages)
    canceled: bool = await job.acanceled()
    print(page, amount, both, canceled)
    return {"number": url, "total": amount}


async def transactions(job: onejob.RunningJob) -> int:
    async with job.atransaction(connect) as connection:
        rows: int = await connection.execute("select 1")
        await job.acomplete_in(connection, rows)
    async with job.atransaction(Connection) as same:
        rows += await same.execute("select 1")
    async with job.atransaction(Engine()) as opened:
        rows += await opened.execute("select 1")
    return rows


@onejob.task(app, bind=True)
async def bound_crawl(self: onejob.Task[..., str], url: str) -> str:
    return f"{self.name} {url}"


async def coroutine_calls() -> None:
    first: onejob.AsyncResult[Invoice] = crawl.delay("u", depth=2)
    number: str = first.get(timeout=10)["number"]
    second: onejob.AsyncResult[Invoice] = await crawl.asubmit("u")
    total: float = (await second.aget())["total"]
    third: Invoice = crawl.s("u").apply_async().get()
    fourth: Invoice = crawl.apply_async(("u",)).get()
    direct: Invoice = await crawl("u", depth=3)
    text: str = bound_crawl.delay("u").get()
    task: onejob.Task[[str], str] = bound_crawl
    print(number, total, third, fourth, direct, text, task, takes_any_task(crawl))
