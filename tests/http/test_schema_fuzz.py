"""Every response conforms to the OpenAPI document."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from chaos.fuzz_api import fuzz, target_on

if TYPE_CHECKING:
    from pathlib import Path

SEED = 1


@pytest.mark.parametrize(
    ("cases", "expected"),
    [
        (40, {"202", "404", "422"}),
        pytest.param(400, {"200", "202", "404", "409", "422"}, marks=pytest.mark.deep),
    ],
)
def test_every_response_is_declared(tmp_path: Path, cases: int, expected: set[str]) -> None:
    """Valid requests are accepted, invalid ones refused, and each response is declared: none is a 5XX."""
    target = target_on(f"sqlite:///{tmp_path / 'ledger.db'}", "unused")
    score = fuzz(target, cases, SEED)
    target.ledger.close()
    assert score.wrong == [], f"seed {SEED}: {score}"
    assert score.cases == cases
    assert expected <= set(score.statuses), f"seed {SEED}: {score}"
