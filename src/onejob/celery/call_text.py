"""The call of a job as text to copy: as Python, and as a request of the HTTP API."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from onejob.celery.message import decode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onejob.jobs.model import Job

IMPORTS = {
    "datetime.": "import datetime",
    "Decimal(": "from decimal import Decimal",
    "UUID(": "from uuid import UUID",
}
"""The imports that the values of a message need in Python, by what they begin with."""


def python_call(job: Job) -> str:
    """Return Python code that submits a call with the job's arguments, after the imports that it needs, if any.

    `app` is the Celery app.
    """
    message = decode(job.payload)
    call = f"app.tasks[{message.task!r}].apply_async(args={message.args!r}, kwargs={message.kwargs!r})"
    imports = [line for begin, line in IMPORTS.items() if begin in call]
    return "\n".join([*imports, call])


def curl_call(job: Job, base_url: str, *, parameters: Sequence[str] = ()) -> str | None:
    """Return a shell command that submits a call with the job's arguments over HTTP, with the API key in `$KEY`.

    `parameters`: the names of the task's parameters, by which positional arguments are passed. None if they do not
    suffice, or if JSON has no such values: then the API cannot submit this call.
    """
    message = decode(job.payload)
    if len(message.args) > len(parameters):
        return None
    kwargs = dict(zip(parameters, message.args, strict=False)) | message.kwargs
    try:
        body = json.dumps({"task": message.task, "kwargs": kwargs})
    except TypeError:
        return None
    url = shlex.quote(f"{base_url.rstrip('/')}/jobs")
    headers = """-H "authorization: Bearer $KEY" -H 'content-type: application/json'"""
    return f"curl -s {headers} {url} -d {shlex.quote(body)}"
