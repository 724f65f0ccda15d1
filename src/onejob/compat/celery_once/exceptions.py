"""The exception of celery-once."""

from __future__ import annotations

from onejob.errors import OneJobError


class AlreadyQueued(OneJobError):  # noqa: N818 - celery-once's name
    """A submission is a duplicate, and is not `graceful`."""

    def __init__(self, countdown: float) -> None:
        super().__init__(countdown)
        self.countdown = countdown
        """Seconds until the lock would expire in celery-once: the rest of `timeout`. Here the end of the job counts."""
        self.message = f"Expires in {countdown} seconds"

    def __str__(self) -> str:
        return self.message
