"""onejob on Celery: the task class, and the worker components that run its jobs."""

from onejob.celery.current_job import RunningJob, current_job
from onejob.celery.task import Task

__all__ = ["RunningJob", "Task", "current_job"]
