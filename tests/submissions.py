"""Submissions of tasks, for tests of what is below the calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onejob.celery.app_state import app_state_of
from onejob.celery.submission.call import Call, prepare

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onejob.jobs.model import JobRow, Submission


def submission_of(
    task: Any, kwargs: Mapping[str, Any] | None = None, *, args: Sequence[Any] = (), source: str = "test",
    key: str | None = None, task_id: str | None = None, **options: Any,
) -> Submission:  # fmt: skip
    """Return the submission of a call; `options` are those of `apply_async`."""
    call = Call(task, tuple(args), kwargs or {}, options, source, task_id=task_id, key=key)
    return prepare(app_state_of(task.app), call).submission


def row_of(result: Any) -> JobRow:
    """Return the row of the job that answers a submission, which has more than the `job` of its result."""
    return app_state_of(result.app).ledger.get(result.job.id)
