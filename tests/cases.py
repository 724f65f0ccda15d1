"""One test over many cases that need no fixtures of their own: every case that fails is named, and the others go on."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pytest

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
