"""The test suites of the replaced libraries run on the shims, as far as their sources can be reached."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.compat import peer_suites

if TYPE_CHECKING:
    from collections.abc import Mapping

SOURCE = "ONEJOB_PEER_SUITES"
"""Environment variable: a folder with the archives, for a machine that cannot reach them."""


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_their_own_suites_pass(capfd: pytest.CaptureFixture[str]) -> None:
    """All tests of both libraries pass on the shims, but for those that the list gives a reason for."""
    source = os.environ.get(SOURCE)
    code = peer_suites.main(["--source", source] if source else [])
    told = capfd.readouterr()
    if code == peer_suites.UNREACHABLE:
        pytest.skip(told.err.strip().splitlines()[-1])
    assert code == 0, told.out


@pytest.mark.parametrize(
    ("outcome", "differences"),
    [
        ({"known": "failure: it", "other": "passed"}, []),
        ({"known": "passed", "other": "passed"}, ["lib (alone): known is listed as failing, and passes"]),
        ({"known": "error: it", "other": "failure: no"}, ["lib (alone): other does not pass: failure: no"]),
        ({"known": "error: it", "unsteady": "failure: no"}, []),
    ],
)
def test_a_difference_to_the_list_is_reported(outcome: Mapping[str, str], differences: list[str]) -> None:
    """A failure without a reason and a reason without a failure are differences; a test that varies is none."""
    suite = {"fails_alone": {"known": "a reason"}, "varies": {"unsteady": "a reason"}}
    assert peer_suites.compare("lib", "alone", outcome, suite) == differences


def test_a_source_that_cannot_be_reached_is_no_pass(capsys: pytest.CaptureFixture[str], tmp_path: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """Without a source the exit code is 3, and the message says what is missing."""
    monkeypatch.setattr(peer_suites, "CACHE", tmp_path / "cache")
    assert peer_suites.main(["--source", str(tmp_path)]) == peer_suites.UNREACHABLE
    assert "has no celery-singleton.tar" in capsys.readouterr().err


def test_only_tests_with_the_right_digest_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an archive only the tests are kept, and tests with another digest are refused and removed."""
    monkeypatch.setattr(peer_suites, "CACHE", tmp_path / "cache")
    with tarfile.open(tmp_path / "lib.tar", "w") as archive:
        for name in ("lib-1/tests/test_it.py", "lib-1/lib/code.py", "lib-1/tests/../../outside.py"):
            entry = tarfile.TarInfo(name)
            entry.size = 4
            archive.addfile(entry, io.BytesIO(b"pass"))
    suite: dict[str, Any] = {"commit": "0123456789abcdef", "digest": "wrong", "repository": "nobody/lib"}
    with pytest.raises(ValueError, match="their source has changed") as raised:
        peer_suites.fetch("lib", suite, tmp_path)
    right = str(raised.value).partition("the digest ")[2].partition(",")[0]
    folder = peer_suites.fetch("lib", suite | {"digest": right}, tmp_path)
    assert [str(path.relative_to(folder)) for path in folder.rglob("*.py")] == [str(Path("tests") / "test_it.py")]
