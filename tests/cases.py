"""The cases of a test: many in one test, each of which is named if it fails, and those of the deep tier."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from _pytest.mark.structures import ParameterSet

Law = TypeVar("Law", bound="Callable[..., None]")


def for_each(names: str, cases: Iterable[Any]) -> Callable[[Law], Law]:
    """Run a test's body with each case, as a subtest. Unlike `parametrize` it shares the test's fixtures among them."""
    words = names.replace(",", " ").split()
    rows = [dict(zip(words, case if len(words) > 1 else (case,), strict=True)) for case in cases]

    def over_all(law: Law) -> Law:
        @functools.wraps(law)
        def test(subtests: pytest.Subtests, **fixtures: Any) -> None:
            assert rows, "no case"
            for row in rows:
                with subtests.test(**row):
                    law(**fixtures, **row)

        signature = inspect.signature(law)
        own = [value for name, value in signature.parameters.items() if name not in words]
        asked = inspect.Parameter("subtests", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        cast("Any", test).__signature__ = signature.replace(parameters=[asked, *own])  # which pytest reads
        return cast("Law", test)

    return over_all


def further(*values: object) -> list[ParameterSet]:
    """Return the parameters that a test has in the deep tier only: an earlier one is the witness of its law."""
    return [pytest.param(value, marks=pytest.mark.deep) for value in values]
