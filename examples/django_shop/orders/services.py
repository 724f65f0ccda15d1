"""What the shop does, without a word of HTTP."""

from django.db import connection, transaction

import onejob
from orders.models import Order
from orders.tasks import invoice


def place_order(customer: str, cents: int) -> tuple[Order, onejob.AsyncResult]:
    """Store an order and submit the job for its invoice: both, or neither."""
    with transaction.atomic():
        order = Order.objects.create(customer=customer, cents=cents)
        job = invoice.submit(order.id, session=connection)
        take_payment(order)
    return order, job


def take_payment(order: Order) -> None:
    """Refuse a customer without credit; the order and its job are gone then."""
    if order.customer == "broke":
        raise ValueError("the customer has no credit")
    order.paid = True
    order.save(update_fields=["paid"])
