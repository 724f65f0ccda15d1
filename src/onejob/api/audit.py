"""Records in the audit log what operators do over HTTP, and which requests are refused."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool

from onejob.api.api_keys import Role
from onejob.jobs.records import AuditEntry
from onejob.observability.audit import TEXT_LIMIT, record

if TYPE_CHECKING:
    from fastapi import Request

    from onejob.ledger.ledger import Ledger

SOURCE = "http"
REFUSALS = frozenset({"unauthorized", "forbidden"})
"""The problems that are recorded for any request."""
HIDDEN = "job-not-found"
"""Recorded for requests with an API key: a job that does not exist looks like one that the key may not see."""
REFUSAL_WINDOW = 600.0
"""Seconds for which further refusals of the same kind, of the same key, are only counted."""
WINDOW_LIMIT = 1000
CHANGES = frozenset({"POST", "DELETE"})
"""The methods of an operator's actions."""


@dataclass(slots=True)
class _Window:
    """The refusals of one kind since the last entry."""

    began_at: float
    count: int = 0


class Refusals:
    """Counts refused requests: equal ones make one entry per window, so that no client can fill the log."""

    def __init__(self) -> None:
        self._windows: dict[tuple[str, str], _Window] = {}

    def count(self, actor: str, outcome: str) -> int:
        """Count a refusal; return how many a new entry stands for, 0 if there is one for this window already."""
        now = time.monotonic()
        window = self._windows.get((actor, outcome))
        if window is not None and now < window.began_at + REFUSAL_WINDOW:
            window.count += 1
            return 0
        if len(self._windows) >= WINDOW_LIMIT:
            self._windows.clear()
        self._windows[actor, outcome] = _Window(now)
        return 1 + (window.count if window is not None else 0)


class RequestAudit:
    """Records the requests of one API."""

    def __init__(self, ledger: Ledger, source: str = SOURCE) -> None:
        self._ledger = ledger
        self._source = source
        self._refusals = Refusals()

    async def record(
        self, request: Request, action: str, role: Role | None, *, outcome: str, body: bytes = b""
    ) -> None:
        """Record a request, if it is an operator's action or refused. Never raises, and takes no time otherwise.

        `role`: the one that the endpoint requires. `outcome`: "done", or the slug of the problem.
        """
        actor = _actor_of(request)
        if outcome in REFUSALS or (outcome == HIDDEN and actor):
            count = self._refusals.count(actor, outcome)
        else:
            count = int(role is Role.OPERATE and request.method in CHANGES)
        if count:
            entry = AuditEntry(
                actor=actor, source=self._source, address=request.client.host if request.client else "", action=action,
                target=request.path_params.get("job_id", ""), outcome=outcome, detail=_describe(request, body),
                count=count,
            )  # fmt: skip
            await run_in_threadpool(record, self._ledger.append_audit, entry)


def _actor_of(request: Request) -> str:
    """Return the name of the API key of a request, also if its role is too low; "" without a valid one."""
    caller = getattr(request.state, "caller", None)
    return caller.name if caller is not None else getattr(request.state, "key_name", "")


def _describe(request: Request, body: bytes) -> str:
    """Return the method, the query and the beginning of the body; the path is in the entry's action and target."""
    parts = (request.method, request.url.query, body[:TEXT_LIMIT].decode(errors="replace"))
    return " ".join(filter(None, parts))
