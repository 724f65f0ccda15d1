"""The tasks of the project: one of Celery's, and those of Django's framework."""

import sys

try:
    from django.tasks import TaskContext, task
except ImportError:  # Django 5.2
    from django_tasks import TaskContext, task

import onejob
from onejob.django import job_options
from shop.celery import app
from shop.models import Order


@app.task(base=onejob.Task)
def greet(name: str) -> str:
    return f"hello {name}"


@task
def count(*args: object, **kwargs: object) -> list[int]:
    return [len(args), len(kwargs)]


@task
async def count_async(*args: object, **kwargs: object) -> list[int]:
    return [len(args), len(kwargs)]


@task
def customer_of(order_id: int) -> str:
    return Order.objects.get(pk=order_id).customer


@task(priority=-100, queue_name="slow", takes_context=True)
def context_of(context: TaskContext, number: int) -> list[object]:
    result = context.task_result
    return [context.attempt, result.id, str(result.status), number, result.worker_ids]


@task
def fail(message: str) -> None:
    raise LookupError(message)


@task
def leave() -> None:
    sys.exit("no more")


@task
def odd() -> object:
    return object()


@task(takes_context=True)
@job_options(autoretry_for=(LookupError,), retry_backoff=False, default_retry_delay=0, max_retries=3)
def third_time(context: TaskContext) -> int:
    if context.attempt < 3:
        raise LookupError
    return context.attempt


@task
@job_options(unique_on=["order_id"], on_duplicate="attach")
def invoice(order_id: int, *, note: str = "") -> str:
    """Return a number. Equal ones are one job."""
    return f"R-{order_id}{note}"


@task
@job_options(unique=True, on_duplicate="raise")
def strict(number: int) -> int:
    return number
