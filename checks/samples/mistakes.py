"""A user's mistakes: every line with a comment `E:` is an error with these codes, of mypy and of pyright."""

from __future__ import annotations

from typing import Any

from shop import Invoice, app, crawl, fetch, invoice, price, report, shared, traced

import onejob


def wrong_calls() -> None:
    invoice.delay("42")  # E: arg-type reportArgumentType
    invoice.delay()  # E: call-arg reportCallIssue
    invoice.delay(42, notes="x")  # E: call-arg reportCallIssue
    invoice.submit("42")  # E: call-overload reportCallIssue reportArgumentType
    invoice("42")  # E: arg-type reportArgumentType
    report.delay("2026-01-01", pages="2")  # E: arg-type reportArgumentType
    report.delay("2026-01-01", 2)  # E: call-arg reportCallIssue
    shared.delay(1)  # E: arg-type reportArgumentType
    traced.si("1", 2)  # E: arg-type reportArgumentType
    traced.s("1", 2)  # E: call-overload reportCallIssue reportArgumentType
    traced.s(1, 2, 3)  # E: call-overload reportCallIssue
    invoice.apply_async((42,), countdwn=3)  # E: call-arg reportCallIssue
    invoice.apply_async((42,), countdown="soon")  # E: arg-type reportArgumentType
    invoice.apply_async((42,), on_duplicate="replace")  # E: arg-type reportArgumentType
    invoice.submit_many([42])  # E: list-item reportArgumentType


def wrong_results() -> None:
    number: int = invoice.delay(42).get()["number"]  # E: assignment reportAssignmentType
    text: str = traced.delay(1, 2).get()  # E: assignment reportAssignmentType
    total: str = traced.s(1, 2).delay().get()  # E: assignment reportAssignmentType
    many: list[str] = [each.get() for each in traced.submit_many([(1, 2)])]  # E: misc reportAssignmentType
    print(invoice.delay(42).get()["sum"])  # E: misc reportGeneralTypeIssues reportUnknownArgumentType
    at: float = invoice.delay(42).job.created_at  # E: assignment reportAssignmentType
    print(number, text, total, many, at)


async def wrong_coroutines() -> None:
    await invoice.asubmit("42")  # E: call-overload reportCallIssue reportArgumentType
    await invoice.aapply_async((42,), countdwn=3)  # E: call-arg reportCallIssue
    text: str = await (await traced.asubmit(1, 2)).aget()  # E: assignment reportAssignmentType
    print(text)


async def wrong_filters(client: onejob.Client) -> None:
    client.find(taks="shop.invoice")  # E: call-arg reportCallIssue
    client.find(task=7)  # E: arg-type reportArgumentType
    client.find(state="done")  # E: arg-type reportArgumentType
    client.find(since="1h")  # E: arg-type reportArgumentType
    client.bulk("stop", task="shop.invoice")  # E: arg-type reportArgumentType
    await client.afind(taks="shop.invoice")  # E: call-arg reportCallIssue
    await client.acancel("id", forced=True)  # E: call-arg reportCallIssue
    number: int = (await client.aget("id")).id  # E: assignment reportAssignmentType
    print(number)


@onejob.task(app)
def wrong_steps(order_id: int) -> None:
    job = onejob.current_job()
    job.complete(1)  # E: attr-defined reportAttributeAccessIssue reportUnknownMemberType
    job.step("price", price, str(order_id))  # E: arg-type reportArgumentType
    job.step("price", price, order_id, currenzy="EUR")  # E: call-arg reportCallIssue
    amount: str = job.step("price", price, order_id)  # E: assignment reportAssignmentType
    job.progress("half")  # E: arg-type reportArgumentType
    print(amount)


@onejob.task(app)
async def wrong_coroutine_steps(url: str) -> None:
    job = onejob.current_job()
    await job.astep("page", fetch, 7)  # E: call-overload reportCallIssue reportArgumentType
    page: str = await job.astep("page", fetch, url)  # E: call-overload reportAssignmentType
    await job.aprogress("half")  # E: arg-type reportArgumentType
    job.atransaction(7)  # E: call-overload reportCallIssue reportArgumentType
    print(page)


async def wrong_coroutine_calls() -> None:
    crawl.delay(7)  # E: arg-type reportArgumentType
    number: int = crawl.delay("u").get()["number"]  # E: assignment reportAssignmentType
    text: str = await crawl("u")  # E: assignment reportAssignmentType
    plain: Invoice = crawl("u")  # E: assignment reportAssignmentType
    print(number, text, plain)


@onejob.task(app, uniq=["a"])  # E: call-overload untyped-decorator reportCallIssue reportUntypedFunctionDecorator
def wrong_option(order_id: int) -> Any:
    return order_id


@onejob.task(app, lease="long")  # E: call-overload untyped-decorator reportArgumentType
def wrong_lease(order_id: int) -> Any:
    return order_id
