"""Pages that are generated from the code agree with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from website.generated import GENERATED

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["lifecycle", "on-duplicate", "doctor"])
def test_a_page_is_its_table(name: str) -> None:
    """A page that is generated from the code is what its script prints."""
    printed = subprocess.run(
        [sys.executable, ROOT / "scripts" / f"{name}-page"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    assert (ROOT / "docs" / f"{name}.md").read_text() == printed


@pytest.mark.parametrize("place", sorted(GENERATED))
def test_a_file_is_what_the_code_makes(place: str) -> None:
    """A page or a diagram that is made from the code is current: `python -m website generate` writes it."""
    assert (ROOT / "docs" / place).read_text(encoding="utf-8") == GENERATED[place]()
