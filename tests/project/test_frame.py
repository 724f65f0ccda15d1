"""The frame holds: what is locked fits what is declared, what is built carries everything, what is linked exists."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

from hatchling import build
from packaging.requirements import Requirement

from tests.cases import for_each
from tests.project.tree import PACKAGE, ROOT, files

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pytest

LOCKS = {
    "dev": (("demo", "django", "opentelemetry", "postgres", "server", "wsgi"), ("build", "docs", "lint", "test")),
    "demo": (("demo",), ("build",)),
    "server": (("server", "postgres"), ("build",)),
    "oldest": (("django", "opentelemetry", "postgres", "server", "wsgi"), ()),
}
"""The extras and the groups that each lock is made from."""
REPOSITORY = re.compile(r"https://github\.com/onejob/onejob(?:/(?:blob|tree)/main/|(?=$|#))")
"""What begins the absolute address of a file of the project, or of the project itself."""
LINK = re.compile(r"(?<!!)\[[^\]\n]+\]\(([^)\s]+)\)")


def declared(lock: str) -> list[Requirement]:
    """Return what pyproject.toml asks of the environment that a lock makes."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras, groups = LOCKS[lock]
    asked = list(project["project"]["dependencies"])
    asked += [text for extra in extras for text in _of_extra(project, extra)]
    asked += [text for group in groups for text in project["dependency-groups"][group]]
    return [Requirement(text) for text in asked]


def _of_extra(project: dict[str, Any], extra: str) -> list[str]:
    """Return what an extra asks for, and what the extras of ours ask for that it names."""
    asked: list[str] = []
    for text in project["project"]["optional-dependencies"][extra]:
        own = re.fullmatch(r"onejob\[(\w+)\]", text)
        asked += _of_extra(project, own[1]) if own else [text]
    return asked


def locked(lock: str) -> dict[str, str]:
    """Return the versions that a lock names."""
    text = (ROOT / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9.-]+)(?:\[[a-z,]+\])?==(\S+)", text, re.MULTILINE))


def broken_links(page: Path, known: Iterable[Path]) -> list[str]:
    """Return the links of a page that lead to none of the known files, and to no folder of one."""
    reached = {place for file in known for place in (file, *file.parents)}
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    own = [REPOSITORY.sub("", target).partition("#")[0] for target in targets if REPOSITORY.match(target)]
    local = [target.partition("#")[0] for target in targets if not re.match(r"[a-z]+:|#", target)]
    places = [(target, ROOT / target) for target in own] + [(target, page.parent / target) for target in local]
    return [target for target, place in places if place.resolve() not in reached]


@for_each("lock", LOCKS)
def test_locks_fit_what_is_declared(lock: str) -> None:
    """A lock names a version that pyproject.toml allows, for everything it asks for."""
    versions = locked(lock)
    assert [str(asked) for asked in declared(lock) if versions.get(asked.name, "") not in asked.specifier] == []


@for_each("lock", ["demo", "server"])
def test_locks_agree(lock: str) -> None:
    """The demo and a server run with the versions that the tests ran with."""
    assert set(locked(lock).items()) <= set(locked("dev").items())


@for_each("lock", LOCKS)
def test_locks_are_hashed_and_placeless(lock: str) -> None:
    """Every locked version has its hashes, and no lock says where to get it."""
    text = (ROOT / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")
    entries = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert {re.split(r"[=\[]", entry)[0] for entry in entries} == set(locked(lock)) != set()
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []
    assert re.findall(r"\w+://|^-.*|@ .*", text, re.MULTILINE) == []


def test_wheel_carries_the_whole_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel holds every file of the package, statements, scripts, texts and pages too, and nothing else."""
    monkeypatch.chdir(ROOT)
    with ZipFile(tmp_path / build.build_wheel(str(tmp_path))) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == {str(path.relative_to(PACKAGE.parent)) for path in files() if path.is_relative_to(PACKAGE)}
    assert {"onejob/py.typed", "onejob/stores/sqlite/migrations/0001_jobs.sql"} <= names


@for_each("page", [str(path.relative_to(ROOT)) for path in files() if path.suffix == ".md"])
def test_links_lead_somewhere(page: str) -> None:
    """A link from one page to another file of the project finds it."""
    assert broken_links(ROOT / page, files()) == []


def test_broken_links_are_seen(tmp_path: Path) -> None:
    """A link to what is not in the project is found, whatever its anchor; addresses on the web are not followed."""
    page = tmp_path / "page.md"
    (tmp_path / "empty").mkdir()
    own = "[f](https://github.com/onejob/onejob/blob/main/gone.py#x) [g](https://github.com/onejob/onejob#top)"
    links = f"[a](page.md#top) [b](gone.md#x) [c](https://example.org/gone) [d](#here) [e](empty) {own}"
    page.write_text(links, encoding="utf-8")
    assert broken_links(page, [page, ROOT / "README.md"]) == ["gone.py", "gone.md", "empty"]


def test_the_readme_can_be_read_anywhere() -> None:
    """The README, which the package index shows, has absolute links only, and begins with the installation."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [target for target in LINK.findall(text) if not target.startswith("https://")] == []
    assert text.partition("```sh\n")[2].startswith("pip install onejob\n")


def test_the_package_has_links() -> None:
    """The metadata of the package leads to its documentation, its source, its changes and its issues."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(project["urls"]) == {"Documentation", "Source", "Changelog", "Issues"}
    places = [REPOSITORY.sub("", url) for url in project["urls"].values() if REPOSITORY.match(url)]
    assert [place for place in places if not (ROOT / place).exists()] == []


def test_requests_in_pages_carry_the_key() -> None:
    """Each curl line of the guides that requests a route of the API has the header with the key."""
    pages = [ROOT / "README.md", *(ROOT / "docs" / "guides").glob("*.md")]
    lines = [line for page in pages for line in page.read_text(encoding="utf-8").splitlines() if "$ curl" in line]
    assert lines
    assert [line for line in lines if '-H "authorization: Bearer $KEY"' not in line] == []


def test_index_names_every_page() -> None:
    """The index of docs/ leads to every page of docs/, or to its folder."""
    docs = ROOT / "docs"
    linked = set(LINK.findall((docs / "README.md").read_text(encoding="utf-8")))
    pages = [path.relative_to(docs) for path in files() if path.is_relative_to(docs) and path.suffix == ".md"]
    assert [str(page) for page in pages if page.name != "README.md" and not {str(page), page.parts[0]} & linked] == []


def test_make_explains_every_target() -> None:
    """Each target that a person may ask for has one line of help."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    asked = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert asked is not None
    explained = set(re.findall(r"^([a-z-]+):.*## \w", makefile, re.MULTILINE))
    assert explained == set(asked[1].split()) - {"FORCE"}
