"""DBOS on PostgreSQL with a queue that has a partition and a limit for each key: two processes."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from dbos import DBOS, SetEnqueueOptions

from bench.peers.common import STORE, Peer
from bench.peers.slots import POLL, PROCESSES, RUNNING, key_of, limited_work, places

if TYPE_CHECKING:
    from collections.abc import Sequence

DBOS(
    config={
        "name": "bench",
        "system_database_url": os.environ[STORE],
        "log_level": "ERROR",
        "run_admin_server": False,
        "application_version": "1",
        "executor_id": str(os.getpid()),  # or else each process takes up what the others run
        "max_executor_threads": max(64, 2 * places()),
    }
)
QUEUE = "bench"
workflow = DBOS.workflow(name="bench.work")(limited_work)


class DbosPeer(Peer):
    """A partitioned queue of DBOS; this process does not listen to it."""

    commands = (("-m", __name__),) * PROCESSES

    def connect(self) -> None:
        """Connect; the first to do so makes the schema."""
        DBOS.listen_queues([])
        DBOS.launch()
        poll = float(os.environ.get(POLL, "1"))
        DBOS.register_queue(
            QUEUE, partition_concurrency=RUNNING, worker_concurrency=places(), polling_interval_sec=poll
        )

    def submit_bulk(self, numbers: Sequence[int]) -> None:
        """Call `enqueue_workflow()` for each number."""
        for number in numbers:
            key = key_of(number)
            with SetEnqueueOptions(queue_partition_key=str(key)):
                DBOS.enqueue_workflow(QUEUE, workflow, number, key)


peer: Any = DbosPeer()

if __name__ == "__main__":
    DBOS.launch()
    threading.Event().wait()
