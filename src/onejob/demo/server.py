"""The page of the demo and the small JSON API behind it, on loopback only."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import sys
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi import Path as PathParameter
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, Field
from starlette.middleware.trustedhost import TrustedHostMiddleware

from onejob.celery.runtime import runtime_of
from onejob.demo.app import FOLDER, app, provider, study_plan
from onejob.errors import JobNotFoundError
from onejob.job import Job, Query

PAGE = Path(str(files("onejob.demo") / "page"))
PORT_FILE = FOLDER / "port"
LOCAL = ["127.0.0.1", "localhost"]
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:"
HEADERS = {
    "content-security-policy": f"{POLICY}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
Name = Annotated[str, PathParameter(pattern=r"^[A-Za-z0-9 _.-]{1,64}$")]


class PlanRequest(BaseModel):
    """What the button sends."""

    project: str = Field(pattern=r"^[A-Za-z0-9 _.-]{1,64}$")


def only_json(request: Request) -> None:
    """Refuse what a form on a foreign page could send."""
    if not request.headers.get("content-type", "").startswith("application/json"):
        raise HTTPException(415, "send JSON, with the header content-type: application/json")


api = FastAPI(title="onejob demo", openapi_url=None)
api.add_middleware(TrustedHostMiddleware, allowed_hosts=LOCAL)


@api.middleware("http")
async def add_headers(request: Request, call_next: Any) -> Response:
    """Put the security headers on every answer."""
    response: Response = await call_next(request)
    response.headers.update(HEADERS)
    return response


@api.post("/api/plans", dependencies=[Depends(only_json)])
def ask(wanted: PlanRequest, request: Request, response: Response) -> dict[str, Any]:
    """Ask for a plan; an equal request gets the job that is already at it."""
    callback = f"http://127.0.0.1:{request.url.port}/api/callbacks"
    result = study_plan.delay(project=wanted.project, callback=callback)
    with _notes() as notes:
        notes.execute("insert into requests values (?)", (result.id,))
    response.status_code = 202 if result.outcome == "admitted" else 200
    return {"job": _view(result.job), "outcome": result.outcome}


@api.get("/api/plans/{project}")
def newest(project: Name) -> dict[str, Any]:
    """Return the newest job of a project."""
    identity = study_plan.identifier.identity((), {"project": project})
    found = _ledger().find(Query(identity=identity, limit=1))
    return {"job": _view(found[0]) if found else None}


@api.get("/api/jobs/{job_id}")
def look(job_id: str) -> dict[str, Any]:
    """Return a job."""
    return _view(_job(job_id))


@api.post("/api/jobs/{job_id}/cancel", dependencies=[Depends(only_json)])
def cancel(job_id: str) -> dict[str, Any]:
    """Cancel a job."""
    _job(job_id)
    return _view(_ledger().cancel(job_id, reason="canceled on the page"))


@api.get("/api/jobs/{job_id}/cards")
def cards(job_id: str) -> dict[str, Any]:
    """Return the cards of a job that has completed."""
    job = _job(job_id)
    result: dict[str, Any] = json.loads(job.result) if job.result else {"cards": [], "rejected": 0}
    kept = [{name: card[name] for name in ("question", "answer", "source")} for card in result["cards"]]
    return {"cards": kept, "rejected": result["rejected"]}


@api.post("/api/callbacks", dependencies=[Depends(only_json)])
def called_back(note: dict[str, Any]) -> dict[str, bool]:
    """Receive the call at the end of a plan; a repetition is recognised by the job's id."""
    with _notes() as notes:
        notes.execute("insert or ignore into callbacks values (?)", (str(note.get("job")),))
    return {"ok": True}


@api.get("/api/meter")
def meter() -> dict[str, int]:
    """Return the bill: the calls that were paid, and those that as many runs as requests would have cost."""
    with _notes() as notes:
        asked = [job_id for (job_id,) in notes.execute("select job_id from requests")]
    of_each = {job_id: provider.calls_of_one_run(job_id) for job_id in set(asked)}
    without = sum(of_each[job_id] for job_id in asked)
    return {"requests": len(asked), "provider_calls": provider.calls(), "provider_calls_without": without}


@api.get("/")
def page() -> FileResponse:
    """Return the page."""
    return FileResponse(PAGE / "index.html")


api.mount("/static", StaticFiles(directory=PAGE))


def _ledger() -> Any:
    return runtime_of(app).ledger


def _job(job_id: str) -> Job:
    try:
        job: Job = _ledger().get(job_id)
    except JobNotFoundError as error:
        raise HTTPException(404, str(error)) from error
    return job


def _view(job: Job) -> dict[str, Any]:
    shown = ("id", "state", "attempt", "crashes", "duplicates", "reason", "created_at", "finished_at", "node", "lease")
    view = {name: getattr(job, name) for name in shown}
    progress = json.loads(job.progress) if job.progress else None
    return view | {"progress": progress, "steps": len(_ledger().steps(job))}


def _notes() -> sqlite3.Connection:
    notes = sqlite3.connect(FOLDER / "notes.db", timeout=10)
    notes.execute("create table if not exists requests (job_id text)")
    notes.execute("create table if not exists callbacks (job_id text primary key)")
    return notes


def serve(port: int) -> None:
    """Serve on a loopback port, 0 for a free one, and write the port to a file when it is bound."""
    listener = socket.create_server(("127.0.0.1", port), backlog=256)
    part = PORT_FILE.with_suffix(".part")
    part.write_text(str(listener.getsockname()[1]))
    part.rename(PORT_FILE)
    uvicorn.Server(uvicorn.Config(api, log_level="warning")).run(sockets=[listener])


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    serve(int(sys.argv[1]))
