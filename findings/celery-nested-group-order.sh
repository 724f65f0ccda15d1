#!/usr/bin/env bash
# celery 5.7.0, seen 2026-11-28.
# Expected: the body of a chord gets the results in the order of the header. A group in a header is flattened, and
#   `group(0, group(1, 2, 3), 4)` by itself returns 0, 1, 2, 3, 4.
# Happens: before a body, each nested group of the header is flattened backwards: 0, 3, 2, 1, 4. A chain in the header
#   whose end is a group keeps its order, and its results stay a list.
# Means: a body that pairs results with what it sent (`zip(ids, results)`) pairs the wrong ones. Build one flat list
#   of tasks.
. "$(dirname "$0")/lib.sh"
packages celery==5.7.0 kombu==5.7.0 redis==8.1.0 packaging
redis

module shop <<'PY'
import os

import celery

app = celery.Celery("shop", broker=os.environ["REDIS_URL"], backend=os.environ["REDIS_URL"])


@app.task
def number(n):
    return n


@app.task
def listed(results):
    return results
PY
worker shop --pool threads --concurrency 1
observe <<'PY'
import celery
from shop import listed, number

n = number.si
inner = celery.group(n(1), n(2), n(3))


def show(name, signature):
    print(f"{name:38}", signature.apply_async().get(timeout=30))


show("group(0, group(1, 2, 3), 4)", celery.group(n(0), inner, n(4)))
show("group(0, group(1, 2, 3), 4) | body", celery.group(n(0), inner, n(4)) | listed.s())
show("chord([group(1, 2, 3), group(4, 5)])", celery.chord([inner, celery.group(n(4), n(5))], listed.s()))
show(
    "chord([group(group(1, 2), 3), 4])", celery.chord([celery.group(celery.group(n(1), n(2)), n(3)), n(4)], listed.s())
)
show("chord([1 | group(2, 3), 4])", celery.chord([n(1) | celery.group(n(2), n(3)), n(4)], listed.s()))
PY
expect <<'TEXT'
group(0, group(1, 2, 3), 4)            [0, 1, 2, 3, 4]
group(0, group(1, 2, 3), 4) | body     [0, 3, 2, 1, 4]
chord([group(1, 2, 3), group(4, 5)])   [3, 2, 1, 5, 4]
chord([group(group(1, 2), 3), 4])      [3, 2, 1, 4]
chord([1 | group(2, 3), 4])            [[2, 3], 4]
TEXT
