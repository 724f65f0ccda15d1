"""Checks of the built site: every link and anchor leads somewhere, and no page asks another host for anything."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import unquote, urlsplit

import onejob
from website.navigation import INDEX, navigation

if TYPE_CHECKING:
    from pathlib import Path

_CSS_ADDRESS = re.compile(r"url\(\s*['\"]?((?:https?:)?//[^'\")]+)|@import\s+['\"]?((?:https?:)?//[^'\")]+)")
_OPENING = re.compile(r"# .+\n\n> .+\n\n[^#\s]")
_LISTED = re.compile(r"^- \[.+\]\(<?https://[^/]+/onejob/([^)>]+)>?\)", re.MULTILINE)

WAYS_ON = 5
"""To how many pages the page for an unknown address links at least."""


@dataclass
class BuiltPage(HTMLParser):
    """What a page of the site links to, loads, and can be linked to."""

    LOADS: ClassVar = {
        "script": "src",
        "img": "src",
        "source": "srcset",
        "iframe": "src",
        "object": "data",
        "use": "href",
    }
    RELATIONS: ClassVar = {"canonical", "next", "prev", "edit", "alternate"}

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    titles: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Prepare the parser."""
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag links to, loads and names."""
        values = {name: value or "" for name, value in attrs}
        if "id" in values:
            self.anchors.add(values["id"])
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        if tag == "link" and not self.RELATIONS & set(values.get("rel", "").split()):
            self.loaded.append(values.get("href", ""))
        if address := values.get(self.LOADS.get(tag, "")):
            self.loaded.append(address)


def read(page: Path) -> BuiltPage:
    """Return what a built page consists of."""
    built = BuiltPage()
    built.feed(page.read_text(encoding="utf-8"))
    return built


def faults(site: Path) -> list[str]:
    """Return the broken links and anchors of a built site, and what its pages load from other hosts."""
    pages = {path: read(path) for path in site.rglob("*.html") if path.name != "404.html"}
    found = [f"{path.relative_to(site)}: {fault}" for path in pages for fault in _faults_of(path, pages, site)]
    return sorted([*found, *_foreign_styles(site)])


def omissions(site: Path) -> list[str]:
    """Return what a built site lacks: pages, as Markdown too, entries of its search and of llms.txt, names, ways on."""
    sections = navigation(INDEX.read_text(encoding="utf-8"))
    places = {page.place.replace(".md", ".html") for pages in sections.values() for page in pages} | {"index.html"}
    index = json.loads((site / "search.json").read_text(encoding="utf-8"))["items"]
    searched = {item["location"].partition("#")[0] for item in index}
    missing = {place for place in places if not (site / place).is_file()}
    names = {*onejob.__all__, *onejob.errors.__all__}
    anchors = {anchor.rpartition(".")[2] for anchor in read(site / "reference" / "python.html").anchors}
    content = (site / "404.html").read_text(encoding="utf-8").partition("<h1>There is no such page")[2]
    ways = re.findall(r'href="/onejob/([\w/-]+\.html)"', content.partition("</ul>")[0])
    return [
        *(f"{place} is not built" for place in sorted(missing)),
        *(f"{place} is not in the search" for place in sorted(places - searched)),
        *(f"reference/python.html has no anchor for {name}" for name in sorted(names - anchors)),
        *without_markdown(site, {place.replace(".html", ".md") for place in places}),
        *(f"404.html leads to {way}, which is not there" for way in ways if not (site / way).is_file()),
        *(["404.html leads to few pages"] if len(ways) < WAYS_ON else []),
    ]


def without_markdown(site: Path, pages: set[str]) -> list[str]:
    """Return what llms.txt lacks (its opening, pages), and the pages that have no Markdown beside their HTML."""
    text = (site / "llms.txt").read_text(encoding="utf-8")
    listed = set(_LISTED.findall(text))
    return [
        *([] if _OPENING.match(text) else ["llms.txt does not begin with a title, a sentence and a paragraph"]),
        *(f"llms.txt does not list {page}" for page in sorted(pages - listed)),
        *(f"{page} is not there as Markdown" for page in sorted(pages | listed) if not (site / page).is_file()),
    ]


def _faults_of(path: Path, pages: dict[Path, BuiltPage], site: Path) -> list[str]:
    """Return the faults of one page."""
    page = pages[path]
    foreign = [f"loads {address}" for address in page.loaded if urlsplit(address).netloc]
    local = [address for address in page.loaded if not urlsplit(address).netloc and not address.startswith("data:")]
    missing = [
        f"loads {address}, which is not there" for address in local if not _resolve(path, address, site).is_file()
    ]
    return foreign + missing + [fault for link in page.links if (fault := _fault_of(link, path, pages, site))]


def _fault_of(link: str, path: Path, pages: dict[Path, BuiltPage], site: Path) -> str:
    """Return why a link is broken, or nothing."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return ""
    target = _resolve(path, link, site)
    if not target.is_file():
        return f"links to {link}, which is not there"
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors | {"__top"}:
        return f"links to {link}, where that anchor is not"
    return ""


def _resolve(path: Path, address: str, site: Path) -> Path:
    """Return the file of the site that a relative address leads to."""
    place = unquote(urlsplit(address).path)
    if place.startswith("/"):
        return site / "absolute addresses break on a sub-path" / place[1:]
    target = (path.parent / place).resolve() if place else path
    return target / "index.html" if target.is_dir() else target


def _foreign_styles(site: Path) -> list[str]:
    """Return the addresses of other hosts in the style sheets of a site."""
    sheets = {sheet: sheet.read_text(encoding="utf-8") for sheet in site.rglob("*.css")}
    found = [(sheet, match) for sheet, text in sheets.items() for match in _CSS_ADDRESS.finditer(text)]
    return [f"{sheet.relative_to(site)}: loads {match[1] or match[2]}" for sheet, match in found]
