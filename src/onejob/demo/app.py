"""The Celery app of the demo: a task in six stages, which resumes after its last paid call, and one with a limit."""

import json
import os
import sqlite3
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

from celery import Celery
from pydantic import Field

import onejob
from onejob.demo import LEASE, PRINT, TASK, pipeline

T = TypeVar("T")


class Provider:
    """Records every call in a SQLite file before it responds, as a provider does."""

    def __init__(self, bill: Path, latency: float) -> None:
        self._bill = bill
        self._latency = latency
        with self._open() as bill_file:
            bill_file.execute("create table if not exists calls (job_id text, call text)")

    def call(self, job_id: str, name: str, work: Callable[..., T], *args: Any) -> T:
        """Record one call, wait `latency` seconds, and return the result of `work`."""
        with self._open() as bill_file:
            bill_file.execute("insert into calls values (?, ?)", (job_id, name))
        time.sleep(self._latency)
        return work(*args)

    def calls(self) -> dict[str, tuple[int, int]]:
        """Return by job the number of recorded calls, and of distinct calls, which one uninterrupted run makes."""
        with self._open() as bill_file:
            rows = bill_file.execute("select job_id, count(*), count(distinct call) from calls group by job_id")
            return {job_id: (recorded, distinct) for job_id, recorded, distinct in rows}

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._bill, timeout=60)) as bill_file, bill_file:  # waits for the lock
            yield bill_file


FOLDER = Path(os.environ.get("ONEJOB_DEMO_FOLDER", "."))
DOCUMENTS = Path(os.environ.get("ONEJOB_DEMO_DOCUMENTS", Path(__file__).parent / "texts"))
BROKER = os.environ.get("ONEJOB_DEMO_BROKER", "memory://")
LATENCY = float(os.environ.get("ONEJOB_DEMO_LATENCY", "0.35"))
PORT_FILE = FOLDER / "port"
"""The file to which the server writes its port."""
BATCHES = 8
"""The number of calls that embed the chunks."""
CARDS = 24
Project = Annotated[str, Field(pattern=r"^[A-Za-z0-9 _.-]{1,64}$")]

app = Celery("onejob-demo", broker=BROKER)
app.conf.update(
    onejob_store=f"sqlite:///{FOLDER / 'ledger.db'}",
    onejob_lease=LEASE,
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
)
provider = Provider(FOLDER / "bill.db", LATENCY)


@app.task(base=onejob.Task, name=TASK, expose=True, shared=False)  # only for this app, not for others in the process
def study_plan(project: Project) -> dict[str, Any]:
    """Turn a folder of texts into study cards. Every paid call is a step, executed once per job."""
    plan = _Plan(onejob.current_job())
    plan.start_stage("load")
    texts = pipeline.load(DOCUMENTS)
    plan.start_stage("chunk")
    chunks = pipeline.chunk(texts)
    batches = [batch for number in range(BATCHES) if (batch := chunks[number::BATCHES])]
    plan.total = len(batches) + len(texts) + 1

    spread: Counter[str] = Counter()
    for number, batch in enumerate(batches, 1):
        spread.update(plan.call("embed", f"embed {number}", pipeline.embed, batch))
    cards: list[pipeline.Card] = []
    for document in texts:
        own = [chunk for chunk in chunks if chunk["document"] == document]
        count = max(1, CARDS // len(texts))
        cards += plan.call("write cards", f"write {document}", pipeline.write_cards, own, spread, count)
    accepted, rejected = plan.call("check cards", "check", pipeline.check_cards, cards)
    plan.start_stage("call back")
    if PORT_FILE.exists():
        plan.job.step("call back", _notify_application, plan.job.id, project, len(accepted))
    plan.start_stage("done")
    return {"cards": accepted, "rejected": len(rejected)}


@app.task(base=onejob.Task, name=PRINT, expose=True, shared=False, limits=[onejob.Limit("customer", running=1)])
def print_copy(customer: Project, copy: int) -> int:
    """Print a copy of the cards: one at a time for each customer, also while other workers are idle."""
    return provider.call(onejob.current_job().id, f"print for {customer}", int, copy)


class _Plan:
    """Progress and paid calls of one run. Progress continues from the previous run, whose steps are kept."""

    def __init__(self, job: onejob.RunningJob) -> None:
        previous = job.job.progress or {}
        self.job = job
        self.total: int | None = previous.get("total")
        self._done = 0
        self._previously_done: int = previous.get("done", 0)

    def start_stage(self, stage: str) -> None:
        self.job.progress(max(self._done, self._previously_done), self.total, stage)

    def call(self, stage: str, name: str, work: Any, *args: Any) -> Any:
        self.start_stage(stage)
        value = self.job.step(name, provider.call, self.job.id, name, work, *args)
        self._done += 1
        return value


def _notify_application(job_id: str, project: str, cards: int) -> int:
    """Notify the application; the job's id is the idempotency key."""
    url = f"http://127.0.0.1:{PORT_FILE.read_text()}/webhooks"
    body = json.dumps({"job": job_id, "project": project, "cards": cards}).encode()
    headers = {"content-type": "application/json", "idempotency-key": job_id}
    request = urllib.request.Request(url, data=body, headers=headers)
    with urllib.request.urlopen(request, timeout=5) as response:  # noqa: S310
        return int(response.status)
