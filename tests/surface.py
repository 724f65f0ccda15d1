"""Lists the public surface: names with their parameters, settings, options, commands and routes, a line for each.

`python -m tests.surface` writes the list to `tests/surface.txt`, which a test compares.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, is_typeddict

import celery
import click

import onejob
from checks.imports import PUBLIC
from onejob.api import create_app
from onejob.celery.app_state import app_state_of
from onejob.celery.option_declarations import TASK_OPTIONS, TaskDefaults
from onejob.cli.commands import main
from onejob.config import Settings
from onejob.webhooks.settings import WebhookSettings

GOLDEN = Path(__file__).with_suffix(".txt")
SUBMISSION_OPTIONS = {"CallOptions", "SubmissionOptions"}
"""The classes that list the options of a submission for type checkers."""
NO_VALUE = inspect.Parameter.empty
PLAIN = (type(None), bool, int, float, str, tuple, list, dict)


def surface() -> list[str]:
    """Return the lines of the whole surface."""
    sections = {
        "Python": Names().lines(), "Settings": _settings(), "Options of a task": _task_options(),
        "Options of a submission": _submission_options(), "Commands": _commands("onejob", main), "HTTP": _routes(),
    }  # fmt: skip
    return [line for title, lines in sections.items() for line in (f"# {title}", *lines, "")]


# --- Python -----------------------------------------------------------------------------------------------------------


class Names:
    """The names of the public modules; what has two names, or is inherited from a public class, stands once."""

    def __init__(self) -> None:
        self._shown: dict[int, str] = {}
        self._classes: set[type] = set()

    def lines(self) -> Iterator[str]:
        """Yield the lines of all modules."""
        for place in PUBLIC:
            module = import_module(place)
            for name in sorted(getattr(module, "__all__", ())):
                if place == "onejob.django":  # whose classes need a configured project
                    yield f"{place}.{name}"
                else:
                    yield from self._object(f"{place}.{name}", getattr(module, name))

    def _object(self, name: str, found: Any) -> Iterator[str]:
        first = self._shown.setdefault(id(found), name)
        if first != name:
            yield f"{name} = {first}"
        elif not inspect.isclass(found):
            yield _called(name, found) if callable(found) else name
        elif is_typeddict(found):
            yield f"{name}: {', '.join(sorted(found.__annotations__))}"
        elif issubclass(found, Enum):
            yield f"{name}: {', '.join(str(each.value) for each in found)}"
        else:
            yield from self._class(name, found)

    def _class(self, name: str, found: type) -> Iterator[str]:
        bases = ", ".join(base.__name__ for base in found.__bases__ if base is not object and _is_public(base))
        made = _called(name, found) if _has_constructor(found) else name
        yield f"{made} of {bases}" if bases else made
        known = {base for each in found.__mro__ if each in self._classes for base in each.__mro__}
        own = [each for each in found.__mro__ if _is_ours(each) and each not in known]
        given = {field.name for field in fields(found)} if is_dataclass(found) else set()
        for member in sorted({member for each in own for member in vars(each)} - given):
            if not member.startswith("_"):
                yield _member(f"{name}.{member}", found, member)
        self._classes.add(found)


def _is_ours(found: type) -> bool:
    return found.__module__.partition(".")[0] == "onejob"


def _is_public(found: type) -> bool:
    return not found.__name__.startswith("_")


def _has_constructor(found: type) -> bool:
    return is_dataclass(found) or any("__init__" in vars(each) for each in found.__mro__ if _is_ours(each))


def _member(name: str, owner: type, member: str) -> str:
    static, found = inspect.getattr_static(owner, member), getattr(owner, member, None)
    is_method = callable(found) and not inspect.isclass(found) and not isinstance(static, property)
    return _called(name, found) if is_method else name


def _called(name: str, found: Any) -> str:
    """Return a name with its parameters and their defaults; types are not shown, since type checkers read them."""
    signature = inspect.signature(found)
    parameters = [
        each.replace(annotation=NO_VALUE, default=NO_VALUE if each.default is NO_VALUE else _Shown(each.default))
        for each in signature.parameters.values()
        if each.name != "self"
    ]
    return f"{name}{signature.replace(parameters=parameters, return_annotation=NO_VALUE)}"


class _Shown:
    """A default, with a text that is the same in each process and on each Python: `...` for what is no plain value."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __repr__(self) -> str:
        return repr(self._value) if isinstance(self._value, PLAIN) else "..."


# --- settings, options, commands, routes ------------------------------------------------------------------------------


def _settings() -> Iterator[str]:
    for prefix, kind in (("onejob_", Settings), ("onejob_webhook_", WebhookSettings)):
        for field in fields(kind):
            default = field.default_factory() if field.default_factory is not MISSING else field.default
            yield f"{prefix}{field.name} = {_Shown(default)!r}"


def _task_options() -> Iterator[str]:
    for name in TASK_OPTIONS:
        yield f"{name} = {_Shown(vars(TaskDefaults)[name])!r}"


def _submission_options() -> list[str]:
    """Return the options of a submission, from the text of a module that only type checkers can import."""
    place = find_spec("onejob.celery.submission.call_types")
    assert place is not None
    tree = ast.parse(Path(str(place.origin)).read_text(encoding="utf-8"))
    kinds = [each for each in tree.body if isinstance(each, ast.ClassDef) and each.name in SUBMISSION_OPTIONS]
    return sorted(ast.unparse(each.target) for kind in kinds for each in kind.body if isinstance(each, ast.AnnAssign))


def _commands(name: str, command: click.Command) -> Iterator[str]:
    """Yield each command with its options and, in capitals, its arguments."""
    options = [each.opts[-1] if isinstance(each, click.Option) else str(each.name).upper() for each in command.params]
    yield " ".join([name, *options])
    if isinstance(command, click.Group):
        for each in sorted(command.commands):
            yield from _commands(f"{name} {each}", command.commands[each])


def _routes() -> Iterator[str]:
    """Yield each route with its parameters (headers in parentheses), and each schema of a body with its fields."""
    with TemporaryDirectory() as folder, celery.Celery("surface", broker="memory://", set_as_current=False) as app:
        app.conf.onejob_store = f"sqlite:///{folder}/ledger.db"
        onejob.task(app, name="task", expose=True, shared=False)(print_order)
        document: dict[str, Any] = create_app(app).openapi()
        app_state_of(app).ledger.close()
    for path, methods in sorted(document["paths"].items()):
        for method, operation in sorted(methods.items()):
            asked = [each for each in operation.get("parameters", ()) if each["in"] != "path"]
            shown = [each["name"] if each["in"] == "query" else f"({each['name']})" for each in asked]
            yield " ".join([method.upper(), path, *shown])
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield f"{name}: {', '.join(schema.get('enum') or sorted(schema.get('properties', ())))}"


def print_order(order_id: int) -> None:
    """Stand in for the body of an exposed task."""


if __name__ == "__main__":
    GOLDEN.write_text("\n".join(surface()), encoding="utf-8")
