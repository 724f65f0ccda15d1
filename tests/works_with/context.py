"""Whether what a submitter had in its context reaches the body, on each way from a submission to a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.services import eventually

if TYPE_CHECKING:
    from tests.works_with.program import Program

TASKS = """
@app.task(base=onejob.Task)
def plain(way):
    mark(way, seen())

@app.task(base=onejob.Task, bind=True)
def retried(self, way):
    if not self.request.retries:
        raise self.retry(countdown=0.1)
    mark(way, seen())

@app.task(base=onejob.Task)
def failing(way):
    if not Path("mended").exists():
        raise onejob.PermanentError("a dead letter")
    mark(way, seen())
"""
"""The end of a program that has `within()`, the block of a submitter, and `seen()`: whether a body has its context."""
SUBMIT = """
with within():
    plain.delay("call")
    plain.apply_async(("countdown",), countdown=1)
    retried.delay("retry")
    failing.delay("redrive")
    plain.submit_many([("submit_many",)])
"""
WITHOUT_BROKER = """
app.conf.broker_url = "redis://127.0.0.1:1/0"
with within():
    plain.delay("sweep")
"""
"""Nobody can connect to this broker, so the sweep of the worker publishes the job."""
WAYS = frozenset({"call", "submit_many", "countdown", "retry", "redrive", "sweep"})
"""All ways from a submission to a run."""


def all_ways(*, direct: bool) -> frozenset[str]:
    """Return the ways that there are: a ledger that is the broker has no sweep that publishes."""
    return WAYS - {"sweep"} if direct else WAYS


def ways_with_context(shop: Program, *, direct: bool) -> set[str]:
    """Return the ways on which the body saw the context of its submitter, with a worker of its own."""
    with shop.worker():
        if not direct:
            shop.run(WITHOUT_BROKER)
            shop.await_marks(1)  # before another submitter has another context
        shop.run(SUBMIT)
        eventually(lambda: [job.state for job in shop.jobs("shop.failing")] == ["failed"])
        (shop.folder / "mended").touch()
        shop.command("-m", "celery", "-A", "shop", "onejob", "dead", "redrive", "--task", "shop.failing", "--yes")
        seen = dict(shop.await_marks(len(all_ways(direct=direct))))
        return {way for way, kept in seen.items() if kept}
