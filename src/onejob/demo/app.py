"""The Celery app of the demo: one task, a study plan in six stages, resumable at every paid call."""

from __future__ import annotations

import json
import math
import os
import urllib.request
from pathlib import Path
from typing import Annotated, Any

from celery import Celery
from pydantic import Field

import onejob
from onejob.demo import LEASE, TASK, pipeline
from onejob.demo.provider import Provider

FOLDER = Path(os.environ.get("ONEJOB_DEMO_FOLDER", "."))
DOCUMENTS = Path(os.environ.get("ONEJOB_DEMO_DOCUMENTS", Path(__file__).parent / "texts"))
BROKER = os.environ.get("ONEJOB_DEMO_BROKER", "memory://")
LATENCY = float(os.environ.get("ONEJOB_DEMO_LATENCY", "0.35"))
PORT_FILE = FOLDER / "port"
"""Where the server says on which port it is."""
BATCH = 12
CARDS = 24
Project = Annotated[str, Field(pattern=r"^[A-Za-z0-9 _.-]{1,64}$")]

app = Celery("onejob-demo", broker=BROKER)
app.conf.update(
    onejob_store=f"sqlite:///{FOLDER / 'ledger.db'}",
    onejob_lease=LEASE,
    onejob_heartbeat=1,
    onejob_sweep=0.25,
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
)
provider = Provider(FOLDER / "bill.db", LATENCY)


@app.task(base=onejob.Task, name=TASK, expose=True, shared=False)  # of this app alone, whatever else the process loads
def study_plan(project: Project) -> dict[str, Any]:
    """Turn a folder of texts into study cards. Every paid call is a step: computed once in the life of the job."""
    job = onejob.current_job()
    plan = _Plan(job)
    plan.at("load")
    documents = pipeline.load(DOCUMENTS)
    plan.at("chunk")
    chunks = pipeline.chunk(documents)
    batches = pipeline.batches(chunks, min(BATCH, math.ceil(len(chunks) / 4)))
    groups = [[chunk for chunk in chunks if chunk["document"] == document["name"]] for document in documents]
    plan.expect(len(batches) + len(groups) + 1)

    vectors: dict[str, pipeline.Vector] = {}
    idf = pipeline.weigh(chunks)
    for number, batch in enumerate(batches, 1):
        vectors |= plan.paid("embed", f"embed {number}", pipeline.embed_batch, batch, idf)
    cards: list[pipeline.Card] = []
    for group, count in zip(groups, pipeline.share(CARDS, groups), strict=True):
        cards += plan.paid(
            "write cards", f"write {group[0]['document']}", pipeline.write_cards_for, group, vectors, count
        )
    checked = plan.paid("check cards", "check", pipeline.check_cards, cards, chunks, vectors)
    plan.at("call back")
    if PORT_FILE.exists():
        job.step("call back", _call_back, job.id, project, len(checked["accepted"]))
    plan.at("done")
    return {"cards": checked["accepted"], "rejected": len(checked["rejected"])}


class _Plan:
    """Progress and paid calls of one run. It begins where the run before it ended, whose paid calls are kept."""

    def __init__(self, job: onejob.RunningJob) -> None:
        before = json.loads(job.job.progress or "{}")
        self._job = job
        self._done = 0
        self._kept: int = before.get("done", 0)
        self._total: int | None = before.get("total")

    def expect(self, total: int) -> None:
        self._total = total

    def at(self, stage: str) -> None:
        self._job.progress(max(self._done, self._kept), self._total, stage)

    def paid(self, stage: str, name: str, work: Any, *args: Any) -> Any:
        self.at(stage)
        value = self._job.step(name, provider.call, self._job.id, name, work, *args)
        self._done += 1
        return value


def _call_back(job_id: str, project: str, cards: int) -> int:
    """Tell the application; the job's id lets it recognise a repetition."""
    url = f"http://127.0.0.1:{PORT_FILE.read_text()}/webhooks"
    body = json.dumps({"job": job_id, "project": project, "cards": cards}).encode()
    headers = {"content-type": "application/json", "idempotency-key": job_id}
    request = urllib.request.Request(url, data=body, headers=headers)
    with urllib.request.urlopen(request, timeout=5) as response:  # noqa: S310
        return int(response.status)
