"""The files of docs/ that are made from the code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from website import diagrams, doctor_page, lifecycle_page, on_duplicate_page, tables
from website.navigation import DOCS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

GENERATED: Mapping[str, Callable[[], str]] = {
    "operations/doctor.md": doctor_page.page,
    "images/idea.svg": diagrams.idea,
    "images/lifecycle.svg": diagrams.lifecycle,
    "images/submission.svg": diagrams.submission,
    "concepts/lifecycle.md": lifecycle_page.page,
    "concepts/on-duplicate.md": on_duplicate_page.page,
    "reference/cli.md": tables.cli,
    "reference/errors.md": tables.errors,
    "reference/schema.md": tables.schema,
    "reference/works-with.md": tables.works_with,
}
"""By place in docs/, what makes the file."""


def write() -> None:
    """Write each of the files."""
    for place, make in GENERATED.items():
        (DOCS / place).write_text(make(), encoding="utf-8")
