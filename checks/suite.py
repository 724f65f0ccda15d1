"""The tests: each states a law and can fail, and what is said of mutants is true."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from checks.project import check, functions, line_of, parsed
from onejob.doctor import catalogue
from tests.mutants import mutants_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checks.project import Function, Project

VERDICTS = frozenset({"fail", "raises", "run_state_machine_as_test"})
"""Calls that make a test fail, as an assertion does."""
MUTANTS = "tests/mutants.toml"
DOCTOR_TESTS = ("tests/doctor/", "tests/celery/test_worker_shown.py")
NAMED = re.compile(r"(?<![\w/.}])tests/[\w/]+\.(?:py|toml|json)\b")
"""A file of the tests, by its place in the project."""
GUIDE = "tests/README.md"
PACKED = 4
"""So many values may be compared in one assertion."""
SPOILT = {"tests/compat/test_peer_suites.py", "tests/project/test_checks.py", "website/blocks.py"}
"""Files that name what does not exist on purpose."""


class Found(NamedTuple):
    """What a function of the tests does: whether it asserts something that may be false, and what it calls."""

    place: str
    function: Function
    asserts: bool
    calls: frozenset[str]


@check
def laws(project: Project) -> Iterator[str]:
    """Every test says in a sentence what holds, and asserts it, itself or by a helper."""
    found = [
        _examine(place, function)
        for place, text in project.under("tests/", ".py").items()
        for function in functions(text)
    ]
    asserting = _asserting([each for each in found if not each.function.name.startswith("test_")])
    for place, test, asserts, calls in found:
        if not test.name.startswith("test_"):
            continue
        if not _states_a_law(test):
            yield f"{place}:{test.lineno}: {test.name}: the docstring of a test is one sentence, its law"
        if not asserts and not calls & asserting:
            yield f"{place}:{test.lineno}: {test.name} asserts nothing that may be false"


def _examine(place: str, function: Function) -> Found:
    nodes = list(ast.walk(function))
    asserts = any(isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant) for node in nodes)
    called = (node.func for node in nodes if isinstance(node, ast.Call))
    names = (each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in called)
    return Found(place, function, asserts, frozenset(names))


def _asserting(helpers: list[Found]) -> frozenset[str]:
    """Return the names of the helpers that assert, also those that do it through other helpers."""
    names = VERDICTS
    while more := {each.function.name for each in helpers if each.asserts or each.calls & names} - names:
        names |= more
    return names


def _states_a_law(test: Function) -> bool:
    """Return whether a test's docstring begins with a whole sentence."""
    law = (ast.get_docstring(test) or "").partition("\n\n")[0]
    return " " in law and law.endswith((".", "?"))


@check
def packed_assertions(project: Project) -> Iterator[str]:
    """An assertion compares a few values at once, and no truth values, which would not say what is wrong."""
    for place, text in project.under("tests/", ".py").items():
        for node in ast.walk(parsed(text)):
            if isinstance(node, ast.Assert) and _is_packed(node.test):
                yield f"{place}:{node.lineno}: assert each of these by itself, so that a failure shows what is wrong"


def _is_packed(test: ast.expr) -> bool:
    """Return whether an expression compares two tuples of many values, or with truth values in them."""
    match test:
        case ast.Compare(left=ast.Tuple(elts=left), ops=[ast.Eq()], comparators=[ast.Tuple(elts=right)]):
            return len(left) > PACKED or any(_is_truth_value(each) for each in [*left, *right])
    return False


def _is_truth_value(node: ast.expr) -> bool:
    match node:
        case ast.Compare() | ast.UnaryOp(op=ast.Not()) | ast.Constant(value=bool()):
            return True
    return False


@check
def mutants(project: Project) -> Iterator[str]:
    """Each mutant that is listed as equivalent exists, is one of a listed module, and has a reason."""
    text = project[MUTANTS]
    listed: dict[str, Any] = tomllib.loads(text)
    names: defaultdict[str, set[str]] = defaultdict(set)
    for entry in listed.get("equivalent", ()):
        names[entry["module"]].add(entry["function"])
    known = {mutant.key for module, within in names.items() for mutant in mutants_of(module, within)}
    for entry in listed.get("equivalent", ()):
        line = line_of(text, f'after = "{entry["after"]}"')
        if (entry["module"], entry["function"], entry["before"], entry["after"]) not in known or not entry["reason"]:
            yield f"{MUTANTS}:{line}: this mutant of {entry['module']} does not exist, or has no reason"
        if entry["module"] not in listed["tests"]:
            yield f"{MUTANTS}:{line}: {entry['module']} is not in the list of modules"


@check
def paths_of_tests(project: Project) -> Iterator[str]:
    """A file of the tests that a page, a setting or another file names exists."""
    for place, text in project.files.items():
        for number, line in enumerate(text.splitlines(), start=1) if "tests/" in text else ():
            for named in NAMED.findall(line):
                if not project.has(named) and place not in SPOILT:
                    yield f"{place}:{number}: there is no {named}"


@check
def suite_guide(project: Project) -> Iterator[str]:
    """The page on the tests names each fixture that tests share, and each helper in the folder of all tests."""
    named = set(re.findall(r"`([\w.]+)`", project[GUIDE]))
    for place, text in project.under("tests/", ".py").items():
        _, *folders, name = place.split("/")
        if not folders and not name.startswith(("test_", "__", "conftest")) and name not in named:
            yield f"{place}:1: {GUIDE} does not name {name}"
        if name == "conftest.py":
            for function in filter(_is_fixture, functions(text)):
                if function.name not in named:
                    yield f"{place}:{function.lineno}: {GUIDE} does not name the fixture {function.name}"


def _is_fixture(function: Function) -> bool:
    return any("pytest.fixture" in ast.unparse(each) for each in function.decorator_list)


@check
def doctor_tests(project: Project) -> Iterator[str]:
    """Each check of `onejob doctor` has a name of its own, says what to do, and is named by a test that finds it."""
    texts = "".join(text for folder in DOCTOR_TESTS for text in project.under(folder, ".py").values())
    names = [each.name for each in catalogue()]
    for each in catalogue():
        if f'"{each.name}"' not in texts or names.count(each.name) > 1:
            yield f"src/onejob/doctor:1: no test names the check {each.name}, or two checks have this name"
        if not (each.when and each.meaning and each.remedy):
            yield f"src/onejob/doctor:1: the check {each.name} does not say when, what it means, and what to do"
