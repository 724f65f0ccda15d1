"""One noun per file, one word per thing, one name per operation in all stores."""

from __future__ import annotations

import ast
import re

import pytest

from tests.project.tree import PACKAGE, STORES, modules, statements

SAYS_NOTHING = frozenset({"base", "common", "core", "helper", "helpers", "manager", "misc", "util", "utils"})
KINDS = ("postgres", "redis", "sqlite")
ONE_WORD = {
    "claim": {"acquire_job", "lock_job", "take_job"},
    "dead letter": {"dlq", "deadletter"},
    "heartbeat": {"keepalive", "keep_alive"},
    "identity": {"dedup_key", "dedupe_key", "lock_key", "unique_key", "uniqueness_key"},
    "lease": {"lock_ttl", "ttl"},
    "node": {"worker_id", "worker_name"},
    "submit": {"dispatch", "enqueue"},
    "sweep": {"janitor", "reap", "reaper", "scavenge"},
    "token": {"epoch", "fence_id"},
}
"""The project's word for a thing, and words that must not stand for it in our own names."""
OPERATIONS = {
    "apply", "claim", "consume", "delete", "find_existing", "follow", "get_many", "heartbeat", "increment", "keep_step",
    "nodes", "renew", "report", "submit", "take_due", "tombstone",
}  # fmt: skip
"""The operations that are statements or scripts in every store: there each has the same name."""


def own_names(source: str) -> set[str]:
    """Return the names a module gives to its functions, classes, parameters and annotated fields."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.arg(arg=name) | ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return names


def second_words(source: str) -> list[str]:
    """Return the names in a module that have a better word, with that word."""
    names = own_names(source)
    return sorted(f"{name}: say {word}" for word, others in ONE_WORD.items() for name in names & others)


def test_file_names_say_what_is_inside() -> None:
    """A module is named by lower-case words, a version in front of them, and never by one that fits any content."""
    stems = {str(path.relative_to(PACKAGE)): path.stem for path in modules() if not path.stem.startswith("__")}
    assert [
        place for place, stem in stems.items() if stem in SAYS_NOTHING or not re.fullmatch(r"(?:\d{4}_)?[a-z_]+", stem)
    ] == []


def test_a_thing_has_one_word() -> None:
    """No name of ours calls a thing by a second word."""
    found = {str(path.relative_to(PACKAGE)): second_words(path.read_text(encoding="utf-8")) for path in modules()}
    assert {place: words for place, words in found.items() if words} == {}


def test_second_words_are_seen() -> None:
    """A second word is found as a function, a parameter and a field, and a call to somebody else's is not ours."""
    source = "class A:\n    epoch: int\n\ndef enqueue(ttl: int) -> None:\n    redis.ttl('x')\n    queue.reaper()\n"
    assert second_words(source) == ["enqueue: say submit", "epoch: say token", "ttl: say lease"]


@pytest.mark.parametrize("store", KINDS)
def test_stores_name_their_operations_alike(store: str) -> None:
    """An operation has the same name in every store."""
    assert OPERATIONS - statements(store).keys() == set()


@pytest.mark.parametrize("store", KINDS)
def test_statements_say_what_they_do(store: str) -> None:
    """A statement begins by saying, in a comment, what it takes and what it answers."""
    headers = {name: _header(text) for name, text in statements(store).items() if f"{{{name}}}" not in _code(store)}
    said = re.compile(r"^-- (?:in|out|KEYS|returns):", re.MULTILINE)
    assert [name for name, header in headers.items() if name != "prelude" and not said.search(header)] == []


def _header(text: str) -> str:
    lines = text.removeprefix("#!lua").split("\n")[:12]
    return "\n".join(line for line in lines if line.startswith("--"))


@pytest.mark.parametrize("store", KINDS)
def test_statements_are_used(store: str) -> None:
    """A statement that nothing asks for by its name, and a fragment that is in no statement, is gone."""
    code = _code(store)
    assert [name for name in statements(store) if not re.search(rf"""["'{{]{name}["'}}]""", code)] == []


def _code(store: str) -> str:
    modules = (module.read_text(encoding="utf-8") for module in (STORES / store).glob("*.py"))
    return "".join([*modules, *statements(store).values()])
