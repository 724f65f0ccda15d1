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
    }
)
QUEUE = "bench"


@DBOS.workflow(name="bench.work")
def run(number: int, second: int) -> int:
    """Run the body of the job."""
    return work(number, second)


class DbosPeer(Peer):
    """A queue of DBOS; this process does not listen to it."""

    commands = (("-m", __name__),) * 2

    def prepare(self) -> None:
        """Make the schema, and connect."""
        DBOS.listen_queues([])
        DBOS.launch()
        DBOS.register_queue(QUEUE)

    def submit(self, numbers: Sequence[int]) -> None:
        """Call `enqueue_workflow()` for each number."""
        for number in numbers:
            DBOS.enqueue_workflow(QUEUE, run, number, SECOND)

    def submit_equal(self, numbers: Sequence[int]) -> None:
        """Call `enqueue_workflow()` with an equal workflow id for each number."""
        for number in numbers:
            with SetWorkflowID(f"equal-{number}"):
                DBOS.enqueue_workflow(QUEUE, run, number, SECOND)


peer: Any = DbosPeer()

if __name__ == "__main__":
    DBOS.launch()
    threading.Event().wait()
