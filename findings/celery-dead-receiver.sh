#!/usr/bin/env bash
# celery 5.6.2, seen 2026-11-28.
# Expected: a receiver of a signal is referenced weakly by default, so one that is garbage collected is not called any
#   more. The receivers that live are called, also those that are connected later.
# Happens: once a dead receiver of `before_task_publish` has been cleared away, the app of the process sends this signal
#   to nobody, whoever connects: the list of receivers that it looks at is not the one to which they are added.
# Means: one library with a local function as a receiver, or one test, silences instrumentation that is connected after
#   it: messages without a trace, a tenant, a request id. Connect with `weak=False`. Celery 5.7.0 calls all of them.
. "$(dirname "$0")/lib.sh"

module observed_app <<'PY'
import gc

import celery
from celery import signals

app = celery.Celery("shop", broker="memory://", set_as_current=True)


@app.task
def nothing():
    pass


def publish_with_a_receiver_of_its_own():
    called = []
    receiver = lambda **_: called.append(1)
    signals.before_task_publish.connect(receiver)
    nothing.delay()
    signals.before_task_publish.disconnect(receiver)
    return len(called)


for number in (1, 2, 3):
    print(f"receiver {number} was called:", publish_with_a_receiver_of_its_own())
    gc.collect()
print("celery", celery.__version__)
PY

packages celery==5.6.2
observe <<'PY'
import observed_app
PY
expect <<'OUT'
receiver 1 was called: 1
receiver 2 was called: 0
receiver 3 was called: 0
celery 5.6.2
OUT

packages celery==5.7.0
observe <<'PY'
import observed_app
PY
expect <<'OUT'
receiver 1 was called: 1
receiver 2 was called: 1
receiver 3 was called: 1
celery 5.7.0
OUT
