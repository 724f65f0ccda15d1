"""What is left in source files: celery-singleton, celery-once, and locks in Redis that the program takes by itself.

Files are read as syntax trees, so that no comment counts.
"""

from __future__ import annotations

import ast
import re
import sys
from typing import TYPE_CHECKING, NamedTuple

from onejob.doctor.finding import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_STORE = "onejob_store names the ledger's store, if the default is not right"
_NO_LOCK = "delete it: there is no lock that could outlive its job; `lease` is how long a crash takes to be noticed"
_SHIM = "the same names from {}, or install() of that module: step 1 of its guide"
OWN_OPTIONS = "base=onejob.Task and its options: step 2 of the guide"
REDIS_LOCK = "nx"
REPLACEMENTS = {
    "celery_singleton": _SHIM.format("onejob.compat.celery_singleton"),
    "celery_once": _SHIM.format("onejob.compat.celery_once"),
    "onejob.compat.celery_singleton": OWN_OPTIONS,
    "onejob.compat.celery_once": OWN_OPTIONS,
    REDIS_LOCK: "if it keeps a task from running twice: onejob.Task with unique_on, as in the guide on Redis locks",
    "clear_locks": "delete it, and roll that out before the version with the shim: the guide says why",
    "lock_expiry": _NO_LOCK,
    "raise_on_duplicate": 'on_duplicate="raise" for True, and nothing for False',
    "once": 'unique_on for keys, unique_until="started" for unlock_before_run, on_duplicate="raise" unless graceful',
    "ONCE": f"delete it: {_STORE}",
    "singleton_backend_url": f"delete it: {_STORE}",
    "singleton_backend_class": f"delete it: {_STORE}",
    "singleton_backend_kwargs": f"delete it: {_STORE}",
    "singleton_key_prefix": "delete it: onejob_namespace separates ledgers in one database",
    "singleton_raise_on_duplicate": 'on_duplicate="raise" on each task',
    "singleton_lock_expiry": _NO_LOCK,
    "singleton_json_encoder_class": "delete it: identities cover the types in docs/identity.md",
}
"""What to write instead of a module, an option or a setting of an old library."""
MODULES = tuple(name for name in REPLACEMENTS if "celery_" in name)
SHIMS = tuple(name for name in MODULES if name.startswith("onejob."))
OPTIONS = frozenset({"lock_expiry", "raise_on_duplicate", "once"})
SETTING = re.compile(r"(?:[A-Z0-9_]+_)?(SINGLETON_[A-Z_]+|ONCE)|(singleton_[a-z_]+)")
SKIPPED = frozenset({".git", ".venv", "venv", "node_modules", "site-packages", "__pycache__"})


class Leftover(NamedTuple):
    """What a file has left. A place in a file is a path and a line."""

    file: Path
    line: int
    problem: str
    name: str
    """A name of `REPLACEMENTS`; one with `.install` is a call of it; "": the file could not be read."""


def find_in_files(paths: Sequence[Path]) -> list[Leftover]:
    """Return what is left in Python files and in those below folders, by file and line."""
    return sorted({left for path in paths for file in _files(path) for left in _in_file(file)})


def findings_of(found: Sequence[Leftover]) -> list[Finding]:
    """Return a finding for each leftover.

    Where a file, or this process, calls `install()` of a shim, an import of the old library's name is one of the shim.
    """
    installed = {each for each in SHIMS if getattr(sys.modules.get(_library(each)), "__name__", "") == each}
    installed.update(left.name.removesuffix(".install") for left in found if left.name.endswith(".install"))
    aliases = {_library(each): each for each in installed}
    return [_finding(left, aliases) for left in found if not left.name.endswith(".install")]


def _files(path: Path) -> Iterator[Path]:
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        if SKIPPED.isdisjoint(file.relative_to(path).parts):
            yield file


def _library(shim: str) -> str:
    return shim.rpartition(".")[2]


def _finding(left: Leftover, aliases: Mapping[str, str]) -> Finding:
    """Return the finding for a name of `REPLACEMENTS`; without such a name, the file was not examined."""
    file, line, problem, name = left
    if name in aliases:
        problem, name = f"{problem}, which install() makes the shim", aliases[name]
    level = Level.INFO if name == REDIS_LOCK else Level.WARNING
    return Finding(level, f"{file}:{line}" if line else str(file), problem, _meaning(name), REPLACEMENTS.get(name, ""))


def _in_file(file: Path) -> Iterator[Leftover]:
    """Yield what a file has left, once for each line and name."""
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError, OSError) as error:
        yield Leftover(file, 0, f"could not be read: {error}", "")
        return
    seen = set()
    names = _imported_names(tree)
    for node in ast.walk(tree):
        for line, problem, name in (*_in_node(node), *_in_call(node, names)):
            if (line, name) not in seen:
                seen.add((line, name))
                yield Leftover(file, line, problem, name)


def _imported_names(tree: ast.AST) -> dict[str, str]:
    """Return what the names that a file imports stand for, with their modules."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                top = each.name.split(".")[0]
                names[each.asname or top] = each.name if each.asname else top
        elif isinstance(node, ast.ImportFrom):
            names |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    return names


def _in_call(node: ast.AST, names: Mapping[str, str]) -> Iterator[tuple[int, str, str]]:
    """Yield calls of `install()` of a shim, of celery-singleton's `clear_locks`, by whatever name, and of `SET NX`."""
    if not isinstance(node, ast.Call):
        return
    first, dot, rest = ast.unparse(node.func).partition(".")
    called = names.get(first, first) + dot + rest
    if called.endswith(".install") and called.removesuffix(".install") in SHIMS:
        yield node.lineno, "", called
    elif called.endswith(".clear_locks") and (_module(called) or "").endswith("celery_singleton"):
        yield node.lineno, "calls clear_locks", "clear_locks"
    elif called.endswith(".setnx") or (called.endswith(".set") and any(map(_is_nx, node.keywords))):
        yield node.lineno, f"{ast.unparse(node.func)} takes a lock in Redis", REDIS_LOCK


def _in_node(node: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the problem and the name of what a node of a syntax tree has left."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        for module in filter(None, map(_module, _imported(node))):
            yield node.lineno, f"imports {module}", module
    for name, value in _named_values(node):
        yield from _in_name(name, value, node.lineno if isinstance(node, ast.Assign) else value.lineno)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        dotted = _module(node.value, dotted=True)
        if dotted is not None:
            yield node.lineno, f"names {node.value!r}", dotted


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    names = [alias.name for alias in node.names]
    return names if isinstance(node, ast.Import) else [str(node.module), *(f"{node.module}.{name}" for name in names)]


def _named_values(node: ast.AST) -> Iterator[tuple[str | None, ast.expr]]:
    """Yield the names to which a node gives values: keyword arguments, targets of an assignment, keys of a dict."""
    if isinstance(node, ast.Call):
        yield from ((keyword.arg, keyword.value) for keyword in node.keywords)
    elif isinstance(node, ast.Assign):
        yield from ((_name_of(target), node.value) for target in node.targets)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield _name_of(node.target), node.value
    elif isinstance(node, ast.Dict):
        keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
        yield from ((str(key), value) for key, value in zip(keys, node.values, strict=True) if key not in OPTIONS)


def _in_name(name: str | None, value: ast.expr, line: int) -> Iterator[tuple[int, str, str]]:
    if name is None:
        return
    found = SETTING.fullmatch(name)
    setting = None if found is None else found[2] or (found[1] if found[1] == "ONCE" else found[1].lower())
    if name in OPTIONS and (name != "once" or _is_dict(value)):
        yield line, f"sets the option {name}", name
    elif setting in REPLACEMENTS and (setting != "ONCE" or _is_dict(value)):
        yield line, f"sets {name}", setting


def _is_dict(value: ast.expr) -> bool:
    """Return whether a value is written as a dict: other libraries use the name `once`, too, with other values."""
    is_call = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "dict"
    return is_call or isinstance(value, ast.Dict)


def _is_nx(keyword: ast.keyword) -> bool:
    """Return whether a keyword argument is `nx`, and not written as False."""
    return keyword.arg == "nx" and not (isinstance(keyword.value, ast.Constant) and not keyword.value.value)


def _name_of(target: ast.expr) -> str | None:
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        return target.slice.value if isinstance(target.slice.value, str) else None
    return target.id if isinstance(target, ast.Name) else target.attr if isinstance(target, ast.Attribute) else None


def _module(name: str, *, dotted: bool = False) -> str | None:
    """Return the module of `MODULES` that a name is, or is in; `dotted`: only if it is in one."""
    return next((each for each in MODULES if name.startswith(f"{each}.") or (name == each and not dotted)), None)


def _meaning(name: str) -> str:
    if not name:
        return "it was not examined"
    if name == REDIS_LOCK:
        return "nothing releases such a lock when its process dies, and it may expire while the task still runs"
    if name == "clear_locks":
        return (
            "it removes the locks of live tasks and jobs; the shim's removes none while onejob_share_old_locks is set"
        )
    if name.startswith("onejob.compat"):
        return "the shim keeps the old library's interface: the program works, and does not yet speak onejob's"
    if name in MODULES:
        return "the old library's locks: a killed worker leaves them behind, and no ledger has the jobs"
    return "only the old library and its shim in onejob.compat read it; onejob.Task refuses such an option"
