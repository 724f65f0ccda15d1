#!/usr/bin/env bash
# saq 0.26.4 (with a Redis of the system), seen 2026-11-28.
# Expected: `enqueue(key="k")` returns None while a job with that key is unfinished. `abort()` ends the job, and
#   "cancel and start again" is abort, then enqueue.
# Happens: abort() writes a mark that lives for 5 seconds, and enqueue refuses a key that has a mark, even after the
#   job is over. A job that ends before its worker looks for marks (once a second; here less often) is complete, its
#   mark stays, and the next submission of the key gives None: no job, and no error.
# Means: a replacement right after an abort can be lost without a word. Look at the return value, or wait.
. "$(dirname "$0")/lib.sh"
packages 'saq[redis]==0.26.4' typing-extensions
redis

observe <<'PY'
import asyncio
import os

import saq

ran = []


async def report(ctx, *, name):
    ran.append(name)
    await asyncio.sleep(0.2)


async def main():
    queue = saq.Queue.from_url(os.environ["REDIS_URL"], name="shop")
    await queue.connect()
    worker = saq.Worker(queue, functions=[("report", report)], dequeue_timeout=0.2, timers={"abort": 30})
    running = asyncio.create_task(worker.start())
    first = await queue.enqueue("report", key="k", name="first")
    while not ran:
        await asyncio.sleep(0.05)
    print("while it runs, enqueue:", await queue.enqueue("report", key="k", name="again"))
    await first.abort("replaced")
    await first.refresh(until_complete=10)
    print("the aborted job is:", first.status.value)
    print("its successor, enqueue:", await queue.enqueue("report", key="k", name="second"))
    while (third := await queue.enqueue("report", key="k", name="third")) is None:
        await asyncio.sleep(0.2)
    await third.refresh(until_complete=10)
    print("when the mark is gone:", third.status.value, "| ran:", ran)
    await worker.stop()
    running.cancel()


asyncio.run(main())
PY
expect <<'TEXT'
while it runs, enqueue: None
the aborted job is: complete
its successor, enqueue: None
when the mark is gone: complete | ran: ['first', 'third']
TEXT
