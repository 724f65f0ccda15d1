"""What can go wrong with a request, each under a stable name: the problem details of RFC 9457."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from onejob.errors import (
    DuplicateJobError,
    IdentityHeldError,
    InvalidArgumentsError,
    InvalidPayloadError,
    JobNotFoundError,
    JobPurgedError,
    KeyRequiredError,
    KeyReuseMismatchError,
    NoDeadLetterError,
    StoreUnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastapi import Request

logger = logging.getLogger("onejob.api")

MEDIA_TYPE = "application/problem+json"
PREFIX = "urn:onejob:problem:"
ERRORS_SHOWN = 20
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("type", "title", "detail")} | {"status": {"type": "integer"}},
    "required": ["type", "title", "status", "detail"],
}
HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
"""What every answer carries: it is data, nobody's page, and nobody's to keep."""
_RAW = [(name.encode(), value.encode()) for name, value in HEADERS.items()]


def with_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer with those of `HEADERS` that it has not."""
    found = list(headers)
    names = {name for name, _ in found}
    return [*found, *(each for each in _RAW if each[0] not in names)]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of problem."""

    status: int
    title: str
    meaning: str


KINDS: dict[str, Kind] = {
    "bad-json": Kind(400, "Invalid JSON", "It does not parse, or contains NaN, a name twice or a lone surrogate."),
    "bad-request": Kind(400, "Bad request", "The framing or the parts of the request contradict each other."),
    "key-required": Kind(400, "Idempotency key required", "This task cannot be submitted without an idempotency key."),
    "unauthorized": Kind(401, "Unauthorized", "The request has no API key, or an unknown one."),
    "forbidden": Kind(403, "Forbidden", "The role of the API key is too small, or the route is for this machine only."),
    "not-found": Kind(404, "Not found", "No route has this path."),
    "job-not-found": Kind(404, "Job not found", "It was never submitted, or its tombstone has expired."),
    "method-not-allowed": Kind(405, "Method not allowed", "`Allow` names the methods of the path."),
    "duplicate-job": Kind(409, "Duplicate job", "An equal job exists; `job_id` and `state` identify it."),
    "job-ended": Kind(409, "The job has ended", "A job that has ended cannot be canceled; `state` is its final state."),
    "not-a-dead-letter": Kind(409, "Not a dead letter", "Only a failed job can be sent again."),
    "identity-held": Kind(409, "Another job holds the identity", "`holder_id` must end before this one is sent again."),
    "job-purged": Kind(
        410,
        "The job is gone",
        "It was purged after its retention; `state` and `finished_at` say how and when it ended.",
    ),
    "too-large": Kind(413, "The body is too large", "Store the data elsewhere, and pass a reference."),
    "wrong-content-type": Kind(415, "Unsupported media type", "Send the header `content-type: application/json`."),
    "invalid-request": Kind(422, "Invalid request", "`errors` has the location and the reason of each error."),
    "invalid-arguments": Kind(422, "Invalid arguments", "They cannot be identified, stored or passed on."),
    "key-reused": Kind(422, "Idempotency key reused", "The key belongs to `job_id`, which had other arguments."),
    "quota-exceeded": Kind(429, "Quota exceeded", "`quota` and `limit` name the quota, `reset_at` its end."),
    "refused": Kind(403, "Refused by the app", "The app that mounts this API refused it, with its own status."),
    "internal": Kind(500, "Internal error", "The server's log has the details."),
    "store-unavailable": Kind(503, "The ledger is unavailable", "Retry with the same idempotency key."),
    "keys-unreadable": Kind(503, "The API keys cannot be read", "An operator must repair the key file."),
    "not-ready": Kind(
        503, "Not ready", "Ledger or broker do not answer (see `checks`), or too few workers are running."
    ),
}
"""Every kind by the name that ends its `type`."""
BY_STATUS = {400: "bad-request", 404: "not-found", 405: "method-not-allowed", 413: "too-large", 500: "internal"}


class Problem(HTTPException):
    """An answer that says what is wrong. `members` are told beside the standard ones."""

    def __init__(
        self, kind: str, detail: str, *, headers: dict[str, str] | None = None, own: int | None = None, **members: Any
    ) -> None:
        super().__init__(own or KINDS[kind].status, detail, headers)
        self.kind = kind
        self.members = members

    def response(self) -> Response:
        """Return the answer."""
        kind = KINDS[self.kind]
        body = {"type": PREFIX + self.kind, "title": kind.title, "status": self.status_code, "detail": self.detail}
        content = json.dumps(body | self.members)  # in ASCII, so that no text of a caller's can fail to be written
        return Response(content, self.status_code, {**HEADERS, **(self.headers or {})}, MEDIA_TYPE)


def problem_of(error: Exception) -> Problem:
    """Return what an exception tells the caller; for one that is nobody's fault but ours, only that."""
    match error:
        case Problem():
            return error
        case ClientDisconnect():
            return Problem("bad-request", "the caller hung up")  # which nobody reads
        case RequestValidationError():
            return Problem("invalid-request", "the request does not fit what this path takes", errors=_errors(error))
        case HTTPException():
            kind, status = BY_STATUS.get(error.status_code, "refused"), error.status_code
            return Problem(kind, str(error.detail), headers=dict(error.headers or {}), own=status)
        case _:
            return _conflict_of(error) or _trouble_of(error)


def _conflict_of(error: Exception) -> Problem | None:
    """Return what another job has to do with it."""
    match error:
        case DuplicateJobError():
            detail = f"an equal job of {error.task} is {error.state} already"
            return Problem("duplicate-job", detail, job_id=error.job_id, state=error.state)
        case KeyReuseMismatchError():
            detail = "this idempotency key came with other arguments the first time"
            return Problem("key-reused", detail, job_id=error.job_id)
        case NoDeadLetterError():
            return Problem("not-a-dead-letter", str(error), job_id=error.job_id, state=error.state)
        case IdentityHeldError():
            return Problem("identity-held", str(error), job_id=error.job_id, holder_id=error.holder_id)
        case _:
            return None


def _trouble_of(error: Exception) -> Problem:
    match error:
        case JobPurgedError():
            return Problem(
                "job-purged", str(error), job_id=error.job_id, state=error.state, finished_at=error.finished_at,
                purged_at=error.purged_at,
            )  # fmt: skip
        case JobNotFoundError():
            return Problem("job-not-found", str(error))
        case KeyRequiredError():
            return Problem("key-required", str(error))
        case InvalidArgumentsError() | InvalidPayloadError():
            return Problem("invalid-arguments", str(error))
        case StoreUnavailableError():
            logger.warning("the store did not answer: %s", error)
            detail = "whether anything came of the request is unknown"
            return Problem("store-unavailable", detail, headers={"retry-after": "1"})
        case _:
            logger.error("a request failed", exc_info=error)
            return Problem("internal", "the request failed by no fault of yours")


async def answer_with_problem(_request: Request, error: Exception) -> Response:
    """Answer an exception: a handler for FastAPI."""
    return problem_of(error).response()


def _errors(error: RequestValidationError) -> list[dict[str, Any]]:
    """Return where and why a request does not fit, without the values, which may be large or secret."""
    return [
        {"at": [str(part) for part in each["loc"]], "why": str(each["msg"]), "kind": str(each["type"])}
        for each in error.errors()[:ERRORS_SHOWN]
    ]
