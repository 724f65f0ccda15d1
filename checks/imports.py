"""What users' code imports: examples, the blocks of the pages and scripts use public modules, as users have to."""

from __future__ import annotations

import ast
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from checks.blocks import pages
from checks.project import check, parsed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checks.project import Project

PUBLIC = (
    "onejob", "onejob.api", "onejob.client", "onejob.compat", "onejob.compat.celery_once",
    "onejob.compat.celery_singleton", "onejob.django", "onejob.errors", "onejob.logs",
    "onejob.opentelemetry", "onejob.pages", "onejob.testing",
)  # fmt: skip
"""The modules that docs/project/versioning.md calls public."""


@check
def public_imports(project: Project) -> Iterator[str]:
    """No example, block of a page or script imports a module, or a name of one, that is not public."""
    for place, first, source in _programs(project):
        for name, line in private_names(source):
            yield f"{place}:{first + line}: {name} is not public; docs/project/versioning.md lists what is"


def _programs(project: Project) -> Iterator[tuple[str, int, str]]:
    """Yield the sources of examples, scripts and blocks: the place, how many lines are before it, the text."""
    for place, text in (project.under("examples/", ".py") | project.under("scripts/")).items():
        if place.endswith(".py") or text.partition("\n")[0].endswith("python3"):
            yield place, 0, text
    for page in pages(project):
        for block in page.blocks:
            if block.kind == "python":
                yield page.place, block.line, f"{block.setup}\n{block.code}" if block.setup else block.code


def private_names(source: str) -> Iterator[tuple[str, int]]:
    """Yield what a program imports of onejob that is not public, or uses of the package, with the lines."""
    try:
        tree = parsed(source)
    except SyntaxError:
        return  # which another check reports
    for node in ast.walk(tree):
        for name in _names(node):
            if name.partition(".")[0] == "onejob" and not _is_public(name):
                yield name, getattr(node, "lineno", 1)


def _names(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [each.name for each in names]
        case ast.ImportFrom(module=str(module), names=names, level=0):
            return [f"{module}.{each.name}" for each in names]
        case ast.Attribute(value=ast.Name(id="onejob"), attr=attr):
            return [f"onejob.{attr}"]
    return []


def _is_public(name: str) -> bool:
    module, _, last = name.rpartition(".")
    return name in PUBLIC or (module in PUBLIC and last in _exported(module))


@cache
def _exported(module: str) -> frozenset[str]:
    found = import_module(module)
    listed = getattr(found, "__all__", None)
    return frozenset(listed if listed is not None else (name for name in vars(found) if not name.startswith("_")))
