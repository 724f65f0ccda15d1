"""Test cases of unittest and Django isolate an app by a mixin."""

from __future__ import annotations

import subprocess
import sys
import unittest
from typing import TYPE_CHECKING, Any

import pytest

import onejob
from onejob.testing import JobsMixin
from tests.testing import shop

if TYPE_CHECKING:
    from pathlib import Path

DJANGO = """
import unittest

import celery
import django
from django.conf import settings

settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    INSTALLED_APPS=["django.contrib.contenttypes"],
)
django.setup()

from django.contrib.contenttypes.models import ContentType
from django.db import connection, transaction
from django.test import TestCase
from django.test.runner import DiscoverRunner

import onejob
from onejob.testing import JobsMixin

app = celery.Celery("django_shop", broker="redis://broker.invalid:1/0")


@app.task(shared=False, base=onejob.Task)
def charge(order, fail=False):
    with transaction.atomic():
        ContentType.objects.create(app_label="charges", model=str(order))
        onejob.current_job().complete_in(connection, {"order": order})
        if fail:
            raise ValueError(order)


@app.task(shared=False, base=onejob.Task)
def charge_bare(order):
    with transaction.atomic():
        ContentType.objects.create(app_label="charges", model=f"{order} {onejob.current_job().attempt}")
        try:
            onejob.current_job().progress("charged")
        except onejob.LeaseLost:
            pass


def charges():
    return ContentType.objects.filter(app_label="charges").count()


class ChargeTests(JobsMixin, TestCase):
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
        erase = ContentType.objects.filter(app_label="charges").delete
        report = self.jobs.crash_matrix(charge, 7, effects=charges, setup=erase, processes=False)
        self.assertIn("frozen at before_complete", str(report))

    def test_a_crash_that_repeats_an_effect_is_found(self):
        erase = ContentType.objects.filter(app_label="charges").delete
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


if __name__ == "__main__":
    runner = DiscoverRunner(verbosity=2)
    runner.setup_test_environment()
    databases = runner.setup_databases()
    result = unittest.TextTestRunner(verbosity=2).run(unittest.defaultTestLoader.loadTestsFromTestCase(ChargeTests))
    runner.teardown_databases(databases)
    raise SystemExit(not result.wasSuccessful())
"""


def run_case(**methods: Any) -> unittest.TestResult:
    """Run a test case of a user, and return its result."""
    case: Any = type("Case", (JobsMixin, unittest.TestCase), {"celery_app": shop.app, **methods})
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    return result


def test_each_test_of_a_test_case_has_its_own_ledger() -> None:
    """`self.jobs` isolate the app in each test, with the settings of the class."""

    def body(self: Any) -> None:
        assert shop.report.delay("monday").outcome == "admitted"
        assert self.jobs.is_eager
        assert self.jobs.state.settings.lease == 44

    result = run_case(test_one=body, test_two=body, jobs_settings={"eager": True, "lease": 44})
    assert (result.testsRun, result.errors, result.failures) == (2, [], [])


def test_outside_of_a_test_the_ledger_is_refused() -> None:
    """A submission in `setUpClass` is refused, and after the class the app is as it was before."""
    state = shop.app.__dict__.get("_onejob_state")
    refusals = []

    def set_up_class(cls: Any) -> None:
        super(cls, cls).setUpClass()
        try:
            shop.double.delay(1)
        except onejob.ConfigurationError as error:
            refusals.append(str(error))

    result = run_case(setUpClass=classmethod(set_up_class), test_it=lambda self: None)
    assert result.wasSuccessful()
    assert "outside of a test" in refusals[0]
    assert shop.app.__dict__.get("_onejob_state") is state


def test_the_mixin_stands_first() -> None:
    """A class whose test case would skip the mixin is refused at its definition, with the line to write."""
    with pytest.raises(onejob.ConfigurationError, match=r"class Case\(JobsMixin, TestCase\)"):
        type("Case", (unittest.TestCase, JobsMixin), {})


def test_what_a_test_case_does_wrong_is_explained() -> None:
    """A `setUp` that does not call the mixin's is named where jobs are used or submitted; a fault must happen."""
    result = run_case(
        setUp=lambda self: None,
        test_jobs=lambda self: self.jobs.run_all(),
        test_submit=lambda self: shop.double.delay(1),
    )
    assert ["super().setUp()" in text for _, text in result.errors] == [True, True]
    result = run_case(test_it=lambda self: self.jobs.lose_worker("step:none"))
    assert ["no run has reached this point" in text for _, text in result.errors + result.failures] == [True]


def test_a_test_case_of_django(tmp_path: Path) -> None:
    """In the transaction of Django's TestCase, jobs are submitted, run, completed and rolled back as in production."""
    script = tmp_path / "django_tests.py"
    script.write_text(DJANGO, encoding="utf-8")
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "Ran 6 tests" in ran.stderr
