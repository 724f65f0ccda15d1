#!/usr/bin/env bash
# taskiq 0.13.0 with pydantic 2.14.4, seen 2026-11-28.
# Expected: taskiq parses a task's arguments by their annotations, with pydantic: what does not fit fails the task
#   before its body runs, as in FastAPI.
# Happens: what fits is converted ("7" becomes 7, a dict a model), and what does not is handed over as it came: the
#   body runs with the text "seven" for an int, and with a dict for a model. There is a line in the log, no error in
#   the result.
# Means: an annotation is no check. A publisher of the version before a deploy, whose model lacks a field, gets a body
#   that fails in the middle of its work (or does not fail). Validate inside, where it matters.
. "$(dirname "$0")/lib.sh"
packages taskiq==0.13.0 pydantic==2.14.4

observe <<'PY'
import asyncio

import pydantic
import taskiq

broker = taskiq.InMemoryBroker(await_inplace=True)


class Order(pydantic.BaseModel):
    number: int
    currency: str


@broker.task
async def described(count: int, order: Order) -> str:
    return f"count is {count!r}, order is {order!r}"


async def main():
    await broker.startup()
    for count, order in (("7", {"number": 1, "currency": "EUR"}), ("seven", {"number": 1})):
        result = await (await described.kiq(count, order)).wait_result(timeout=30)
        print(f"error: {result.error}, {result.return_value}")
    await broker.shutdown()


asyncio.run(main())
PY
expect <<'TEXT'
error: None, count is 7, order is Order(number=1, currency='EUR')
error: None, count is 'seven', order is {'number': 1}
TEXT
