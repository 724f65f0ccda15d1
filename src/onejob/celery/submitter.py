"""The submitter of a call. What a run submits for a submitter with own jobs belongs to that submitter, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onejob.celery.app_state import app_state_of
from onejob.errors import InvalidArgumentsError
from onejob.jobs.quota import NO_QUOTAS
from onejob.jobs.submitter import Submitter, current_submitter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery import Celery

HEADER = "onejob_submitter"
"""The header of a message with the name of its submitter, if that has own jobs."""


def submitter_of(app: Celery) -> Submitter:
    """Return the submitter of this context, or else that of the run in which this call is made, if it has own jobs.

    So the members of a chain or a chord, which workers submit, have the submitter of its first job. They consume no
    quota, since the canvas was admitted as a whole.
    """
    submitter, parent = current_submitter(), app.current_worker_task
    if submitter.name or parent is None or parent.request is None:
        return submitter
    name = (parent.request.headers or {}).get(HEADER)
    return Submitter(str(name), own_jobs=True, quotas=NO_QUOTAS) if name else submitter


def add_header(options: Mapping[str, Any], submitter: Submitter) -> Mapping[str, Any]:
    """Return publish options with the header of a submitter that has own jobs."""
    if submitter.scope is None:
        return options
    return {**options, "headers": {**(options.get("headers") or {}), HEADER: submitter.scope}}


def check_task_id(app: Celery, task_id: str | None) -> None:
    """Raise `InvalidArgumentsError` if the submitter has own jobs and `task_id` is the id of a job of another one."""
    if task_id is None or not (submitter := submitter_of(app)).own_jobs:
        return
    job = app_state_of(app).ledger.get_or_none(task_id)
    if job is not None and job.submitter != submitter.name:
        msg = f"task_id {task_id!r} cannot be used for a new job: omit it, or choose a random one"
        raise InvalidArgumentsError(msg)
