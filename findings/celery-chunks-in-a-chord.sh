#!/usr/bin/env bash
# celery 5.7.0, seen 2026-11-28.
# Expected: `task.chunks(items, n)` is documented as one of the canvas primitives, beside map and starmap, and these
#   two can stand in a chain or in a chord's header: the next task gets their results.
# Happens: a chunks signature is a task that publishes a group and returns the handle of it. In a header, the body
#   gets ids instead of results, and may run before the chunks did. As the first step of a chain the handle cannot be
#   serialised: all chunks run, the chain fails after them with an EncodeError, and its next step never runs.
# Means: call `.group()` on it. Nothing refuses the other spelling.
. "$(dirname "$0")/lib.sh"
packages celery==5.7.0 kombu==5.7.0 redis==8.1.0 packaging
redis

module shop <<'PY'
import os

import celery

app = celery.Celery("shop", broker=os.environ["REDIS_URL"], backend=os.environ["REDIS_URL"])


@app.task
def add(x, y):
    return x + y


@app.task
def described(results):
    return str(results) if isinstance(results[0][0], int) else f"of the type {type(results[0][0]).__name__}"
PY
worker shop --pool threads --concurrency 2
observe <<'PY'
import celery
from shop import add, described

PAIRS = [(1, 1), (2, 2), (3, 3)]


def show(name, signature):
    try:
        print(f"{name:26}", signature.apply_async().get(timeout=30))
    except Exception as error:
        print(f"{name:26}", type(error).__name__)


show("starmap | body", add.starmap(PAIRS) | add.si(0, 6))
show("chunks().group() | body", add.chunks(PAIRS, 2).group() | described.s())
show("chord([chunks()], body)", celery.chord([add.chunks(PAIRS, 2)], described.s()))
show("chunks() | body", add.chunks(PAIRS, 2) | described.s())
PY
expect <<'TEXT'
starmap | body             6
chunks().group() | body    [[2, 4], [6]]
chord([chunks()], body)    of the type list
chunks() | body            EncodeError
TEXT
