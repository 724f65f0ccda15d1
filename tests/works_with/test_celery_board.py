"""celery-board: sends, revokes and sends again what it has seen in events."""

import httpx2
import pytest

from tests.services import eventually, free_port
from tests.works_with.program import MakeProgram
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("celery-board==0.1.0", "flower==2.2.0"),
    needs=("tornado==6.6.1", "humanize==4.17.0", "pytz==2026.6"),
    ran="`celery board`: send, revoke, purge a queue, the recorded call of a task; Redis, `onejob://`",
    holds="What it sends is a message, which a worker admits as a job; an equal one follows that job. Revoke cancels. "
    "A purged queue loses no job: a sweep publishes the job again.",
    do="`worker -E`. Send a failed job again by `onejob dead redrive`, which keeps its id and its steps.",
    fails="It knows a call from the text of its event: of a long argument the end is missing, without an error, and "
    "what is sent from it is another job. With `onejob://` it shows no lengths of queues.",
)
APP = """
from kit import *

app = make_app()

@app.task(base=onejob.Task)
def store(text, held=False):
    mark(len(text))
    while held and not Path("go").exists():
        time.sleep(0.05)
"""


@pytest.mark.parametrize("direct", [False, True])
def test_it_sends_and_revokes_jobs(program: MakeProgram, direct: bool) -> None:
    """Equal messages of the board are one run, which it ends; it knows a long call in part only."""
    shop, port = program(APP, direct=direct), free_port()
    options = ("--port", str(port), "--address", "127.0.0.1")
    with (
        shop.worker("-E"),
        shop.start("-m", "celery", "-A", "shop", "board", *options, ready="Celery Board"),
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
    ):
        eventually(lambda: "celery@" in client.get("/api/workers").text)
        for _ in range(2):
            client.post("/api/tasks", json={"name": "shop.store", "args": ["a", True]})
        eventually(lambda: sorted(job.state for job in shop.jobs()) == ["queued", "running"])
        (running,) = (job for job in shop.jobs() if job.state == "running")
        client.post(f"/api/tasks/{running.id}/terminate", json={})
        shop.await_states("canceled", "canceled")
        assert shop.marks == [[1]]
        long = shop.run("answer = store.delay('x' * 5000).id")
        seen = eventually(lambda: client.get(f"/api/tasks/{long}").json()["task"].get("call"))
        assert 0 < len(seen["args"][0]) < 5000
        assert bool(client.get("/api/queues").json()["error"]) is direct


def test_a_purged_queue_loses_no_job(program: MakeProgram) -> None:
    """A job whose message the board has purged is sent again by a sweep, and completes."""
    shop, port = program(APP), free_port()
    job = shop.run("answer = store.delay('a').id")
    options = ("--port", str(port), "--address", "127.0.0.1")
    with (
        shop.start("-m", "celery", "-A", "shop", "board", *options, ready="Celery Board"),
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
    ):
        eventually(lambda: client.post("/api/queues/celery/purge", json={}).json() == {"count": 1})
    with shop.worker():
        assert [each.id for each in shop.await_states("completed")] == [job]
