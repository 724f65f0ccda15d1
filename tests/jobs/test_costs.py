"""Amounts of costs: which are exact, and how a job's costs are added and written."""

from decimal import Decimal, localcontext

import pytest

from onejob.errors import InvalidArgumentsError
from onejob.jobs.costs import (
    ATTEMPT_LIMIT,
    EARLIER,
    UNIT_LIMIT,
    JobCosts,
    amount_of,
    amount_text,
    checked_amounts,
    limbs_of,
)
from tests.cases import for_each

ACCEPTED: list[tuple[object, str]] = [
    ("0.031", "0.031"), ("1.500", "1.5"), ("-2", "-2"), ("+3", "3"), (".5", "0.5"), ("7.", "7"), (812, "812"),
    (Decimal("0.000000001"), "0.000000001"), (Decimal("1E+3"), "1000"), (Decimal("-0"), "0"),
    (Decimal("0E+99999"), "0"), ("1.0000000000", "1"), ("999999999999999.999999999", "999999999999999.999999999"),
]  # fmt: skip
REFUSED: list[tuple[object, str]] = [
    (0.1, "usd=0.1 is a float, which is not exact: write it as a text, usd='0.1', or as a Decimal"),
    (1e-7, "usd='0.0000001'"),
    *(
        (amount, f"usd={amount!r} is no amount: write a decimal number with at most 9 decimal places")
        for amount in (
            "", "x", "1e3", "1,5", "0x1", " 1", "1_0", "0.0000000001", 10**15, "1000000000000000",
            "-1000000000000000", "٣", Decimal("NaN"), Decimal(f"0.1{'0' * 70}1"), Decimal("sNaN"),
            Decimal("Infinity"), Decimal("1E-99999"), Decimal("1E+99999"), "²",
        )
    ),
    *(
        (amount, f"usd={amount!r} is no amount: write an int, a text such as '0.031', or a Decimal")
        for amount in (True, None, float("nan"), float("inf"), [1])
    ),
]  # fmt: skip


@for_each("amount, text", ACCEPTED)
def test_an_exact_amount_is_accepted(amount: object, text: str) -> None:
    """Integers, decimal texts and Decimals are amounts, whose texts have neither an exponent nor useless zeros."""
    assert amount_text(checked_amounts({"usd": amount})["usd"]) == text


@for_each("amount, message", REFUSED)
def test_any_other_amount_is_refused(amount: object, message: str) -> None:
    """A float, a text of another form, and a number out of range are refused, with the value and what to write."""
    with pytest.raises(InvalidArgumentsError) as caught:
        checked_amounts({"usd": amount})
    assert message in str(caught.value)


@for_each("unit", ["", "9usd", "us-d", "a" * 33, "ü", "a b"])
def test_a_unit_is_an_identifier(unit: str) -> None:
    """A unit has at most 32 letters, digits and underscores."""
    with pytest.raises(InvalidArgumentsError) as caught:
        checked_amounts({unit: 1})
    assert "is no unit of a cost" in str(caught.value)


def test_no_amount_is_refused() -> None:
    """A call without an amount says how to write one."""
    with pytest.raises(InvalidArgumentsError) as caught:
        checked_amounts({})
    assert 'job.cost(usd="0.031", tokens=812)' in str(caught.value)


def test_sums_are_exact_in_any_context() -> None:
    """Costs are added exactly, whatever precision the application has set, and read back from their text."""
    costs = JobCosts.of(None)
    with localcontext(prec=3):
        for _ in range(10):
            costs = JobCosts.of(costs.add(1, {"usd": Decimal("99999999999.123456789")}).to_json())
    assert costs.to_json() == '{"1":{"usd":"999999999991.23456789"}}'


def test_a_job_has_sixteen_units() -> None:
    """A job may have costs in as many units as the limit, and the error for one more names them."""
    costs = JobCosts.of(None).add(1, {f"u{number}": Decimal(1) for number in range(UNIT_LIMIT)})
    assert len(costs.total) == UNIT_LIMIT
    with pytest.raises(InvalidArgumentsError) as caught:
        costs.add(2, {"one_more": Decimal(1)})
    assert "one_more, u0, u1" in str(caught.value)


def test_the_newest_attempts_are_apart() -> None:
    """The costs of attempts beyond a limit are added up, and none is lost."""
    costs = JobCosts.of(None)
    for attempt in range(1, ATTEMPT_LIMIT + 6):
        costs = costs.add(attempt, {"usd": Decimal(1)})
    assert [*costs.attempts] == [EARLIER, *range(6, ATTEMPT_LIMIT + 6)]
    assert costs.attempts[EARLIER] == {"usd": 5}
    assert costs.total == {"usd": ATTEMPT_LIMIT + 5}


@for_each("amount", ["0", "0.031", "-0.031", "812", "-999999999999999.999999999", "123456789012345.678901234"])
def test_limbs_add_up(amount: str) -> None:
    """An amount is the sum of its limbs, and so is a multiple of it the sum of multiplied limbs."""
    limbs = limbs_of(Decimal(amount))
    assert all(abs(limb) < 10**8 for limb in limbs)
    assert amount_of((position, limb * 10**6) for position, limb in enumerate(limbs)) == Decimal(amount) * 10**6
