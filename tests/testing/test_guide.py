"""The guide to testing, docs/guides/testing.md, and examples/testing: their tests pass, as a user runs them."""

import shutil

import pytest

from tests.tiers import deep
from website.blocks import Page, read
from website.navigation import ROOT

pytest_plugins = ["pytester"]
GUIDE = ROOT / "docs" / "guides" / "testing.md"
EXAMPLE = ROOT / "examples" / "testing"
QUICK = "not crash"
"""What selects the tests that take no matrix: those take more than 10 seconds on a busy machine."""


def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, select: str) -> pytest.RunResult:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    options = ["-p", "onejob.testing.plugin", "-p", "no:cacheprovider", "-W", "error"]
    return pytester.runpytest_subprocess(*options, "-k", select)


@pytest.fixture
def page(pytester: pytest.Pytester) -> Page:
    """Return the guide, whose files are where pytest runs."""
    guide = read("docs/guides/testing.md", GUIDE.read_text(encoding="utf-8"))
    pytester.makepyfile(**guide.files(only_run=True))
    (ini,) = (block.code for block in guide.blocks if block.language == "ini")
    pytester.makeini(ini)
    return guide


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


@pytest.mark.parametrize(("select", "passed", "others"), [
    (QUICK, 4, 1 + 4 * 10), pytest.param("crash", 1 + 4 * 10, 4, marks=deep),
])  # fmt: skip
def test_the_tests_of_the_example_pass(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, select: str, passed: int, others: int
) -> None:
    """The example is a project whose tests pass, and whose task survives every fault."""
    for name in ("shop.py", "test_shop.py", "pytest.ini"):
        shutil.copy(EXAMPLE / name, pytester.path / name)
    run(pytester, monkeypatch, select).assert_outcomes(passed=passed, deselected=others)
