"""The web page of the demo and the job API, on loopback only."""

import socket
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Any

import uvicorn
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

from onejob.api import create_app
from onejob.api.auth import Guard, guarded
from onejob.celery.app_state import app_state_of
from onejob.demo.app import FOLDER, PORT_FILE, app, print_copy, provider, study_plan
from onejob.jobs.lifecycle import State
from onejob.jobs.limits import parked_on_key, waits_for
from onejob.jobs.query import Query
from onejob.pages import dashboard
from onejob.pages.app import mount_dashboard

PAGE = Path(str(files("onejob.demo") / "page"))
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
JOBS_BILLED = 1000

web = create_app(app)
mount_dashboard(web, dashboard(app, authorize=lambda _request: ("demo", "edit"), closing=web.state.closing))


@web.get("/", include_in_schema=False)
def page() -> FileResponse:
    """Serve the page."""
    return FileResponse(PAGE / "index.html", headers={"content-security-policy": POLICY})


web.mount("/static", StaticFiles(directory=PAGE))


@web.get("/meter")
def meter() -> dict[str, Any]:
    """Return the bill, which is the paid calls and those of one run per request, and how many copies wait for what."""
    ledger = app_state_of(app).ledger
    jobs = ledger.find(Query(task=study_plan.name, limit=JOBS_BILLED))
    requests = {job.id: 1 + job.duplicate_count for job in jobs}
    calls = provider.calls()
    paid = sum(calls.get(job_id, (0, 0))[0] for job_id in requests)
    without = sum(count * calls.get(job_id, (0, 0))[1] for job_id, count in requests.items())
    bill = {"requests": sum(requests.values()), "provider_calls": paid, "provider_calls_without": without}
    copies = ledger.find(Query(task=print_copy.name, states=frozenset({State.QUEUED}), limit=JOBS_BILLED))
    keys = [parked_on_key(job.parked_on) for job in copies]
    return bill | {"waiting": Counter(waits_for(key) for key in keys if key)}


def receive_webhook(note: dict[str, Any]) -> dict[str, bool]:
    """Receive the notification at the end of a plan, once per job id."""
    with closing(sqlite3.connect(FOLDER / "notes.db", timeout=10)) as notes, notes:
        notes.execute("create table if not exists webhooks (job_id text primary key)")
        notes.execute("insert or ignore into webhooks values (?)", (str(note.get("job")),))
    return {"ok": True}


web.router.add_api_route("/webhooks", receive_webhook, methods=["POST"], route_class_override=guarded(Guard()))


def serve(port: int) -> None:
    """Serve on a loopback port (0: a free one), and write the port to `PORT_FILE` once it is bound."""
    listener = socket.create_server(("127.0.0.1", port), backlog=256)
    part = PORT_FILE.with_suffix(".part")
    part.write_text(str(listener.getsockname()[1]))
    part.rename(PORT_FILE)
    config = uvicorn.Config(web, log_level="warning", server_header=False, proxy_headers=False)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    serve(int(sys.argv[1]))
