"""The code of the guides that need no server runs unchanged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

GUIDES = Path(__file__).parents[2] / "docs" / "guides"


def test_the_duplicates_guide_runs(tmp_path: Path) -> None:
    """The code blocks of docs/guides/duplicates.md, as one program, run and their assertions hold."""
    blocks = re.findall(r"```python\n(.*?)```", (GUIDES / "duplicates.md").read_text(), re.DOTALL)
    program = "\n".join(blocks).replace("redis://localhost:6379/0", "memory://")
    ledger = f"\napp.conf.onejob_store = 'sqlite:///{tmp_path / 'ledger.db'}'\n"
    (tmp_path / "guide.py").write_text(program.replace("\n@app.task", f"{ledger}\n@app.task", 1))
    run = subprocess.run([sys.executable, "guide.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("it is queued already: ")
    assert "the idempotency key 'order-4711' belongs to another submission" in run.stdout
