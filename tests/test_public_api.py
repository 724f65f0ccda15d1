"""The package is imported lazily, and its exceptions can be pickled without losing their message or attributes."""

import copy
import inspect
import itertools
import pickle
import re
import subprocess
import sys
import typing
from difflib import unified_diff
from pathlib import Path
from typing import Any

import pytest

import onejob
from onejob import errors
from onejob.errors import JobInterrupted, OneJobError
from tests.cases import for_each
from tests.surface import GOLDEN, surface

NAMES_LIMIT = 24
DOCS = Path(__file__).parents[1] / "docs"


def test_the_package_and_its_pytest_plugin_import_no_celery() -> None:
    """Pytest imports the package for its plugin at each start: that imports neither Celery nor a ledger."""
    script = "import onejob.testing.plugin, sys; print(*(n for n in sys.modules if n.startswith(('celery', 'onejob'))))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(ran.stdout.split()) == {"onejob", "onejob.testing", "onejob.testing.plugin"}


def test_public_names_are_the_same_objects_at_each_use() -> None:
    """A name that is imported at its first use is then an attribute, which costs nothing more."""
    assert dir(onejob) == sorted(onejob.__all__)
    assert all(hasattr(onejob, name) for name in onejob.__all__)
    assert onejob.Task is vars(onejob)["Task"]
    assert {name for name in onejob.__all__ if hasattr(errors, name)} == {
        "DuplicateJobError", "OneJobError", "PermanentError", "StoreUnavailableError",
    }  # fmt: skip
    assert onejob.OneJobError is onejob.errors.OneJobError
    with pytest.raises(AttributeError, match="no attribute 'tusk'"):
        _ = onejob.tusk


def test_the_public_surface_is_the_agreed_one() -> None:
    """Every public name, parameter, setting, option, command and route is in a list, which changes by decision."""
    agreed, now = GOLDEN.read_text(encoding="utf-8").split("\n"), surface()
    changes = "\n".join(unified_diff(agreed, now, "agreed", "now", n=0, lineterm=""))
    assert not changes, (
        f"the public surface has changed:\n{changes}\n\nIf that is a decision, run `python -m tests.surface`, commit "
        "tests/surface.txt, and write in CHANGELOG.md what users have to know"
    )


def test_the_top_of_the_package_is_small() -> None:
    """`onejob` exports at most 24 names: what most programs need. All others are in modules of their own."""
    assert len(onejob.__all__) <= NAMES_LIMIT


def test_an_exception_that_a_page_names_is_public() -> None:
    """Whoever reads of an exception in the documentation can catch it by `onejob.errors.NAME`."""
    texts = [page.read_text() for page in sorted(DOCS.glob("**/*.md")) if page.parent.name != "decisions"]
    named = {name for name in re.findall(r"\b[A-Z][a-z]\w+", " ".join(texts)) if hasattr(errors, name)}
    kinds = {kind.__name__ for kind in ALL if not kind.__name__.startswith("_")}
    assert named & kinds <= set(errors.__all__)
    assert kinds - set(errors.__all__) == {"BrokerUnavailableError"}  # which a publisher and its callers handle
    assert {"PartlySubmittedError", "LeaseLost"} <= named


VALUES: dict[Any, Any] = {
    tuple[object, ...]: ("some", 1), str: "some text: 'quoted', ž", int: 1_800_000_000_000_001, float: 1_800_000_000.25,
}  # fmt: skip
ALL = sorted(
    (value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, BaseException)),
    key=lambda kind: kind.__name__,
)


def build(kind: type[BaseException]) -> BaseException:
    """Build an exception with a value for each parameter of its class, or else with a message."""
    own = kind.__init__ is not BaseException.__init__ and "__init__" in _defined(kind)
    if not own:
        return kind("a message")
    hints = typing.get_type_hints(kind.__init__)
    names = list(inspect.signature(kind).parameters)
    return kind(**{name: VALUES[hints[name]] for name in names})


def _defined(kind: type) -> set[str]:
    """Return what a class and its bases in this module define themselves."""
    return {name for base in kind.__mro__ if base.__module__ == errors.__name__ for name in vars(base)}


@for_each("protocol, kind", itertools.product(range(pickle.HIGHEST_PROTOCOL + 1), ALL))
def test_an_exception_survives_pickling(kind: type[BaseException], protocol: int) -> None:
    """Class, message, arguments and attributes are the same after unpickling and copying."""
    error = build(kind)
    other = pickle.loads(pickle.dumps(error, protocol))  # noqa: S301 - pickled by this test
    assert type(other) is kind
    assert (str(other), other.args, vars(other)) == (str(error), error.args, vars(error))
    assert (str(copy.copy(error)), vars(copy.deepcopy(error))) == (str(error), vars(error))


@for_each("kind", ALL)
def test_errors_and_signals_are_two_families(kind: type[BaseException]) -> None:
    """`except Exception` catches every error and no signal; a message has every argument, which each attribute is."""
    assert issubclass(kind, OneJobError) is not issubclass(kind, JobInterrupted)
    assert issubclass(kind, Exception) is issubclass(kind, OneJobError)
    error = build(kind)
    if kind is errors.PartlySubmittedError:  # whose results are too many for a message
        assert str(errors.PartlySubmittedError(("admitted", errors.StoreError("no room")))) == (
            "1 of 2 submissions were not written: no room"
        )
        return
    assert all(str(argument) in str(error) or repr(argument) in str(error) for argument in error.args)
    assert set(vars(error).values()) <= set(error.args)
