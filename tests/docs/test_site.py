"""The documentation site: every page is in it, every link leads somewhere, and it needs no other host."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import onejob
from tests.cases import for_each
from website.__main__ import build
from website.check import faults, read
from website.navigation import DOCS, INDEX, ROOT, navigation, outside
from website.stage import relinked, target_on_site

if TYPE_CHECKING:
    from pathlib import Path

REPOSITORY = "https://github.com/onejob/onejob"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site, which was built without a fault."""
    folder = tmp_path_factory.mktemp("website")
    assert build(folder) == []
    return folder / "site"


def test_every_page_is_built_and_found(site: Path) -> None:
    """Each page of the navigation is built, and the index of the search has it."""
    sections = navigation(INDEX.read_text(encoding="utf-8"))
    places = {place.replace(".md", ".html") for pages in sections.values() for _, place in pages}
    assert {place for place in places if not (site / place).is_file()} == set()
    searched = {item["location"].partition("#")[0] for item in json.loads((site / "search.json").read_text())["items"]}
    assert places - searched == set()


def test_the_reference_has_every_public_name(site: Path) -> None:
    """The reference of Python has an anchor for each public name of the package."""
    anchors = {anchor.rpartition(".")[2] for anchor in read(site / "reference" / "python.html").anchors}
    assert set(onejob.__all__) - anchors == set()


def test_the_navigation_has_every_page() -> None:
    """The tables of docs/README.md, which are the navigation, lead to every page of docs/."""
    assert outside(navigation(INDEX.read_text(encoding="utf-8"))) == []
    assert "identity.md" in outside({"Guides": [("Lifecycle", "lifecycle.md")]})


@for_each(
    "target, expected",
    [
        ("../identity.md#types", "../identity.md#types"),
        ("../../src/onejob/errors.py", f"{REPOSITORY}/blob/main/src/onejob/errors.py"),
        ("../../examples", f"{REPOSITORY}/tree/main/examples"),
        ("../../README.md#identity", "../index.md#identity"),
        ("../README.md", "../index.md"),
        ("../decisions", "../decisions/0001-redis-keys.md"),
        (f"{REPOSITORY}/blob/main/docs/lifecycle.md", "../lifecycle.md"),
        (f"{REPOSITORY}#transactions", "../index.md#transactions"),
        (REPOSITORY, REPOSITORY),
        ("https://example.org/a#b", "https://example.org/a#b"),
        ("#here", "#here"),
    ],
)
def test_links_lead_to_pages_or_to_the_repository(target: str, expected: str) -> None:
    """A link to a page leads to it on the site, and a link to another file leads to the repository."""
    assert target_on_site(target, DOCS / "guides", (DOCS / "guides").relative_to(DOCS)) == expected


def test_code_is_not_relinked() -> None:
    """What looks like a link in code stays as it is."""
    text = "[a](../src)\n```python\nx[0](../src)\n```\n`[b](../src)`\n"
    changed = relinked(text, DOCS, DOCS.relative_to(DOCS))
    assert changed == text.replace("[a](../src)", f"[a]({REPOSITORY}/tree/main/src)")
    assert (ROOT / "src").is_dir()


def test_faults_of_a_site_are_seen(tmp_path: Path) -> None:
    """A broken link, a missing anchor, an absolute address, and whatever is loaded from another host are faults."""
    (tmp_path / "style.css").write_text("@import 'https://fonts.example/a.css'; a { background: url(/own.png) }")
    (tmp_path / "a.html").write_text(
        '<h1 id="top"><a href="#top"></a><a href="#gone"></a><a href="b.html"></a><a href="/a.html"></a>'
        '<a href="https://example.org"></a><link rel="canonical" href="https://example.org">'
        '<script src="https://cdn.example/x.js"></script><img src="gone.png"><img src="data:image/png;base64,">'
    )
    assert faults(tmp_path) == [
        "a.html: links to #gone, where that anchor is not",
        "a.html: links to /a.html, which is not there",
        "a.html: links to b.html, which is not there",
        "a.html: loads gone.png, which is not there",
        "a.html: loads https://cdn.example/x.js",
        "style.css: loads https://fonts.example/a.css",
    ]
