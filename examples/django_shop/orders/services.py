"""What the shop does, without a word of HTTP."""

from django.db import connection, transaction

import onejob
from orders.models import Order
from orders.tasks import invoice, thank


def place_order(customer: str, cents: int) -> tuple[Order, onejob.AsyncResult]:
    """Store an order, and submit the jobs that follow from it: all of it, or nothing."""
    with transaction.atomic():
        order = Order.objects.create(customer=customer, cents=cents)
        job = invoice.submit(order.id, session=connection)
        thank.enqueue(order.id)
        take_payment(order)
    return order, job


def take_payment(order: Order) -> None:
    """Refuse a customer without credit; the order and its jobs are gone then."""
    if order.customer == "broke":
        raise ValueError("the customer has no credit")
    order.paid = True
    order.save(update_fields=["paid"])
