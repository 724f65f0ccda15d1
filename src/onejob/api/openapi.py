"""What the OpenAPI document says of answers beside the usual one of a route. A fuzzer holds all answers against it."""

from __future__ import annotations

from typing import Any, TypeAlias

from onejob.api.problems import MEDIA_TYPE, SCHEMA
from onejob.api.response_models import Answer, Checked, JobView

Declared: TypeAlias = dict[int | str, dict[str, Any]]
PROBLEMS: Declared = {
    status: {"description": "A problem, by RFC 9457", "content": {MEDIA_TYPE: {"schema": SCHEMA}}}
    for status in ("4XX", "5XX")
}
ASKED: Declared = {
    200: {"model": Answer | Checked, "description": "A job that is there answers; or it was a check"},
    202: {"description": "There is a new job"},
}
UNCHANGED: Declared = {304: {"description": "The job is what If-None-Match says"}}
EVENT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "event": {"enum": ["state", "progress"]},
        "data": {"type": "string", "contentMediaType": "application/json", "description": "The whole job."},
        "id": {"type": "string"},
    },
    "required": ["event", "data", "id"],
}
STREAM: Declared = {
    200: {"description": "The events", "content": {"text/event-stream": {"schema": EVENT}}},
    204: {"description": "The job has ended, and the caller has its last event"},
}
STOPPING: Declared = {
    200: {"description": "The job is canceled"},
    202: {"model": JobView, "description": "The run was asked to stop"},
}
BODY = {"requestBody": {"required": True}}
"""A body that has a default must be sent all the same, as what it is: no form of a foreign page can do that."""
