"""Checks for leftovers of celery-singleton and celery-once: in source files, in an app, and as locks in Redis."""

import ast
import inspect
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from redis import RedisError

from onejob.errors import OneJobError
from onejob.health.finding import Finding, Level, count_text
from onejob.health.redis import cli_options, connected

_STORE = "onejob_store names the ledger's store, if the default is not right"
_NO_LOCK = "delete it: there is no lock that could outlive its job; `lease` is how long a crash takes to be noticed"
_SHIM = "the same names from {}, or install() of that module: step 1 of its guide"
OWN_OPTIONS = "base=onejob.Task and its options: step 2 of the guide"
REDIS_LOCK = "nx"
LIBRARIES = ("celery_singleton", "celery_once")
SHIMS = {library: f"onejob.compat.{library}" for library in LIBRARIES}
MODULES = (*LIBRARIES, *SHIMS.values())
REPLACEMENTS = {
    **{library: _SHIM.format(shim) for library, shim in SHIMS.items()},
    **dict.fromkeys(SHIMS.values(), OWN_OPTIONS),
    REDIS_LOCK: "if it keeps a task from running twice: onejob.Task with unique_on, as in the guide on Redis locks",
    "clear_locks": "delete it, and roll that out before the version with the shim: the guide says why",
    "lock_expiry": _NO_LOCK,
    "unique_on": "delete it when the base becomes onejob.Task",
    "raise_on_duplicate": 'on_duplicate="raise" for True, and nothing for False',
    "once": 'unique_on for keys, unique_until="started" for unlock_before_run, on_duplicate="raise" unless graceful',
    "ONCE": f"delete it: {_STORE}",
    "singleton_backend_url": f"delete it: {_STORE}",
    "singleton_backend_class": f"delete it: {_STORE}",
    "singleton_backend_kwargs": f"delete it: {_STORE}",
    "singleton_key_prefix": "delete it: onejob_namespace separates ledgers in one database",
    "singleton_raise_on_duplicate": 'on_duplicate="raise" on each task',
    "singleton_lock_expiry": _NO_LOCK,
    "singleton_json_encoder_class": "delete it: identities cover the types in docs/concepts/identity.md",
}
"""The replacements of modules, options and settings of the old libraries."""
MEANINGS = {
    "": "it was not examined",
    REDIS_LOCK: "nothing releases such a lock when its process dies, and it may expire while the task still runs",
    "clear_locks": "it removes the locks of live tasks and jobs; the shim's removes none while share_old_locks is set",
    "unique_on": "without names celery-singleton compares all arguments; for onejob.Task all calls are equal",
    **dict.fromkeys(
        SHIMS.values(),
        "the shim keeps the old library's interface: the program works, and does not yet speak onejob's",
    ),
    **dict.fromkeys(
        LIBRARIES, "the old library's locks: a killed worker leaves them behind, and no ledger has the jobs"
    ),
}
"""The meanings of leftover names; every other name is an option or a setting."""
OF_AN_OPTION = "only the old library and its shim in onejob.compat read it; onejob.Task refuses such an option"
OPTIONS = frozenset({"lock_expiry", "raise_on_duplicate", "once"})
SETTING = re.compile(r"(?:[A-Z0-9_]+_)?(SINGLETON_[A-Z_]+|ONCE)|(singleton_[a-z_]+)")
SKIPPED = frozenset({".git", ".venv", "venv", "node_modules", "site-packages", "__pycache__"})
NO_EXPIRY = -1
"""The remaining time that Redis returns for a key without an expiry."""
MANY = 10_000
"""The maximum number of locks that are counted."""


class Leftover(NamedTuple):
    """A leftover in a place: a path and a line of a file, or a place in an app."""

    file: Path
    line: int
    problem: str
    name: str
    """A name of `REPLACEMENTS`, with `.install` for a call of that function; "": the file could not be read."""


def findings_of(found: Sequence[Leftover]) -> list[Finding]:
    """Return a finding for each leftover.

    Where a file, or this process, calls `install()` of a shim, an import of the old library's name imports the shim.
    """
    calls = {left.name for left in found}
    aliases = {
        library: shim
        for library, shim in SHIMS.items()
        if f"{shim}.install" in calls or getattr(sys.modules.get(library), "__name__", "") == shim
    }
    findings = []
    for file, line, problem, name in found:
        if not name.endswith(".install"):
            shown = f"{problem}, which install() makes the shim" if name in aliases else problem
            meant = aliases.get(name, name)
            level = Level.INFO if meant == REDIS_LOCK else Level.WARNING
            meaning, remedy = MEANINGS.get(meant, OF_AN_OPTION), REPLACEMENTS.get(meant, "")
            findings.append(Finding(level, f"{file}:{line}" if line else str(file), shown, meaning, remedy))
    return findings


def _in_path(path: Path) -> Iterator[Leftover]:
    for file in sorted(filter(Path.is_file, path.rglob("*.py"))) if path.is_dir() else [path]:
        if SKIPPED.isdisjoint(file.relative_to(path).parts):
            yield from _in_file(file)


def _in_file(file: Path) -> Iterator[Leftover]:
    try:
        tree = ast.parse(file.read_bytes(), str(file))
        names = _imported_names(tree)
        for node in ast.walk(tree):
            for line, problem, name in _in_node(node, names):
                yield Leftover(file, line, problem, name)
    except (SyntaxError, ValueError, OSError, RecursionError) as error:
        yield Leftover(file, 0, f"could not be read: {error}", "")


def _imported_names(tree: ast.AST) -> dict[str, str]:
    """Return the imported objects by the names that a file gives them, each with its module."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                top = each.name.split(".")[0]
                names[each.asname or top] = each.name if each.asname else top
        elif isinstance(node, ast.ImportFrom):
            names |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    return names


def _in_node(node: ast.AST, names: Mapping[str, str]) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the problem and the name of each leftover in a node of a syntax tree; `names`: the imports."""
    for name, value in _named_values(node):
        yield from _in_name(name, value, node.lineno if isinstance(node, ast.Assign) else value.lineno)
    match node:
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            imported = [alias.name for alias in aliases]
            if isinstance(node, ast.ImportFrom):
                imported = [str(node.module), *(f"{node.module}.{name}" for name in imported)]
            for module in filter(None, map(_module, imported)):
                yield node.lineno, f"imports {module}", module
        case ast.Constant(value=str(text)) if dotted := _module(text, dotted=True):
            yield node.lineno, f"names {text!r}", dotted
        case ast.ClassDef(bases=bases, body=body):
            yield from _in_singleton(bases, body)
        case ast.Call(keywords=keywords):
            yield from _in_singleton([each.value for each in keywords if each.arg == "base"], [node])
            yield from _in_call(node, names)


def _in_call(node: ast.Call, names: Mapping[str, str]) -> Iterator[tuple[int, str, str]]:
    """Yield calls of `install()` of a shim, of celery-singleton's `clear_locks`, by whatever name, and of `SET NX`."""
    first, dot, rest = ast.unparse(node.func).partition(".")
    called = names.get(first, first) + dot + rest
    if called.endswith(".install") and called.removesuffix(".install") in SHIMS.values():
        yield node.lineno, "", called
    elif called.endswith(".clear_locks") and (_module(called) or "").endswith("celery_singleton"):
        yield node.lineno, "calls clear_locks", "clear_locks"
    elif called.endswith(".setnx") or (
        called.endswith(".set")
        and any(each.arg == "nx" and getattr(each.value, "value", True) for each in node.keywords)  # not nx=False
    ):
        yield node.lineno, f"{ast.unparse(node.func)} takes a lock in Redis", REDIS_LOCK


def _in_singleton(bases: Sequence[ast.expr], parts: Sequence[ast.AST]) -> Iterator[tuple[int, str, str]]:
    """Yield a `unique_on` without names of a celery-singleton task; it has another meaning for onejob.Task."""
    if any(_name_of(base) == "Singleton" for base in bases):
        for name, value in (each for part in parts for each in _named_values(part)):
            if name == "unique_on" and isinstance(value, ast.List | ast.Tuple) and not value.elts:
                yield value.lineno, f"sets unique_on={ast.unparse(value)}", "unique_on"


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
    return isinstance(value, ast.Dict) or (isinstance(value, ast.Call) and ast.unparse(value.func) == "dict")


def _name_of(target: ast.expr) -> str | None:
    match target:
        case ast.Subscript(slice=ast.Constant(value=str(name))) | ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return None


def _module(name: str, *, dotted: bool = False) -> str | None:
    """Return the module of `MODULES` that a name is, or is in; `dotted`: only a module that it is in."""
    return next((each for each in MODULES if name.startswith(f"{each}.") or (name == each and not dotted)), None)


def find_leftovers(app: Any, paths: Sequence[Path]) -> list[Finding]:
    """Return the leftovers below paths, by file and line, and then in an app (None: no app is examined).

    A setting in a file is no second finding about the app. Nothing is changed; a Redis that does not answer is a
    finding.
    """
    found = sorted({left for path in paths for left in _in_path(path)})
    findings = findings_of(found)
    if app is None:
        return findings
    in_files = {name for _, _, _, name in found}
    return [*findings, *_in_settings(app, in_files), *_in_tasks(app, found), *_in_redis(app)]


def _in_settings(app: Any, in_files: Collection[str]) -> Iterator[Finding]:
    for name in sorted(REPLACEMENTS.keys() - in_files):
        if (name == "ONCE" or name.startswith("singleton_")) and app.conf.get(name) is not None:
            meaning = "a setting of the old library: only its shim in onejob.compat reads it"
            yield Finding(Level.WARNING, f"settings: {name}", "the app sets it", meaning, REPLACEMENTS[name])


def _in_tasks(app: Any, found: Sequence[Leftover]) -> Iterator[Finding]:
    for name, task in sorted(app.tasks.items()):
        where, code = f"task {name}", getattr(inspect.unwrap(task.run), "__code__", None)
        source = Path(code.co_filename).resolve() if code else None  # a wrapped class has no code
        in_file = {left.name for left in found if left.file.resolve() == source}
        module = next(filter(None, (_module(kind.__module__) for kind in type(task).__mro__)), None)
        if module is not None and in_file.isdisjoint(MODULES):
            problem = "its class is " + ("the old library's" if module in LIBRARIES else "a shim of onejob.compat")
            yield Finding(Level.WARNING, where, problem, MEANINGS[module], REPLACEMENTS[module])
        if getattr(task, "share_old_locks", False):
            meaning = "each submission of the task asks the Redis of the old library, too"
            remedy = "remove the option, of install() or of a class, when no process with the old library runs any more"
            yield Finding(Level.WARNING, where, "it has share_old_locks=True", meaning, remedy)
        for option in sorted(OPTIONS - in_file):
            given = getattr(task, option, None)
            if given not in (None, {"graceful": False, "unlock_before_run": False}):
                meaning = "an option of the old library, which onejob.Task refuses"
                yield Finding(Level.WARNING, where, f"it has {option}={given!r:.200}", meaning, REPLACEMENTS[option])


def _in_redis(app: Any) -> Iterator[Finding]:
    conf, once = app.conf, app.conf.get("ONCE") or {}
    backend = str(conf.get("result_backend") or "")
    found = conf.get("singleton_backend_url") or (backend if backend.startswith("redis://") else conf.get("broker_url"))
    if (url := str(found)).startswith(("redis://", "rediss://")):
        yield from _locks(f"{conf.get('singleton_key_prefix', 'SINGLETONLOCK_')}*", "celery-singleton", url)
    if str(once.get("backend", "")).rpartition(".")[2] == "Redis":
        url = once.get("settings", {}).get("url", "redis://localhost:6379/0")
        yield from _locks("qo_*", "celery-once", url)


def _locks(pattern: str, library: str, url: str) -> Iterator[Finding]:
    where = f"redis: keys {pattern}"
    try:
        with connected(url) as client:
            keys = list(islice(client.scan_iter(match=pattern, count=1000), MANY))
            eternal = sum(client.ttl(key) == NO_EXPIRY for key in keys)
    except (RedisError, OneJobError) as error:
        yield Finding(Level.WARNING, where, f"could not look: {error}", f"locks of {library} may be left", "")
        return
    if keys:
        locks = count_text(len(keys), "lock")
        problem = f"{locks} of {library}, {eternal} without an expiry, such as {min(keys)}"
        meaning = "held by a task of the old library that waits or runs, or left by a process that died"
        cli = f"redis-cli {cli_options(url)}"
        command = f"{cli} --scan --pattern {quote(pattern)} | tr '\\n' '\\0' | xargs -0 -r {cli} del"
        remedy = f"when no process with {library} runs any more: {command}"
        yield Finding(Level.WARNING, where, problem, meaning, remedy)
