"""Who makes a call. What a run submits for a submitter with own jobs belongs to that submitter, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

from onejob.celery.app_state import app_state_of
from onejob.celery.message import SUBMITTER_HEADER
from onejob.errors import InvalidArgumentsError
from onejob.jobs.quota import NO_QUOTAS
from onejob.jobs.submitter import Submitter, current_submitter

if TYPE_CHECKING:
    from celery import Celery


class Caller(NamedTuple):
    """The submitter of a call, and the task in whose run it is made; None: in no run."""

    submitter: Submitter
    parent: Any

    @classmethod
    def of(cls, app: Celery) -> Self:
        """Return the caller in this context; without a submitter, that of the run, if it has own jobs.

        So the members of a chain or a chord, which workers submit, have the submitter of its first job. They consume no
        quota, since the canvas was admitted as a whole.
        """
        submitter, parent = current_submitter(), app.current_worker_task
        if parent is None or submitter.name:
            return cls(submitter, parent)
        name = (parent.request.headers or {}).get(SUBMITTER_HEADER)
        return cls(Submitter(str(name), own_jobs=True, quotas=NO_QUOTAS) if name else submitter, parent)


def check_task_id(app: Celery, task_id: str | None, submitter: Submitter) -> None:
    """Raise `InvalidArgumentsError` if the submitter has own jobs and `task_id` is the id of a job of another one."""
    if task_id is None or not submitter.own_jobs:
        return
    job = app_state_of(app).ledger.get_or_none(task_id)
    if job is not None and job.submitter != submitter.name:
        msg = f"task_id {task_id!r} cannot be used for a new job: omit it, or choose a random one"
        raise InvalidArgumentsError(msg)
