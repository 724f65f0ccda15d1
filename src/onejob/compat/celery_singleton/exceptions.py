"""The exceptions of celery-singleton."""

from onejob.errors import OneJobError


class CelerySingletonException(OneJobError):  # noqa: N818 - celery-singleton's name
    """Base class of this module's errors."""


class DuplicateTaskError(CelerySingletonException):
    """A submission is a duplicate, and `raise_on_duplicate` is set. `task_id` is the id of the existing job."""

    def __init__(self, message: str, task_id: str) -> None:
        super().__init__(message, task_id)
        self.task_id = task_id

    def __str__(self) -> str:
        return str(self.args[0])
