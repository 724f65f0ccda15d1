"""Every response conforms to the OpenAPI document."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

CASES = 400
SEED = 1


@pytest.mark.deep
def test_every_response_is_declared(tmp_path: Path) -> None:
    """Valid requests are accepted, invalid ones refused, and each response is declared: none is a 5XX."""
    from chaos.fuzz_api import fuzz, target_on  # here, since its import takes as long as a hundred tests

    target = target_on(f"sqlite:///{tmp_path / 'ledger.db'}", "unused")
    score = fuzz(target, CASES, SEED)
    target.ledger.close()
    assert score.wrong == [], f"seed {SEED}: {score}"
    assert score.cases == CASES
    assert {"200", "202", "404", "409", "422"} <= set(score.statuses), f"seed {SEED}: {score}"
