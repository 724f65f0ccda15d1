"""Test cases of unittest and Django isolate an app by a mixin."""

import unittest
from typing import Any

import pytest

import onejob
from onejob.testing import JobsMixin
from tests.testing import shop


def run_case(**methods: Any) -> unittest.TestResult:
    case: Any = type("Case", (JobsMixin, unittest.TestCase), {"celery_app": shop.app, **methods})
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    return result


def test_each_test_of_a_test_case_has_its_own_ledger() -> None:
    """`self.jobs` isolate the app in each test, with the settings of the class."""

    def body(self: Any) -> None:
        assert shop.report.delay("monday").outcome == "admitted"
        assert self.jobs.is_eager
        assert self.jobs.app_state.settings.lease == 44

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
        except onejob.errors.ConfigurationError as error:
            refusals.append(str(error))

    result = run_case(setUpClass=classmethod(set_up_class), test_it=lambda self: None)
    assert result.wasSuccessful()
    assert "outside of a test" in refusals[0]
    assert shop.app.__dict__.get("_onejob_state") is state


def test_what_a_test_case_does_wrong_is_explained() -> None:
    """A mixin that is not first, a `setUp` that calls no other one, and a fault that does not happen are explained."""
    result = run_case(
        setUp=lambda self: None,
        test_jobs=lambda self: self.jobs.run_all(),
        test_submit=lambda self: shop.double.delay(1),
    )
    assert ["super().setUp()" in text for _, text in result.errors] == [True, True]
    result = run_case(test_it=lambda self: self.jobs.lose_worker("step:none"))
    assert ["no run has reached this point" in text for _, text in result.errors + result.failures] == [True]
    with pytest.raises(onejob.errors.ConfigurationError, match=r"class Case\(JobsMixin, TestCase\)"):
        type("Case", (unittest.TestCase, JobsMixin), {})
