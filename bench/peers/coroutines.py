"""A coroutine with `base=onejob.Task`, in the pool of coroutines: one worker process with one event loop."""

from __future__ import annotations

import os

import onejob
from bench.peers.common import STORE, celery_app, work
from bench.peers.protected import ProtectedPeer

app = celery_app(onejob_store=os.environ[STORE])


@onejob.task(app, name="bench.work")
async def run(number: int, second: int) -> int:
    """Run the body of the job."""
    return work(number, second)


peer = ProtectedPeer(__name__, run, pool=("--pool=onejob", "--concurrency=200"))
