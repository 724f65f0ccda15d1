"""The tests of the shop: `manage.py test`."""

from django.test import TestCase

from orders.models import Order
from orders.services import place_order
from orders.tasks import remind


class OrderTest(TestCase):
    """Each test is rolled back, and its jobs with it."""

    def test_no_order_without_credit(self) -> None:
        """A customer without credit has no order."""
        with self.assertRaises(ValueError):
            place_order("broke", 4200)
        self.assertFalse(Order.objects.exists())

    def test_reminders_of_a_customer_are_one_job(self) -> None:
        """A second reminder of the same customer is the job of the first."""
        first, second = remind.enqueue("ann", "pay"), remind.enqueue("ann", "pay, please")
        self.assertEqual(first.id, second.id)
        self.assertEqual(remind.get_result(first.id).args, ["ann", "pay"])
