"""What happens behind an order."""

from django.db import connection, transaction

try:
    from django.tasks import task
except ImportError:  # Django 5.2, with the package django-tasks
    from django_tasks import task

from shop.celery import app

import onejob
from onejob.django import job_options
from orders.models import Order


@task
def thank(order_id: int) -> str:
    """Thank the customer."""
    return f"Thank you, {Order.objects.get(pk=order_id).customer}!"


@task
@job_options(unique_on=["customer"], autoretry_for=(ConnectionError,), max_retries=3)
def remind(customer: str, text: str) -> str:
    """Remind a customer. Reminders of one customer that are not sent yet are one job."""
    return f"{customer}: {text}"


@app.task(base=onejob.Task)
def invoice(order_id: int) -> None:
    """Write the invoice. It exists if and only if the job has completed."""
    job = onejob.current_job()
    with transaction.atomic():
        order = Order.objects.get(pk=order_id)
        order.invoice = f"R-{order_id:06}"
        order.save(update_fields=["invoice"])
        job.complete_in(connection, order.invoice)
