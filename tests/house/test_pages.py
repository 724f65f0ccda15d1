"""Pages that are made from the code agree with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_lifecycle_page_is_the_table() -> None:
    """docs/lifecycle.md is what scripts/lifecycle-page prints."""
    printed = subprocess.run(
        [sys.executable, ROOT / "scripts" / "lifecycle-page"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    assert (ROOT / "docs" / "lifecycle.md").read_text() == printed
