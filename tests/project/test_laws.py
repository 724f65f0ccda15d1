"""Each test states a law and can fail."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tests.project.tree import ROOT, functions, modules

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.project.tree import Function

VERDICTS = frozenset({"fail", "raises", "run_state_machine_as_test"})
"""Calls that make a test fail, as an assertion does."""


def is_test(function: Function) -> bool:
    """Tell whether pytest collects a function."""
    return function.name.startswith("test_")


def states_a_law(test: Function) -> bool:
    """Tell whether a test's docstring begins with a whole sentence."""
    law = (ast.get_docstring(test) or "").partition("\n\n")[0]
    return " " in law and law.endswith((".", "?"))


def asserts(function: Function, helpers: frozenset[str]) -> bool:
    """Tell whether a function asserts something that may be false, itself or by calling one of `helpers`."""
    nodes = list(ast.walk(function))
    called = {ast.unparse(node.func).rpartition(".")[2] for node in nodes if isinstance(node, ast.Call)}
    own = any(isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant) for node in nodes)
    return own or bool(called & helpers)


def asserting(found: Iterable[Function]) -> frozenset[str]:
    """Return the names of the helpers that assert, also those that do it through other helpers."""
    helpers = [function for function in found if not is_test(function)]
    names = VERDICTS
    while more := {helper.name for helper in helpers if asserts(helper, names)} - names:
        names |= more
    return names


def refused(sources: Iterable[str]) -> list[str]:
    """Return the tests in some modules that state no law, or cannot fail."""
    found = [function for source in sources for function in functions(source)]
    helpers = asserting(found)
    return [test.name for test in found if is_test(test) and not (states_a_law(test) and asserts(test, helpers))]


def test_every_test_states_a_law_and_can_fail() -> None:
    """Every test says in a sentence what holds, and asserts it."""
    sources = [path.read_text(encoding="utf-8") for path in modules(ROOT / "tests")]
    assert any(is_test(function) for source in sources for function in functions(source))
    assert refused(sources) == []


def test_empty_tests_are_seen() -> None:
    """A test without a sentence, without an assertion, or with one that is always true, is refused."""
    law = '    """Water is wet."""\n'
    source = (
        "def wet(x):\n    assert x\n\ndef still_wet(x):\n    wet(x)\n\ndef idle(x):\n    return x\n"
        "def test_mute():\n    assert x\n"
        f"def test_idle():\n{law}    idle(x)\n"
        f"def test_true():\n{law}    assert True\n"
        f"def test_good():\n{law}    assert x\n"
        f"def test_helped():\n{law}    still_wet(x)\n"
    )
    assert refused([source]) == ["test_mute", "test_idle", "test_true"]
