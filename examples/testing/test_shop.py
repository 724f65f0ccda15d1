"""Tests of the shop: no broker, no server, no containers. Run `pytest` in this folder."""

import sqlite3
from contextlib import closing

import pytest
import shop

from onejob.testing import faults


class Payments:
    """A payment provider in a file, so that its payments outlive a killed process."""

    def __init__(self, path):
        self.path = path
        self.reset()

    def reset(self):
        self._execute("drop table if exists payments")
        self._execute("create table payments (key text unique, order_id integer)")

    def charge(self, order_id, key):
        self._execute("insert or ignore into payments values (?, ?)", key, order_id)
        return f"payment-{order_id}"

    def count(self):
        return len(self._execute("select * from payments"))

    def _execute(self, sql, *values):
        with closing(sqlite3.connect(self.path)) as connection, connection:
            return connection.execute(sql, values).fetchall()


@pytest.fixture
def payments(tmp_path, monkeypatch):
    payments = Payments(tmp_path / "payments.db")
    monkeypatch.setattr(shop, "provider", payments)
    return payments


def test_a_double_click_charges_once(jobs, payments):
    first, again = shop.charge.delay(42), shop.charge.delay(42, note="clicked twice")
    assert (first.outcome, again.outcome) == ("admitted", "attached")
    jobs.run_all()
    assert again.get(timeout=0)["payment"] == "payment-42"
    assert payments.count() == 1
    jobs.assert_submitted(shop.receipt, 42, "payment-42")


def test_a_payment_is_not_repeated_by_a_second_attempt(jobs, payments):
    run = jobs.run_job(shop.charge, 42, steps={"charge": "payment-from-before"})
    assert run.result["payment"] == "payment-from-before"
    assert payments.count() == 0


def test_a_worker_that_dies_delays_the_payment(jobs, payments):
    result = shop.charge.delay(42)
    jobs.lose_worker(at="step:charge")
    jobs.run_all()
    assert result.state == "STARTED"
    jobs.travel(seconds=31)
    jobs.run_all()
    assert result.get(timeout=0)["payment"] == "payment-42"
    assert payments.count() == 1


def test_after_an_hour_an_order_can_be_charged_again(jobs, payments):
    with jobs.eager():
        shop.charge.delay(42)
        assert shop.charge.delay(42).outcome == "replayed"
        jobs.travel(hours=1, seconds=1)
        assert shop.charge.delay(42).outcome == "admitted"


def test_no_crash_charges_twice(jobs, payments):
    jobs.crash_matrix(shop.charge, 42, effects=payments.count, setup=payments.reset)


@pytest.mark.parametrize("fault", faults(steps=["charge"], progress=2))
def test_each_crash_leaves_one_receipt(fault, jobs, payments):
    assert jobs.survive(fault, shop.charge, 42).state == "completed"
    assert payments.count() == 1
