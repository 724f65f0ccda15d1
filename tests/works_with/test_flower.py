"""Flower: its pages, its API and its buttons, on jobs."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import pytest

from tests.services import eventually, free_port
from tests.works_with.program import Log, MakeProgram, Program
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("flower==2.2.0",),
    needs=("tornado==6.6.1", "humanize==4.17.0", "pytz==2026.6"),
    ran="`celery flower` with the app: pages, tasks of the API, revoke, rate limit, shutdown; Redis, `onejob://`",
    holds="A call by the API is a submission: equal ones get one task id. Revoke cancels the job, also a running one "
    "with `terminate=true`; after Shutdown the running jobs wait for another worker.",
    do="Start it with `-A`, so that it submits jobs itself, and `worker -E`, as for all of Celery's events. For "
    '`/api/task/result` set `result_backend = "onejob://"`.',
    fails="With `onejob://` as the broker the page *Broker* and `/api/queues/length` answer 404.",
)
APP = """
from kit import *

app = make_app(result_backend="onejob://")

@app.task(base=onejob.Task, unique_on=["order"])
def invoice(order, held=False):
    mark(order)
    while held and not Path("go").exists():
        time.sleep(0.05)
    return f"invoice {order}"
"""


@contextmanager
def flower(shop: Program) -> Iterator[httpx2.Client]:
    """Run Flower during the block, which gets a client of it."""
    port = free_port()
    options = (f"--port={port}", "--address=127.0.0.1")
    with shop.start("-m", "celery", "-A", "shop", "flower", *options, ready="Connected to"):  # noqa: SIM117
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            eventually(lambda: "celery@" in client.get("/api/workers?refresh=1").text)
            yield client


@contextmanager
def both(program: MakeProgram, *, direct: bool) -> Iterator[tuple[Program, Log, httpx2.Client]]:
    """Run a worker and Flower during the block."""
    shop = program(APP, direct=direct, FLOWER_UNAUTHENTICATED_API="true")
    with shop.worker("-E", "--concurrency", "1") as log, flower(shop) as client:
        yield shop, log, client


def submit(client: httpx2.Client, order: int) -> str:
    """Submit by the API; return the task id."""
    return str(client.post("/api/task/async-apply/shop.invoice", json={"args": [order, True]}).json()["task-id"])


@pytest.mark.parametrize("direct", [False, True])
def test_the_api_submits_jobs(program: MakeProgram, direct: bool) -> None:
    """Equal calls of the API get one id; pages and events show the job; what the row excludes does not work."""
    with both(program, direct=direct) as (shop, _, client):
        first, again = submit(client, 1), submit(client, 1)
        assert first == again
        (shop.folder / "go").touch()
        assert client.post("/api/task/apply/shop.invoice", json={"args": [2]}).json()["result"] == "invoice 2"
        assert eventually(lambda: client.get(f"/api/task/info/{first}").json()["state"] == "SUCCESS")
        assert {client.get(page).status_code for page in ("/workers", "/tasks", f"/task/{first}", "/metrics")} == {200}
        results = client.get(f"/api/task/result/{first}")
        assert (results.status_code, results.json()["result"]) == (200, "invoice 1")
        assert {client.get(path).status_code for path in ("/broker", "/api/queues/length")} == {404 if direct else 200}
        assert shop.marks == [[1], [2]]


@pytest.mark.parametrize("direct", [False, True])
def test_its_buttons_reach_the_ledger(program: MakeProgram, direct: bool) -> None:
    """Revoke cancels a waiting and a running job, and a worker that is shut down gives its job back."""
    with both(program, direct=direct) as (shop, log, client):
        running, waiting, third = (submit(client, order) for order in (1, 2, 3))
        shop.await_marks(1)
        client.post(f"/api/task/revoke/{waiting}")
        client.post(f"/api/task/revoke/{running}?terminate=true")
        shop.await_marks(2)
        assert [job.id for job in shop.await_states("canceled", "canceled", "running")][2] == third
        limit = {"workername": next(iter(client.get("/api/workers").json())), "ratelimit": "10/m"}
        assert "successfully" in client.post("/api/task/rate-limit/shop.invoice", data=limit).text
        client.post(f"/api/worker/shutdown/{limit['workername']}")
        eventually(lambda: not log.daemon.alive)
        shop.await_states("canceled", "canceled", "queued")
