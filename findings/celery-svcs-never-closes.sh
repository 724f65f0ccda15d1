#!/usr/bin/env bash
# celery-svcs 25.10.0 with celery 5.7.0, seen 2026-11-28.
# Expected: each run of a task has a container of services, which is closed when the task ends: a generator factory
#   continues behind its `yield`, as with svcs's integrations for Flask and FastAPI.
# Happens: the container is stored on the task's request before the run, and looked for on the app after it. It is
#   never found, so nothing is closed. A `finally` runs only when the garbage collector comes by; what stands behind a
#   bare `yield` never does.
# Means: a session that is to commit or to be given back behind its `yield` does neither, without a line in the log.
#   Close the container in a `task_postrun` receiver of your own: `svcs_from(task).close()`, shown last.
. "$(dirname "$0")/lib.sh"
packages celery-svcs==25.10.0 svcs==26.2.0 celery==5.7.0 kombu==5.7.0

module shop <<'PY'
import celery
import celery_svcs
import svcs

app = celery.Celery("shop", broker="memory://", backend="cache+memory://")
registry = svcs.Registry()
events = []


class Session: ...


def session():
    events.append("open")
    yield Session()
    events.append("commit and close")


registry.register_factory(Session, session)
celery_svcs.init(app, registry=registry)


@app.task
def order():
    celery_svcs.svcs_from().get(Session)
    events.append("run")
PY
observe <<'PY'
import gc
import threading

import celery_svcs
from celery.contrib.testing.worker import start_worker
from celery.signals import task_postrun
from shop import app, events, order

ended = threading.Event()
closes = False


@task_postrun.connect  # after celery-svcs's own receiver
def end(task, **_):
    if closes:
        celery_svcs.svcs_from(task).close()
    ended.set()


def run():
    events.clear()
    ended.clear()
    order.delay().get(timeout=30)
    ended.wait(timeout=30)
    gc.collect()
    return events


with start_worker(app, pool="solo", perform_ping_check=False):
    print("as it is:       ", run())
    closes = True
    print("with a receiver:", run())
PY
expect <<'TEXT'
as it is:        ['open', 'run']
with a receiver: ['open', 'run', 'commit and close']
TEXT
