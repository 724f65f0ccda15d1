"""The publisher of a test: it sends to the broker in memory, and may have the jobs run at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onejob.celery.publisher import Publisher

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from onejob.jobs.model import Job


class IsolatedPublisher(Publisher):
    """A publisher that calls `after_publish` when messages were sent."""

    after_publish: Callable[[], object] = staticmethod(lambda: None)

    def publish_all(self, jobs: Sequence[Job], producer: Any = None) -> dict[str, Exception]:
        """Send the messages of jobs."""
        errors = super().publish_all(jobs, producer)
        self.after_publish()
        return errors
