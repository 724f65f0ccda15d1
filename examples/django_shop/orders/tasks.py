"""What happens behind an order."""

from django.db import connection, transaction
from shop.celery import app

import onejob
from orders.models import Order


@app.task(base=onejob.Task)
def invoice(order_id: int) -> None:
    """Write the invoice. It exists if and only if the job has completed."""
    job = onejob.current_job()
    with transaction.atomic():
        order = Order.objects.get(pk=order_id)
        order.invoice = f"R-{order_id:06}"
        order.save(update_fields=["invoice"])
        job.complete_in(connection, order.invoice)
