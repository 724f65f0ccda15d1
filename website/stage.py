"""The pages as the generator reads them: docs/, with links to other files leading to the repository's host."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from website.navigation import DOCS, FROM_ROOT, INDEX, ROOT, Entry, navigation, outside, site_name

if TYPE_CHECKING:
    from website.navigation import Navigation

HERE = Path(__file__).parent
HOST = "https://github.com/onejob/onejob"
HOME = "---\ntitle: Equal jobs run once, on Celery\nhide: [navigation]\n---\n\n"
"""What the site adds to the README, its home page: a title, and no list of pages beside it."""
_OWN = re.compile(
    rf"{re.escape(HOST)}(?:/(?:blob|tree)/main/|$)|https://raw\.githubusercontent\.com/onejob/onejob/main/"
)
_LINK = re.compile(r"(\]\(|(?:src|srcset|href)=\")([^)\s\"]+)(?=[)\"])")
_CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)


def stage(folder: Path) -> None:
    """Write the pages and the configuration into a folder. Raises `ValueError` for a page outside the navigation."""
    sections = navigation(INDEX.read_text(encoding="utf-8"))
    if missing := outside(sections):
        msg = f"not in the navigation: {', '.join(missing)}; link each from a table of docs/README.md"
        raise ValueError(msg)
    pages = folder / "pages"
    sources = [path for path in DOCS.rglob("*") if path.is_file() and path != INDEX]
    written = {_copy(source, pages) for source in [*sources, *(ROOT / name for name in FROM_ROOT)]}
    written.add(_put(pages / "assets" / "site.css", (HERE / "site.css").read_bytes()))
    for gone in {path for path in pages.rglob("*") if path.is_file()} - written:
        gone.unlink()
    for file in (HERE / "theme").rglob("*.html"):
        _put(folder / file.relative_to(HERE), file.read_bytes())
    config = (HERE / "zensical.toml").read_text(encoding="utf-8")
    config = config.replace("[project]\n", f"[project]\n{_nav(sections)}\n", 1) + _llms(sections)
    _put(folder / "zensical.toml", config.replace('"src"', f'"{ROOT / "src"}"').encode())


def _nav(sections: Navigation) -> str:
    """Return the navigation as the generator's configuration."""
    lines = ["nav = [", '    { "Home" = "index.md" },']
    for section, pages in sections.items():
        entries = [f'{{ "{page.title}" = "{page.place}" }}' for page in pages]
        lines.append(f'    {{ "{section}" = [{", ".join(entries)}] }},')
    return "\n".join([*lines, "]"])


def _llms(sections: Navigation) -> str:
    """Return the sections of llms.txt: each page with what the index says of it, as text."""
    lines = ["\n[project.plugins.llmstxt.sections]"]
    home = Entry("Home", "index.md", "the idea in one picture, a quick start, what happens when, and the limits")
    for section, pages in {"Home": [home], **sections}.items():
        entries = [f"{{ {json.dumps(page.place)} = {json.dumps(_plain(page.content))} }}" for page in pages]
        lines.append(f'"{section}" = [{", ".join(entries)}]')
    return "\n".join([*lines, ""])


def _plain(text: str) -> str:
    """Return a cell of a table without its marks and links."""
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text).replace("`", "")


def _copy(source: Path, pages: Path) -> Path:
    """Copy a file of docs/, or a page of the root, to the site's pages."""
    if source.suffix != ".md":
        return _put(pages / source.relative_to(DOCS), source.read_bytes())
    place = site_name(source)
    text = relinked(source.read_text(encoding="utf-8"), source.parent, Path(place).parent)
    return _put(pages / place, (HOME * (place == "index.md") + text).encode())


def _put(target: Path, content: bytes) -> Path:
    """Write a file unless it has that content already, so that a server rebuilds what changed only."""
    if not target.exists() or target.read_bytes() != content:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return target


def relinked(text: str, folder: Path, site_folder: Path) -> str:
    """Return the text of a page in `folder` with its links as they are from `site_folder` of the site."""

    def link(found: re.Match[str]) -> str:
        return found[1] + target_on_site(found[2], folder, site_folder)

    parts = _CODE.split(text)
    return "".join(part if number % 2 else _LINK.sub(link, part) for number, part in enumerate(parts))


def target_on_site(target: str, folder: Path, site_folder: Path) -> str:
    """Return where a link leads on the site: to a page of it, or else to the repository's host."""
    address, mark, anchor = target.partition("#")
    own = _OWN.match(address)
    if address == HOST and not anchor:
        return target  # the project itself
    if own is None and (not address or re.match(r"[a-z]+:", address)):
        return target
    place = (ROOT / (address[own.end() :] or "README.md") if own else folder / address).resolve()
    if place == INDEX:
        return os.path.relpath("index.md", site_folder) + mark + anchor
    try:
        name = site_name(place)
    except KeyError:
        kind = "tree" if place.is_dir() else "blob"
        return f"{HOST}/{kind}/main/{place.relative_to(ROOT)}{mark}{anchor}"
    if place.is_dir():
        name = str(min(place.glob("*.md")).relative_to(DOCS))
    return os.path.relpath(name, site_folder) + mark + anchor
