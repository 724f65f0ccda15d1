"""In test cases of Django, jobs of Celery's tasks and of Django's are a part of the transaction of the test."""

from pathlib import Path

from tests.django.project import Project, sqlite

CASE = """
import logging
import threading
import unittest
import onejob
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase
from django.test.utils import get_runner
from django.conf import settings
from onejob.django.framework import TaskResultDoesNotExist
from onejob.testing import JobsMixin, run_job
from shop.celery import app
from shop.models import Order
from shop.tasks import context_of, customer_of, invoice


class Tests:
    def test_an_enqueue_runs(self):
        order = Order.objects.create(customer="ann")
        with transaction.atomic():
            result = customer_of.enqueue(order.id)
            self.assertEqual(customer_of.get_result(result.id), result)
        self.assertEqual(customer_of.get_result(result.id), result)
        self.assertEqual(self.jobs.run_all(), 1)
        result.refresh()
        self.assertEqual(result.return_value, "ann")

    def test_a_block_that_is_rolled_back_leaves_nothing(self):
        with self.assertRaises(KeyError), transaction.atomic():
            self.lost = invoice.enqueue(1)
            raise KeyError
        with self.assertRaises(TaskResultDoesNotExist):
            invoice.get_result(self.lost.id)
        self.jobs.assert_not_submitted(invoice)
        self.assertEqual(self.jobs.run_all(), 0)
        result = invoice.enqueue(1)
        self.assertNotEqual(result.id, self.lost.id)
        self.jobs.run_all()
        self.assertEqual(invoice.get_result(result.id).return_value, "R-1")

    def test_equal_enqueues_are_one_job(self):
        first, second = invoice.enqueue(1), invoice.enqueue(1, note="again")
        self.assertEqual(first.id, second.id)
        self.assertEqual(invoice.get_result(first.id).args, [1])

    def test_a_task_is_named_by_itself_or_its_path(self):
        for task in (invoice, "shop.tasks.invoice"):
            self.assertEqual(self.jobs.run_job(task, 1).result, "R-1")
            self.assertEqual(run_job(task, 2).result, "R-2")
        self.assertEqual(self.jobs.run_job(context_of, 5).result[3], 5)
        invoice.enqueue(1)
        self.jobs.assert_submitted(invoice, order_id=1)
        self.assertEqual(self.jobs.submitted("shop.tasks.invoice"), self.jobs.submitted(invoice))
        self.jobs.lose_worker("complete", invoice)
        self.jobs.recover()
        with self.assertRaisesRegex(Exception, "no task 'shop.tasks.invoices'"):
            self.jobs.submitted("shop.tasks.invoices")


class InTestCase(Tests, JobsMixin, TestCase):
    pass


class InTransactionTestCase(Tests, JobsMixin, TransactionTestCase):
    def test_callbacks_after_the_commit_find_its_jobs(self):
        with transaction.atomic():
            first = invoice.enqueue(1)
            transaction.on_commit(lambda: charge.delay(2))
            transaction.on_commit(lambda: states.append(self.jobs.get(second.id).state))
            states, second = [], invoice.enqueue(2)
        self.assertEqual(states, ["queued"])
        self.assertEqual(self.jobs.run_all(), 3)
        self.assertEqual([invoice.get_result(each.id).return_value for each in (first, second)], ["R-1", "R-2"])

    def test_a_transaction_of_another_thread_stays_open(self):
        submitted, looked = threading.Event(), threading.Event()

        def serve():
            with transaction.atomic():
                bare.submit(3, session=connection)
                submitted.set()
                looked.wait(10)
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        submitted.wait(10)
        self.jobs.assert_submitted(bare, 3)
        looked.set()
        thread.join()
        self.assertEqual(self.jobs.run_all(), 1)


@app.task(shared=False, base=onejob.Task)
def charge(order, fail=False):
    with transaction.atomic():
        Order.objects.create(customer=str(order))
        onejob.current_job().complete_in(connection, {"order": order})
        if fail:
            raise ValueError(order)


@app.task(shared=False, base=onejob.Task)
def bare(order):
    return order


@app.task(shared=False, base=onejob.Task)
def charge_bare(order):
    with transaction.atomic():
        Order.objects.create(customer=f"{order} {onejob.current_job().attempt}")
        try:
            onejob.current_job().progress(1, 1, "charged")
        except onejob.errors.LeaseLost:
            pass


charges, erase = Order.objects.count, Order.objects.all().delete


class Charges(JobsMixin, TestCase):
    def test_a_job_completes_with_its_effects_within_the_transaction_of_the_test(self):
        result = charge.delay(7)
        self.jobs.run_all()
        self.assertEqual(result.get(timeout=0), {"order": 7})
        self.assertEqual(charges(), 1)

    def test_a_rollback_takes_back_effects_and_completion(self):
        run = self.jobs.run_job(charge, 7, fail=True)
        self.assertEqual(run.state, "failed")
        self.assertEqual(charges(), 0)

    def test_no_crash_repeats_an_effect_that_completes_its_job(self):
        report = self.jobs.crash_matrix(charge, 7, effects=charges, setup=erase, processes=False)
        self.assertIn("frozen at before_complete", str(report))

    def test_a_crash_that_repeats_an_effect_is_found(self):
        with self.assertRaisesRegex(AssertionError, "frozen at after_progress:1 .*effects: 2, without a fault 1"):
            self.jobs.crash_matrix(charge_bare, 7, effects=charges, setup=erase, processes=False)

    def test_a_submission_ends_as_its_block(self):
        with self.assertRaises(KeyError), transaction.atomic():
            charge.submit(1, session=connection)
            raise KeyError
        self.jobs.assert_not_submitted(charge)
        with transaction.atomic():
            charge.submit(1, session=connection)
        self.jobs.assert_submitted(charge, 1)
        self.jobs.run_all()
        self.assertEqual(charges(), 1)

    def test_callbacks_after_the_commit_submit(self):
        with self.captureOnCommitCallbacks(execute=True):
            charge.delay_on_commit(5)
        self.jobs.assert_submitted(charge, 5)


class Eager:
    jobs_settings = {"eager": True}

    def test_a_job_runs_within_its_submission_or_at_the_end_of_its_block(self):
        charge.submit(1, session=connection)
        self.assertEqual(charges(), 1)
        with transaction.atomic():
            result = invoice.enqueue(2)
        self.assertEqual(invoice.get_result(result.id).return_value, "R-2")
        with transaction.atomic(), transaction.atomic():
            charge.submit(3, session=connection)
        self.assertEqual(charges(), 2)


class EagerInTestCase(Eager, JobsMixin, TestCase):
    pass


class EagerInTransactionTestCase(Eager, JobsMixin, TransactionTestCase):
    pass


logging.disable()
runner = get_runner(settings)(verbosity=0, interactive=False)
old = runner.setup_databases()
load = unittest.defaultTestLoader.loadTestsFromTestCase
cases = (InTestCase, InTransactionTestCase, Charges, EagerInTestCase, EagerInTransactionTestCase)
suite = unittest.TestSuite(map(load, cases))
ran = unittest.TextTestRunner(verbosity=2, stream=sys.stdout).run(suite)
runner.teardown_databases(old)
print(json.dumps([ran.testsRun, [text for _, text in ran.failures + ran.errors]]))
"""


def test_jobs_are_a_part_of_the_transaction_of_a_test(tmp_path: Path) -> None:
    """An isolated app submits, attaches, runs, completes and rolls back jobs as it does without the isolation."""
    project = Project({
        "DATABASES": {"default": sqlite(tmp_path / "shop.db")}, "CELERY_BROKER_URL": "redis://broker.invalid:1/0"
    })  # fmt: skip
    project.manage("migrate", "-v", "0", "--run-syncdb")
    assert project.script(CASE) == [18, []]
