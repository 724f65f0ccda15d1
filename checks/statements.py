"""The statements and scripts of the stores: named alike, explained and used."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from checks.project import SOURCE, check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checks.project import Project

STORES = tuple(f"{SOURCE}stores/{kind}/" for kind in ("postgres", "redis", "sqlite"))
FRAGMENTS = "fragments/"
"""The folder of the parts that statements share; other folders have no statements."""
HEADING = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
"""What begins a statement in a file of several."""
SAID = re.compile(r"^-- (?:in|out|KEYS|returns):", re.MULTILINE)
OPERATIONS = frozenset(
    "apply backlog claim delete find_existing follow get_many heartbeat increment keep_step renew report series submit "
    "take_due tombstone workers".split()
)
"""The operations that are statements or scripts in every store: there each has the same name."""

COMMAND = re.compile(r"""call\('([A-Z]+)'|\("([A-Z]+)",""")
"""A command of Redis in a script, or in a module that sends it."""
REDIS_USER = "docs/operations/redis-user.md"


class Statement(NamedTuple):
    """A statement, a script or a fragment, with its comments."""

    name: str
    place: str
    line: int
    text: str


def statements(project: Project, store: str) -> list[Statement]:
    """Return the statements, scripts and fragments of a store."""
    found = []
    for place, text in project.under(store, ".sql", ".lua").items():
        if "/" in place.removeprefix(store).removeprefix(FRAGMENTS):
            continue
        whole, *named = HEADING.split(text)
        if not named:
            found.append(Statement(PurePosixPath(place).stem, place, 1, whole))
        for name, part in zip(named[::2], named[1::2], strict=True):
            found.append(Statement(name, place, text.count("\n", 0, text.index(f"-- name: {name}\n")) + 1, part))
    return found


@check
def statement_operations(project: Project) -> Iterator[str]:
    """An operation has the same name in every store."""
    for store in STORES:
        for name in sorted(OPERATIONS - {each.name for each in statements(project, store)}):
            yield f"{store}:1: no statement or script is named {name}"


@check
def statement_headers(project: Project) -> Iterator[str]:
    """A statement begins by saying, in a comment, what it takes and what it answers."""
    for each, code in _in_their_code(project):
        if each.name == "prelude" or f"{{{each.name}}}" in code:
            continue
        head = "\n".join(line for line in each.text.removeprefix("#!lua").split("\n")[:12] if line[:2] == "--")
        if not SAID.search(head):
            yield f"{each.place}:{each.line}: {each.name}: say what goes in and what comes out: `-- in: ...`"


@check
def statement_uses(project: Project) -> Iterator[str]:
    """A statement that nothing asks for by its name, and a fragment that is in no statement, is gone."""
    for each, code in _in_their_code(project):
        if not re.search(rf"""["'{{]{each.name}["'}}]""", code):
            yield f"{each.place}:{each.line}: nothing uses {each.name}"


@check
def redis_rights(project: Project) -> Iterator[str]:
    """The page about the keys in Redis names all commands that a user needs the right to."""
    page = project[REDIS_USER]
    start = page.index("## For the ledger")
    named = set(re.findall(r"\+([a-z]+)", page[start : page.index("\n## ", start)]))
    texts = project.under(f"{SOURCE}stores/redis/", ".lua", ".py").values()
    sent = {found[1] or found[2] for text in texts for found in COMMAND.finditer(text)}
    for command in sorted(sent):
        if command.lower() not in named:
            yield f"{REDIS_USER}:{page.count(chr(10), 0, start) + 1}: the rights of a user lack {command.lower()}"


def _in_their_code(project: Project) -> Iterator[tuple[Statement, str]]:
    """Yield each statement with the code of its store."""
    for store in STORES:
        found = statements(project, store)
        code = _code(project, store, found)
        yield from ((each, code) for each in found)


def _code(project: Project, store: str, found: list[Statement]) -> str:
    """Return the modules and the statements of a store, and the modules that the stores share."""
    modules = (
        text
        for folder in (store, f"{SOURCE}stores/")
        for place, text in project.under(folder, ".py").items()
        if "/" not in place.removeprefix(folder)
    )
    return "".join([*modules, *(each.text for each in found)])
