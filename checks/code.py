"""The code: one word for one thing, names that say what they name, small functions, no clock in the core."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from checks.project import SOURCE, check, functions, parsed
from checks.words import BARE_VERBS, OF_FRAMEWORKS, ONE_WORD, SAYS_NOTHING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checks.project import Function, Project

SHIMS = f"{SOURCE}compat/celery_"
"""How the shims begin, whose modules have the names of those they stand in for."""
FUNCTION_LINES = 60
SMALL_LINES = 35
SMALL_SHARE = 0.9
CORE = ("errors.py", "jobs/", "ledger/", "stores/protocol.py", "transactions/", "uniqueness/")
CLOCKS = frozenset({"now", "utcnow", "today", "monotonic", "perf_counter", "time_ns"})
IDENTITY = ("uniqueness/identity.py", "uniqueness/canonical_json.py")
"""The modules that make identities, which depend on nothing that may change."""


@check
def file_names(project: Project) -> Iterator[str]:
    """A module is named by lower-case words, a version in front of them, and never by one that fits any content."""
    for place in project.under(SOURCE, ".py"):
        stem = PurePosixPath(place).stem
        if stem.startswith("__") or place.startswith(SHIMS):
            continue
        if stem in SAYS_NOTHING or not re.fullmatch(r"(?:\d{4}_)?[a-z_]+", stem):
            yield f"{place}:1: a name that says what is inside has lower-case words, and is not {stem!r}"


@check
def names(project: Project) -> Iterator[str]:
    """No name of ours is a second word for a thing."""
    for place, text in project.under(SOURCE, ".py").items():
        for name, line in own_names(text):
            term = "".join(word for word, second in ONE_WORD.items() if name in second)
            if term and (place.removeprefix(SOURCE), name) not in OF_FRAMEWORKS:
                yield f"{place}:{line}: {name}: say {term}"


def own_names(source: str) -> Iterator[tuple[str, int]]:
    """Yield the names of a module's functions, classes, parameters, annotated fields and settings, with their lines."""
    for node in ast.walk(parsed(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.arg(arg=name) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name, node.lineno
    for number, line in enumerate(source.splitlines(), start=1):
        yield from ((name, number) for name in re.findall(r"\bonejob_(\w+)", line))


@check
def verbs(project: Project) -> Iterator[str]:
    """A function is named by a verb and its object, never by a bare verb form."""
    for place, text in project.under(SOURCE, ".py").items():
        for function in functions(text):
            if function.name.strip("_") in BARE_VERBS:
                yield f"{place}:{function.lineno}: {function.name}: name a function by a verb and its object"


@check
def sizes(project: Project) -> Iterator[str]:
    """A reader can hold a function in the head: none is long, and nine in ten are small."""
    lengths = []
    for place, text in project.under(SOURCE, ".py").items():
        for function in functions(text):
            lines = length(function)
            lengths.append(lines)
            if lines > FUNCTION_LINES:
                yield f"{place}:{function.lineno}: {function.name} has {lines} lines, and at most {FUNCTION_LINES}"
    if sum(lines < SMALL_LINES for lines in lengths) < SMALL_SHARE * len(lengths):
        yield f"{SOURCE}: fewer than {SMALL_SHARE:.0%} of the functions have less than {SMALL_LINES} lines"


def length(function: Function) -> int:
    """Return how many lines a function takes, its decorators and docstring included."""
    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
    return (function.end_lineno or first) - first + 1


@check
def clocks(project: Project) -> Iterator[str]:
    """No core module reads a clock, not even by a type that it may import."""
    for place, text in project.under(SOURCE, ".py").items():
        if not place.removeprefix(SOURCE).startswith(CORE):
            continue
        for node in ast.walk(parsed(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CLOCKS:
                yield f"{place}:{node.lineno}: {ast.unparse(node.func)} reads a clock; the core gets the time"


@check
def identity_imports(project: Project) -> Iterator[str]:
    """Identities are made by the standard library and by each other's modules, and by nothing else."""
    for place in IDENTITY:
        text = project.files.get(SOURCE + place, "")
        for node in ast.walk(parsed(text)):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            imported = [each.name for each in node.names] if isinstance(node, ast.Import) else [module] * bool(module)
            own = {"onejob.errors", "onejob.jobs.text_limits", "onejob.uniqueness.canonical_json"}
            if foreign := {name for name in imported if name.partition(".")[0] not in _STANDARD} - own:
                yield f"{SOURCE}{place}:{node.lineno}: identities depend on {', '.join(foreign)}"  # type: ignore[attr-defined]


_STANDARD = sys.stdlib_module_names | {"annotationlib"}
