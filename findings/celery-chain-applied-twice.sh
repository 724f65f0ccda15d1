#!/usr/bin/env bash
# celery 5.7.0 (5.6.3 is right), seen 2026-11-28.
# Expected: a signature is a template. `task.s()`, a group and a chord give new ids whenever they are applied, and a
#   pipeline that is built once, at module level, can be applied for every request.
# Happens: a chain keeps the id of its last task from the first time on. The second submission has the same result id
#   and runs under it; whoever asks for its result gets that of the first one, at once. A clone that is made after the
#   first application has that id, too. A chain that ends in a group or a chord gets new ids.
# Means: with a chain that is applied more than once, results are those of another request, and revoking one revokes
#   all. Build the chain for each submission.
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


pipeline = add.s(1) | add.s(100)
PY
worker shop --pool threads --concurrency 2
observe <<'PY'
from shop import add, pipeline


def show(name, signatures):
    results = []
    for n, signature in enumerate(signatures):
        results.append(signature.delay(n * 1000))
        results[-1].get(timeout=30)
    ids, values = {result.id for result in results}, [result.get(timeout=30) for result in results]
    print(f"{name:16} different ids: {len(ids)}  results: {values}")


show("one chain", [pipeline] * 3)
show("its clones", [pipeline.clone() for _ in range(3)])
show("one signature", [add.s(101)] * 3)
show("three chains", [add.s(1) | add.s(100) for _ in range(3)])
PY
expect <<'TEXT'
one chain        different ids: 1  results: [101, 101, 101]
its clones       different ids: 1  results: [101, 101, 101]
one signature    different ids: 3  results: [101, 1101, 2101]
three chains     different ids: 3  results: [101, 1101, 2101]
TEXT
