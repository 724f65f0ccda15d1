"""Records in the audit log what operators do over HTTP, who logs in, and which requests are refused."""

import json
import math
import time
from collections.abc import Iterable, Iterator
from typing import Any

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from onejob.api.api_keys import Role
from onejob.api.problems import PROBLEM_TYPES
from onejob.jobs.audit_entries import ACCESS, ACTION, OWN, AuditEntry
from onejob.ledger.job_filters import audit_text
from onejob.ledger.ledger import Ledger
from onejob.observability.logs import record_audit

SOURCE = "http"
DONE = "done"
ANSWERS = {DONE, *(slug for slug, kind in PROBLEM_TYPES.items() if kind.status in {409, 410})} - {"duplicate-job"}
"""The outcomes of an operation on a job for a caller with the permission; each has an entry of its own.

Equal operations that change nothing are counted, as are all equal operations of a caller with own jobs.
"""
UNCERTAIN = frozenset({"store-unavailable", "store-unusable", "internal"})
"""The outcomes of an operation that may have changed jobs."""
REFUSALS = frozenset({"unauthorized", "forbidden", "refused"})
"""The outcomes that are counted for any request; for a known caller, other outcomes are counted, too."""
HIDDEN = "job-not-found"
"""The outcome that is counted for requests with an API key: the job does not exist, or the key may not see it."""
REFUSAL_WINDOW = 600.0
"""Seconds for which further equal requests are only counted."""
WINDOW_LIMIT = 1000
CHANGES = frozenset({"POST", "PUT", "DELETE"})
"""The methods of an operator's actions."""
OPERATORS = frozenset({Role.OPERATE, Role.EDIT})


class Refusals:
    """Decides which requests have an entry of their own, and counts the others; equal requests share one per window."""

    def __init__(self) -> None:
        self._windows: dict[tuple[str, str], tuple[float, int]] = {}
        """By actor, and what was refused, when the last entry was made, and how many equal requests have followed."""

    def classify(
        self, actor: str, outcome: str, *, is_action: bool, asked: str, has_own_jobs: bool = False
    ) -> tuple[str, int]:  # fmt: skip
        """Return the kind of a request's entry, and how many requests the entry stands for: 0 for no entry.

        `actor`: "" for an unknown caller. `is_action`: the request would change jobs. `asked`: action, target and
        fields.
        """
        if is_action and (outcome in ANSWERS or (actor and outcome in UNCERTAIN)):
            kind = OWN if has_own_jobs else ACTION
            repeats = has_own_jobs or outcome not in {DONE, *UNCERTAIN}
            return kind, self.count(actor, f"{asked} {outcome}") if repeats else 1
        if outcome in REFUSALS or (actor and (is_action or outcome == HIDDEN)):
            return ACCESS, self.count(actor, outcome)
        return ACCESS, 0

    def count(self, actor: str, outcome: str) -> int:
        """Count a request; return how many requests a new entry stands for, 0 if this window has an entry already."""
        now = time.monotonic()
        began_at, counted = self._windows.get((actor, outcome), (-math.inf, 0))
        if now < began_at + REFUSAL_WINDOW:
            self._windows[actor, outcome] = began_at, counted + 1
            return 0
        if len(self._windows) >= WINDOW_LIMIT:
            self._windows.clear()
        self._windows[actor, outcome] = now, 0
        return 1 + counted


class RequestAudit:
    """Records the requests of one API."""

    def __init__(self, ledger: Ledger, source: str = SOURCE) -> None:
        self._ledger = ledger
        self._source = source
        self._refusals = Refusals()

    async def record(
        self, request: Request, action: str, role: Role | None, *, outcome: str, fields: Iterable[tuple[str, Any]] = ()
    ) -> None:
        """Record a request, if it is an operator's action or refused. Never raises, and takes no time otherwise.

        `role`: the role that the endpoint requires. `outcome`: "done", or the slug of the problem. `fields`: the fields
        of the body.
        """
        is_action = role in OPERATORS and request.method in CHANGES
        if outcome != DONE or is_action:
            is_answer = is_action and outcome in ANSWERS | UNCERTAIN
            shown = audit_text([*request.query_params.multi_items(), *fields]) if is_answer else ""
            kind, count = self._refusals.classify(
                _actor_of(request), outcome, is_action=is_action, asked=f"{action} {_target_of(request)} {shown}",
                has_own_jobs=getattr(getattr(request.state, "caller", None), "own_jobs", False),
            )  # fmt: skip
            if count:
                await self._append(request, action, outcome, kind, count, "" if kind == ACCESS else shown)

    async def record_login(self, request: Request, outcome: str) -> None:
        """Record a login or a failed login; equal ones are counted, since anybody may repeat them."""
        if count := self._refusals.count(_actor_of(request), f"login {outcome}"):
            await self._append(request, "login", outcome, ACCESS, count)

    async def _append(
        self, request: Request, action: str, outcome: str, kind: str, count: int, fields: str = ""
    ) -> None:
        entry = AuditEntry(
            actor=_actor_of(request), source=self._source, address=request.client.host if request.client else "",
            action=action, target=_target_of(request), outcome=outcome, count=count, kind=kind,
            detail=f"{request.method} {fields}".rstrip(),
        )  # fmt: skip
        await run_in_threadpool(record_audit, self._ledger.append_audit, entry)


def _target_of(request: Request) -> str:
    """Return the id of the job or block, the schedule entry, or the key of a limit in the path of a request; or ""."""
    names = ("job_id", "entry", "block_id", "key")
    return str(next((request.path_params[name] for name in names if request.path_params.get(name)), ""))


def _actor_of(request: Request) -> str:
    """Return the name of the API key of a request, also if its role is too low; "" without a valid one."""
    caller = getattr(request.state, "caller", None)
    return caller.name if caller is not None else getattr(request.state, "key_name", "")


def fields_of_json(body: bytes | None) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a JSON object that was accepted, and of the objects in it; deeper names may be data."""
    for name, value in json.loads(body).items() if body else ():
        inner = value.items() if isinstance(value, dict) else [("", value)]
        for key, each in inner:
            for item in each if isinstance(each, list) else [each]:
                yield f"{name}.{key}" if key else name, item
