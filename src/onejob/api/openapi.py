"""Responses in the OpenAPI document besides the default one of a route. A fuzzer validates all responses against it."""

from __future__ import annotations

from typing import Any, TypeAlias

from onejob.api.problems import MEDIA_TYPE, SCHEMA
from onejob.api.response_models import JobView, SubmitResponse, ValidatedSubmission

Responses: TypeAlias = dict[int | str, dict[str, Any]]
PROBLEM_RESPONSES: Responses = {
    status: {"description": "A problem (RFC 9457)", "content": {MEDIA_TYPE: {"schema": SCHEMA}}}
    for status in ("4XX", "5XX")
}
SUBMIT_RESPONSES: Responses = {
    200: {"model": SubmitResponse | ValidatedSubmission, "description": "An existing job answers, or it was a check"},
    202: {"description": "A new job was created"},
}
NOT_MODIFIED: Responses = {304: {"description": "The job matches If-None-Match"}}
EVENT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "event": {"enum": ["state", "progress"]},
        "data": {"type": "string", "contentMediaType": "application/json", "description": "The whole job."},
        "id": {"type": "string"},
    },
    "required": ["event", "data", "id"],
}
STREAM_RESPONSES: Responses = {
    200: {"description": "The events", "content": {"text/event-stream": {"schema": EVENT}}},
    204: {"description": "The job has ended, and Last-Event-ID is its last event"},
}
CANCEL_RESPONSES: Responses = {
    200: {"description": "The job is canceled"},
    202: {"model": JobView, "description": "Cancellation of the run was requested"},
}
REQUIRED_BODY = {"requestBody": {"required": True}}
"""A JSON body is required even if it is empty, since an HTML form of another site cannot send one."""
