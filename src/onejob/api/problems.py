"""Error responses as problem details (RFC 9457), each type under a stable slug."""

import html
import json
import logging
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from onejob import errors
from onejob.celery.messages.routing import is_unpublishable

logger = logging.getLogger("onejob.api")

MEDIA_TYPE = "application/problem+json"
PREFIX = "urn:onejob:problem:"
MAX_ERRORS = 20
"""The number of validation errors that one response lists."""
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("type", "title", "detail")} | {"status": {"type": "integer"}},
    "required": ["type", "title", "status", "detail"],
}
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""The headers of every response: no scripts, framing, sniffing or embedding elsewhere, and no caching by default."""
_RAW_HEADERS = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]


Headers: TypeAlias = Iterable[tuple[bytes, bytes]]


def add_security_headers(headers: Headers, more: Headers = ()) -> list[tuple[bytes, bytes]]:
    """Return a response's headers, plus those of `more` and `SECURITY_HEADERS` that the response does not set."""
    given, own = list(headers), dict(_RAW_HEADERS) | dict(more)
    names = {name for name, _ in given}
    return [*given, *((name, value) for name, value in own.items() if name not in names)]


class ProblemType(NamedTuple):
    """A type of problem: its HTTP status, its title, and a sentence for the documentation."""

    status: int
    title: str
    meaning: str


PROBLEM_TYPES: dict[str, ProblemType] = {
    "bad-json": ProblemType(400, "Invalid JSON", "A syntax error, NaN, a duplicate name or a lone surrogate."),
    "bad-request": ProblemType(400, "Malformed request", "Its headers contradict each other, or it is incomplete."),
    "key-required": ProblemType(400, "Idempotency key required", "This task accepts no submission without one."),
    "unauthorized": ProblemType(401, "API key required", "The request has no API key, or an unknown one."),
    "forbidden": ProblemType(403, "Forbidden", "The caller is not permitted to do this, or the request is not local."),
    "not-found": ProblemType(404, "Path not found", "No route has this path."),
    "job-not-found": ProblemType(404, "Job not found", "It was never submitted, or its tombstone has expired."),
    "schedule-not-found": ProblemType(404, "Schedule entry not found", "The beat schedule has no entry of this name."),
    "block-not-found": ProblemType(404, "Pause or strike not found", "It was ended, or its time is over."),
    "limit-not-found": ProblemType(404, "Limit not found", "No task defines it, or no worker with one has started."),
    "method-not-allowed": ProblemType(405, "Method not allowed", "`Allow` lists the methods of the path."),
    "request-timeout": ProblemType(408, "Request too slow", "Its headers or its body did not arrive in time."),
    "duplicate-job": ProblemType(
        409, "Duplicate job", "An equal job exists: `job_id` and `state`, if the caller may read it."
    ),
    "job-ended": ProblemType(409, "Job already ended", "It can no longer be canceled; `state` is its final state."),
    "job-not-ended": ProblemType(409, "Job not ended", "Only a job that has ended can be deleted: cancel it first."),
    "not-waiting": ProblemType(409, "Job not waiting", "It runs, has ended, or waits for the end of `follows_id`."),
    "window-open": ProblemType(409, "Uniqueness window open", "It answers duplicates until `until`: delete it then."),
    "job-needed": ProblemType(
        409, "Job needed", "`needed_by` says what needs it; `force=true` deletes it all the same."
    ),
    "not-a-dead-letter": ProblemType(409, "Not a dead letter", "Only a failed job can be redriven."),
    "not-resubmittable": ProblemType(409, "Not resubmittable", "The dead letter cannot be edited: `detail` says why."),
    "identity-held": ProblemType(409, "Identity held", "The job can be redriven when the job `holder_id` has ended."),
    "superseded": ProblemType(409, "Superseded", "The later job `newer_id` has newer arguments: drop the dead letter."),
    "job-purged": ProblemType(410, "Job purged", "`state` is its final state, `finished_at` the time it ended."),
    "too-large": ProblemType(413, "Body too large", "It has too many bytes or values: pass a reference."),
    "wrong-content-type": ProblemType(415, "Unsupported media type", "Send `content-type: application/json`."),
    "invalid-request": ProblemType(422, "Validation failed", "`errors` lists each place and reason."),
    "invalid-arguments": ProblemType(422, "Invalid arguments", "They cannot be hashed, serialized or passed on."),
    "unpublishable": ProblemType(422, "Message cannot be sent", "No route or no encoding for it; nothing was stored."),
    "key-reused": ProblemType(422, "Idempotency key reused", "It belongs to `job_id`, with different arguments."),
    "too-many-webhooks": ProblemType(422, "Too many webhooks", "The job `job_id` answers, without this `webhook_url`."),
    "quota-exceeded": ProblemType(429, "Quota exceeded", "`quota` and `limit` show which; it resets at `reset_at`."),
    "too-many-requests": ProblemType(429, "Too many requests", "Too many large ones of this caller wait."),
    "too-many-waits": ProblemType(429, "Too many waits", "Close an event stream or a long poll of this API key."),
    "refused": ProblemType(403, "Refused by the app", "The app that mounts this API refused it, with its own status."),
    "internal": ProblemType(500, "Internal error", "The server's log has the details."),
    "store-unavailable": ProblemType(503, "Ledger unavailable", "Retry with the same idempotency key."),
    "store-unusable": ProblemType(503, "Ledger unusable", "An operator must act: the server's log says what to do."),
    "keys-unreadable": ProblemType(503, "API keys unreadable", "An operator must repair the key file."),
    "overloaded": ProblemType(503, "Too many requests at once", "Retry after the seconds of `Retry-After`."),
    "not-ready": ProblemType(503, "Not ready", "`checks` shows what is unavailable, or no required worker runs."),
}
"""Every problem type by its slug, which ends the `type` URN."""
SLUG_BY_STATUS = {400: "bad-request", 404: "not-found", 405: "method-not-allowed", 413: "too-large", 500: "internal"}


class Problem(HTTPException):
    """A problem to respond with. `members` are added to the standard members of the body (RFC 9457, 3.2)."""

    def __init__(
        self, slug: str, detail: str, headers: dict[str, str] | None = None, status: int | None = None, **members: Any
    ) -> None:
        super().__init__(status or PROBLEM_TYPES[slug].status, detail, headers)
        self.slug = slug
        self.members = members

    def response(self) -> Response:
        """Return the problem as a response."""
        title = PROBLEM_TYPES[self.slug].title
        body = {"type": PREFIX + self.slug, "title": title, "status": self.status_code, "detail": self.detail}
        content = json.dumps(body | self.members)  # ASCII, so that a lone surrogate in a caller's text can be encoded
        return Response(content, self.status_code, {**SECURITY_HEADERS, **(self.headers or {})}, MEDIA_TYPE)

    def page(self) -> Response:
        """Return the problem as an HTML page that needs no other file, for a browser without access to any."""
        title, detail = html.escape(PROBLEM_TYPES[self.slug].title), html.escape(str(self.detail))
        text = f'<!doctype html><html lang="en"><title>{title}</title><h1>{title}</h1><p>{detail}</p></html>'
        content = text.encode("ascii", "xmlcharrefreplace")
        return Response(content, self.status_code, {**SECURITY_HEADERS, **(self.headers or {})}, "text/html")


def wrong_method(allowed: Iterable[str]) -> Problem:
    """Return the problem of a method that no route of a path has (RFC 9110, 15.5.6)."""
    methods = ", ".join(sorted(allowed))
    return Problem("method-not-allowed", f"this path takes {methods}", headers={"allow": methods})


class Report(NamedTuple):
    """The report of an error: the slug of its problem, the attributes that become members, and its detail."""

    slug: str
    members: str = ""
    detail: str = ""
    """A text with attributes of the error in braces; "" for the text of the error."""


REPORTS: dict[type[Exception], Report] = {
    errors.DuplicateJobError: Report("duplicate-job", "job_id state", "an equal job of {task} is already {state}"),
    errors.KeyReuseMismatchError: Report(
        "key-reused", "job_id", "the first submission with this idempotency key had different arguments"
    ),
    errors.IdentityHeldError: Report("identity-held", "job_id holder_id"),
    errors.SupersededError: Report("superseded", "job_id newer_id newer_state"),
    errors.JobEndedError: Report("job-ended", "job_id state"),
    errors.JobNotEndedError: Report("job-not-ended", "job_id state"),
    errors.NotWaitingError: Report("not-waiting", "job_id state follows_id"),
    errors.NoDeadLetterError: Report("not-a-dead-letter", "job_id state follows_id"),
    errors.NotResubmittableError: Report("not-resubmittable", "job_id"),
    errors.UniquenessWindowError: Report("window-open", "job_id state until"),
    errors.JobNeededError: Report("job-needed", "job_id state needed_by"),
    errors.TooManyWebhooksError: Report("too-many-webhooks", "job_id"),
    errors.JobPurgedError: Report("job-purged", "job_id state finished_at purged_at"),
    errors.JobNotFoundError: Report("job-not-found"),
    errors.ScheduleEntryNotFoundError: Report("schedule-not-found"),
    errors.BlockNotFoundError: Report("block-not-found"),
    errors.InvalidBlockError: Report("invalid-arguments"),
    errors.InvalidLimitError: Report("invalid-arguments"),
    errors.KeyRequiredError: Report("key-required"),
    errors.InvalidArgumentsError: Report("invalid-arguments"),
    errors.InvalidPayloadError: Report("invalid-arguments"),
}
"""The reports of the caller's errors by class; a class precedes its base classes."""


def problem_from(error: Exception) -> Problem:
    """Return the problem that reports an exception; an unexpected exception is logged and reveals no detail."""
    match error:
        case Problem():
            return error
        case ClientDisconnect():
            return Problem("bad-request", "the client disconnected")  # the response is never read
        case RequestValidationError():
            # The invalid values, which may be large or secret, are left out.
            places = [
                {"at": [str(part) for part in each["loc"]], "why": str(each["msg"]), "kind": str(each["type"])}
                for each in error.errors()[:MAX_ERRORS]
            ]
            return Problem("invalid-request", "the request does not match its schema", errors=places)
        case HTTPException():
            slug, status = SLUG_BY_STATUS.get(error.status_code, "refused"), error.status_code
            return Problem(slug, str(error.detail), headers=dict(error.headers or {}), status=status)
        case _:
            return _problem_of_failure(error)


def _problem_of_failure(error: Exception) -> Problem:
    match error:
        case _ if is_unpublishable(error):
            logger.error("a job was not submitted, because its message cannot be sent: %s", errors.describe(error))
            detail = f"the task's route, or the encoding of its message, failed: {type(error).__name__}"
            return Problem("unpublishable", detail)
        case errors.QuotaExceededError():
            headers = {"retry-after": str(error.retry_after)}
            members: dict[str, Any] = {"quota": error.option, "limit": error.limit, "reset_at": error.reset_at}
            return Problem("quota-exceeded", str(error), headers, **members)
        case errors.StoreUnavailableError():
            logger.warning("the store is unavailable: %s", error)
            detail = "the store did not respond: the request may or may not have taken effect"
            return Problem("store-unavailable", detail, headers={"retry-after": "1"})
        case errors.StoreUnusableError():
            logger.error("the store is unusable until an operator acts: %s", error)
            detail = "the store refused, and will until an operator acts"
            return Problem("store-unusable", detail, headers={"retry-after": "30"})
    report = next((REPORTS[each] for each in type(error).__mro__ if each in REPORTS), None)
    if report is None:
        logger.error("a request failed", exc_info=error)
        return Problem("internal", "an unexpected error occurred on the server")
    own: dict[str, Any] = {name: getattr(error, name) for name in report.members.split()}
    return Problem(report.slug, report.detail.format_map(vars(error)) or str(error), **own)


async def handle_exception(_request: Request, error: Exception) -> Response:
    """Respond with the problem that reports an exception: an exception handler for FastAPI."""
    return problem_from(error).response()
