"""The documentation site: every page is in it, every link leads somewhere, and it needs no other host."""

from __future__ import annotations

from pathlib import Path

from tests.cases import for_each
from website.check import faults, without_markdown
from website.navigation import DOCS, ROOT
from website.stage import relinked, target_on_site

REPOSITORY = "https://github.com/onejob/onejob"


@for_each("target, expected", [
    ("../concepts/identity.md#types", "../concepts/identity.md#types"), ("#here", "#here"),
    ("../README.md", "../index.md"),
    ("../../src/onejob/errors.py", f"{REPOSITORY}/blob/main/src/onejob/errors.py"),
    ("../../examples", f"{REPOSITORY}/tree/main/examples"), ("../../README.md#limits", "../index.md#limits"),
    ("../decisions", "../decisions/0001-redis-keys.md"), (REPOSITORY, REPOSITORY),
    (f"{REPOSITORY}/blob/main/docs/concepts/lifecycle.md", "../concepts/lifecycle.md"),
    (f"{REPOSITORY}#limits", "../index.md#limits"), ("https://example.org/a#b", "https://example.org/a#b"),
])  # fmt: skip
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


def test_a_page_that_models_cannot_read_is_seen(tmp_path: Path) -> None:
    """llms.txt says what the site is and lists each page; what it lists is there as Markdown."""
    (tmp_path / "llms.txt").write_text(
        "# onejob\n\n- [A](<https://onejob.example/onejob/a.md>): the first\n- [C](https://onejob.example/onejob/c/d.md)\n"
    )
    (tmp_path / "a.md").write_text("# A")
    (tmp_path / "b.md").write_text("# B")
    assert without_markdown(tmp_path, {"a.md", "b.md"}) == [
        "llms.txt does not begin with a title, a sentence and a paragraph",
        "llms.txt does not list b.md",
        "c/d.md is not there as Markdown",
    ]
    (tmp_path / "llms.txt").write_text(
        "# onejob\n\n> Once.\n\nA library.\n\n- [A](https://onejob.example/onejob/a.md)\n"
    )
    assert without_markdown(tmp_path, {"a.md"}) == []
