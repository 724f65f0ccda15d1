"""The navigation of the site: the sections and tables of docs/README.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
INDEX = DOCS / "README.md"
FROM_ROOT = {
    "README.md": "index.md",
    "CHANGELOG.md": "changes.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
}
"""The pages outside docs/, and their names on the site."""
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_ROW = re.compile(r"^\| \[([^\]]+)\]\(([^)#]+)\) \| (.*) \|$", re.MULTILINE)
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)


class Entry(NamedTuple):
    """A page of the navigation: its title, its place on the site, and what the index says of it."""

    title: str
    place: str
    content: str = ""


Navigation = dict[str, list[Entry]]
"""The pages of each section."""


def navigation(index: str) -> Navigation:
    """Return the sections of the index that have a table of pages, with the pages of each."""
    _, *parts = _SECTION.split(index)
    sections = {name: _pages(text) for name, text in zip(parts[::2], parts[1::2], strict=True)}
    return {name: pages for name, pages in sections.items() if pages}


def _pages(text: str) -> list[Entry]:
    """Return the pages that the rows of a table link to; a folder stands for all of its pages."""
    pages = []
    for title, target, content in _ROW.findall(text):
        place = (DOCS / target).resolve()
        if place.is_dir():
            pages += [Entry(title_of(page), site_name(page)) for page in sorted(place.glob("*.md"))]
        else:
            pages.append(Entry(title, site_name(place), content))
    return pages


def site_name(page: Path) -> str:
    """Return the place on the site of a page of the repository. Raises `KeyError` for one that is not on the site."""
    return str(page.relative_to(DOCS)) if page.is_relative_to(DOCS) else FROM_ROOT[str(page.relative_to(ROOT))]


def title_of(page: Path) -> str:
    """Return the title of a page without its code marks."""
    found = _TITLE.search(page.read_text(encoding="utf-8"))
    if found is None:
        msg = f"{page} has no title: begin it with a line '# Title'"
        raise ValueError(msg)
    return found[1].replace("`", "")


def outside(sections: Navigation) -> list[str]:
    """Return the pages of docs/ that are not in the navigation."""
    inside = {page.place for pages in sections.values() for page in pages}
    return sorted({site_name(page) for page in DOCS.rglob("*.md") if page != INDEX} - inside)
