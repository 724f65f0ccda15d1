#!/usr/bin/env bash
# celery 5.7.0, seen 2026-11-28.
# Expected: what is given to `apply_async` of a workflow holds for its tasks in one way, all options for all of them.
#   What a task carries goes with its retry, and with the task that replaces it (`self.replace`: "inheriting the task
#   id").
# Happens: group and chord give everything to all their tasks, a chain to its first task only, and a task nothing to
#   its `link`. A retry keeps everything; replace() keeps nothing, not even stamps, whose purpose is to travel with a
#   workflow.
# Means: a tenant or a trace in `headers=`, a priority, an expiry end at the first step of a chain; a task that
#   replaces itself has no time limit and no tenant any more. Set options on each signature; in replace() set them
#   again by hand.
. "$(dirname "$0")/lib.sh"
packages celery==5.7.0 kombu==5.7.0 redis==8.1.0 packaging
redis

module shop <<'PY'
import os

import celery
import redis

app = celery.Celery("shop", broker=os.environ["REDIS_URL"], backend=os.environ["REDIS_URL"])
seen = redis.Redis.from_url(os.environ["REDIS_URL"], decode_responses=True)


def note(name, request):
    carried = {
        "priority": request.delivery_info["priority"] == 3,
        "expires": bool(request.expires),
        "time_limit": request.timelimit[0] == 77,
        "headers": (request.headers or {}).get("tenant") == "a",
        "stamps": "tenant_stamp" in (request.stamped_headers or []),
    }
    seen.hset("seen", name, " ".join(what for what, found in carried.items() if found) or "nothing")


@app.task(bind=True)
def step(self, name):
    note(name, self.request)


@app.task(bind=True)
def again(self, name):
    if self.request.retries == 0:
        raise self.retry(countdown=0)
    note(name, self.request)


@app.task(bind=True)
def replaced(self, name):
    raise self.replace(step.si(name))
PY
worker shop --pool threads --concurrency 1
observe <<'PY'
import time

from celery import chain, chord, group
from celery.canvas import StampingVisitor
from shop import again, replaced, seen, step


class Tenant(StampingVisitor):
    def on_signature(self, signature, **headers):
        return {"tenant_stamp": "a"}


def show(name, signature, tasks=1):
    seen.delete("seen")
    signature.stamp(Tenant())
    signature.apply_async(priority=3, expires=60, time_limit=77, headers={"tenant": "a"}).get(timeout=30)
    while seen.hlen("seen") < tasks:
        time.sleep(0.05)
    print(name)
    for task, carried in sorted(seen.hgetall("seen").items()):
        print(f"   {task:8}", carried)


show("chain", chain(step.si("1 first"), step.si("2 second")), 2)
show("group", group(step.si("1 first"), step.si("2 second")), 2)
show("chord", chord([step.si("1 header")], step.si("2 body")), 2)
show("link", step.si("1 task").set(link=[step.si("2 link")]), 2)
show("retry", again.si("retried"))
show("replace", replaced.si("new task"))
PY
expect <<'TEXT'
chain
   1 first  priority expires time_limit headers stamps
   2 second stamps
group
   1 first  priority expires time_limit headers stamps
   2 second priority expires time_limit headers stamps
chord
   1 header priority expires time_limit headers stamps
   2 body   priority expires time_limit headers stamps
link
   1 task   priority expires time_limit headers stamps
   2 link   stamps
retry
   retried  priority expires time_limit headers stamps
replace
   new task nothing
TEXT
