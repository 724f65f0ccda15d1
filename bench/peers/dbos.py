"""DBOS on PostgreSQL: workflows in a queue, run by two processes; equal workflows have an equal id."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from dbos import DBOS, SetWorkflowID

from bench.peers.common import SECOND, STORE, Peer, work

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
    }
)
QUEUE = "bench"
workflow = DBOS.workflow(name="bench.work")(work)


class DbosPeer(Peer):
    """A queue of DBOS; this process does not listen to it."""

    commands = (("-m", __name__),) * 2

    def connect(self) -> None:
        """Connect; the first to do so makes the schema."""
        DBOS.listen_queues([])
        DBOS.launch()
        DBOS.register_queue(QUEUE)

    def submit(self, numbers: Sequence[int]) -> None:
        """Call `enqueue_workflow()` for each number."""
        for number in numbers:
            DBOS.enqueue_workflow(QUEUE, workflow, number, SECOND)

    def submit_equal(self, numbers: Sequence[int]) -> None:
        """Call `enqueue_workflow()` with an equal workflow id for each number."""
        for number in numbers:
            with SetWorkflowID(f"equal-{number}"):
                DBOS.enqueue_workflow(QUEUE, workflow, number, SECOND)


peer: Any = DbosPeer()

if __name__ == "__main__":
    DBOS.launch()
    threading.Event().wait()
