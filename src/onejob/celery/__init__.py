"""onejob on Celery: the task class, and the worker components that run its jobs."""

from onejob.celery.app_state import install as hide_settings
from onejob.celery.current_job import RunningJob, current_job
from onejob.celery.results.result_backend import install as install_result_backend
from onejob.celery.task import Task
from onejob.celery.transport.connection import install as install_transport
from onejob.celery.worker.receivers import connect as connect_receivers
from onejob.concurrency.worker_options import register_pool, register_processes

hide_settings()
install_result_backend()
install_transport()
register_pool()
register_processes()
connect_receivers()

__all__ = ["RunningJob", "Task", "current_job"]
