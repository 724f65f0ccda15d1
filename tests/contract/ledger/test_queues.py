"""The load of the queues: what an autoscaler reads, on every store."""

import pytest

from onejob.jobs.lifecycle import Transition
from onejob.jobs.model import Route
from onejob.jobs.records import Registration
from onejob.ledger.stats import QUEUE_SERIES, QueueLoad, read_metrics, read_queues
from tests.conftest import every_store
from tests.contract.ledger.world import World
from tests.contract.support import apply, claim, end, queue_next, read, run, submit

TASK = "app.add"


def load(queue: str, **values: float) -> QueueLoad:
    """Return a load whose other numbers are 0."""
    numbers: dict[str, float] = dict.fromkeys(("due", "running", "oldest_due", "slots", "workers"), 0)
    return QueueLoad(queue=queue, **(numbers | values))  # type: ignore[arg-type]


@every_store
def test_the_load_of_a_queue(world: World) -> None:
    """A queue has the jobs that may run and that run, and its workers' slots: no delayed, ended or following jobs."""
    store = world.store
    for number, queue in enumerate(("fast", "fast", "slow", "")):
        submit(store, f"due-{number}", route=queue)
        world.clock.advance(1.0)
    submit(store, "exchange", route=Route("topics", "key", "fast").encode())
    submit(store, "later", route="fast", delay=5.0)
    submit(store, "webhook", route="slow", task="onejob.webhook", publisher_task=TASK)
    submit(store, "unknown", route="fast", task="of.nobody")
    run(store, "running", route="fast")
    end(store, run(store, "ended", route="fast"))
    run(store, "holder", route="idle", identity="same")
    queue_next(store, "next", route="fast")
    world.follow("follower", follows="due-0", route="fast")
    apply(store, run(store, "again", route="idle"), Transition.RETRY, run_in=7.0, wake_after=7.0)
    store.heartbeat("a", lasts=60.0, registration=Registration(tasks=(TASK,), queues=("fast", "empty"), concurrency=4))
    store.heartbeat("b", lasts=60.0, registration=Registration(queues=("fast",), concurrency=2))
    store.heartbeat("dead", lasts=1.0, registration=Registration(queues=("fast", "gone"), concurrency=8))
    world.clock.advance(2.0)
    loads = [
        load("empty", slots=4, workers=1),
        load("fast", due=3, running=1, oldest_due=6.0, slots=6, workers=2),
        load("idle", running=1),
        load("slow", due=2, oldest_due=4.0),
    ]
    assert read_queues(world.ledger) == loads
    metrics = read_metrics(world.ledger)
    for series, field in QUEUE_SERIES.items():
        assert metrics[series] == {(series, each.queue): getattr(each, field) for each in loads}
    claim(store, "due-0")
    world.clock.advance(10.0)
    fast, idle = (each for each in read_queues(world.ledger) if each.queue in {"fast", "idle"})
    assert (fast.due, fast.running, fast.oldest_due) == (3, 2, 15.0)
    assert (idle.due, idle.oldest_due) == (1, world.clock.now - read(store, "again").run_at)


def test_the_tasks_of_queues_without_workers_are_those_that_were_submitted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a worker the jobs of counted tasks are found, for an autoscaler that starts at none; up to a limit."""
    submit(world.store, "job-1", task="counted", route="slow")
    assert read_queues(world.ledger) == []
    world.store.increment({'["submissions_total", "counted", "admitted"]': 1.0})
    assert read_queues(world.ledger) == [load("slow", due=1)]
    monkeypatch.setattr("onejob.ledger.stats.LOOKED_AT", 2)
    for number in range(3):
        submit(world.store, f"more-{number}", task="counted", route="slow")
    assert [each.due for each in read_queues(world.ledger)] == [2]
