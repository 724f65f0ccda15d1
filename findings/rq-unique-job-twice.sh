#!/usr/bin/env bash
# rq 3.0.0 (with redis-py 8.1.0 and a Redis of the system), seen 2026-11-28.
# Expected: `enqueue(..., job_id="x", unique=True)` admits one job with that id; it raises DuplicateJobError while
#   there is one. With `ttl` (documented: how long a job may wait in the queue before it is discarded) the next one is
#   admitted after it.
# Happens: the ttl ends the job's hash, not its place in the queue's list. The next submission is admitted and
#   appended, so that both places name the new job, and each worker that takes one of them runs it: one admitted job,
#   two runs.
# Means: unique and ttl exclude each other where a queue can be longer than the ttl, which is what a ttl is for.
. "$(dirname "$0")/lib.sh"
packages rq==3.0.0 redis==8.1.0
redis

module tasks <<'PY'
import os
import pathlib


def send(invoice):
    with pathlib.Path(os.environ["RUNS"]).open("a") as runs:
        runs.write(f"{invoice}\n")
PY
export RUNS=$folder/runs
observe <<'PY'
import os
import pathlib
import time

import redis
import rq
import tasks

connection = redis.Redis.from_url(os.environ["REDIS_URL"])
queue = rq.Queue(connection=connection)


def submit(invoice, **options):
    try:
        return "admitted " + queue.enqueue(tasks.send, invoice, job_id="invoice", unique=True, **options).id
    except rq.exceptions.DuplicateJobError:
        return "duplicate"


print(submit("first", ttl=1), "|", submit("again", ttl=1))
while connection.exists("rq:job:invoice"):
    time.sleep(0.1)
print(submit("second"), "| in the queue:", queue.job_ids)
rq.SimpleWorker([queue], connection=connection).work(burst=True, logging_level="ERROR")
print("runs:", pathlib.Path(os.environ["RUNS"]).read_text().split())
PY
expect <<'TEXT'
admitted invoice | duplicate
admitted invoice | in the queue: ['invoice', 'invoice']
runs: ['second', 'second']
TEXT
