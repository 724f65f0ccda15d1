"""Every response conforms to the OpenAPI document."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.fuzz_api import fuzz, target_on

if TYPE_CHECKING:
    from pathlib import Path

CASES = 400
SEED = 1


def test_every_answer_is_declared(tmp_path: Path) -> None:
    """What fits the document is taken, what does not is refused, and each answer is as declared: none is a 5xx."""
    target = target_on(f"sqlite:///{tmp_path / 'ledger.db'}", "unused")
    score = fuzz(target, CASES, SEED)
    target.ledger.close()
    assert score.wrong == [], f"seed {SEED}: {score}"
    assert score.cases == CASES
    assert {"200", "202", "404", "409", "422"} <= set(score.statuses), f"seed {SEED}: {score}"
