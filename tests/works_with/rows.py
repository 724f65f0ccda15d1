"""The rows of docs/reference/works-with.md: each is stated, and tested, by a module of this folder."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """What is known of packages beside onejob, as the page says it; each text is Markdown in one line."""

    packages: tuple[str, ...]
    """The packages of the row, each as "name==version"."""
    ran: str
    """What was run."""
    holds: str
    do: str
    """What a user has to do; empty: nothing."""
    fails: str
    """What does not work; empty: nothing was found."""
    feature: str = ""
    """What of the packages was run, if not the whole."""
    needs: tuple[str, ...] = ()
    """What the packages need that the environment of the tests lacks, or has in another version; pinned, too."""
    pythons: tuple[str, ...] = ()
    """The Pythons that the packages need, such as "3.13"; empty: all that we support."""

    @property
    def pins(self) -> tuple[str, ...]:
        """All that is installed for the row."""
        return self.packages + self.needs


def all_rows() -> list[Row]:
    """Return the row of each module, by the name of the package."""
    names = [path.stem for path in Path(__file__).parent.glob("test_*.py")]
    rows: list[Row] = [import_module(f"{__package__}.{name}").ROW for name in names]
    return sorted(rows, key=lambda row: (row.packages, row.feature))
