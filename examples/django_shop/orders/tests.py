"""The tests of the shop: `manage.py test`."""

from django.test import TestCase, TransactionTestCase

from onejob.testing import JobsMixin
from orders.models import Order
from orders.services import place_order
from orders.tasks import invoice, remind


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


class InvoiceTest(JobsMixin, TransactionTestCase):
    """Crashes are tested on real transactions."""

    def test_no_crash_harms_an_invoice(self) -> None:
        """Wherever a worker is lost, killed or frozen, the job completes with its invoice."""

        def reset() -> None:
            Order.objects.update_or_create(pk=1, defaults={"customer": "ann", "cents": 4200, "invoice": ""})

        self.jobs.crash_matrix(invoice, 1, effects=lambda: Order.objects.get(pk=1).invoice, setup=reset)
