"""The guide to testing, docs/guides/testing.md, and examples/testing: their tests pass, as a user runs them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.tiers import deep
from website.blocks import read
from website.navigation import ROOT

if TYPE_CHECKING:
    from website.blocks import Page

pytest_plugins = ["pytester"]
GUIDE = ROOT / "docs" / "guides" / "testing.md"
EXAMPLE = ROOT / "examples" / "testing"


QUICK = "not crash"
"""What selects the tests that take no matrix: those take more than 10 seconds on a busy machine."""


def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, select: str = "") -> pytest.RunResult:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    options = ["-p", "onejob.testing.plugin", "-p", "no:cacheprovider", "-W", "error"]
    return pytester.runpytest_subprocess(*options, *(["-k", select] if select else []))


@pytest.fixture
def page(pytester: pytest.Pytester) -> Page:
    """Return the guide, whose files are where pytest runs."""
    guide = read("docs/guides/testing.md", GUIDE.read_text(encoding="utf-8"))
    pytester.makepyfile(**guide.files(only_run=True))
    (ini,) = (block.code for block in guide.blocks if block.language == "ini")
    pytester.makeini(ini)
    return guide


@pytest.fixture
def example(pytester: pytest.Pytester) -> None:
    """Copy the example to where pytest runs."""
    for name in ("shop.py", "test_shop.py", "pytest.ini"):
        shutil.copy(EXAMPLE / name, pytester.path / name)


def test_the_tests_of_the_guide_pass(page: Page, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of the guide, in the files that it names, are tests that pass."""
    assert set(page.files(only_run=True)) == {"shop", "test_shop", "test_case"}
    run(pytester, monkeypatch, QUICK).assert_outcomes(passed=7, deselected=1 + 4 * 6)


@deep
def test_the_matrices_of_the_guide_pass(page: Page, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task of the guide survives every fault; without its effect key, it fails with the lines that are shown."""
    run(pytester, monkeypatch, "crash").assert_outcomes(passed=1 + 4 * 6, deselected=7)
    shop = page.files(only_run=True)["shop"].replace('key=job.effect_key("charge")', "key=None")
    pytester.makepyfile(shop=shop)
    result = run(pytester, monkeypatch, "no_crash")
    (shown,) = (block.code for block in page.blocks if block.language == "text")
    said = " ".join(" ".join(line.removeprefix("E  ") for line in result.stdout.lines).split())
    assert " ".join(shown.split()) in said


def test_the_tests_of_the_example_pass(
    example: None, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example is a project whose tests pass."""
    run(pytester, monkeypatch, QUICK).assert_outcomes(passed=4, deselected=1 + 4 * 10)


@deep
def test_the_matrices_of_the_example_pass(
    example: None, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task of the example survives every fault."""
    run(pytester, monkeypatch, "crash").assert_outcomes(passed=1 + 4 * 10, deselected=4)
