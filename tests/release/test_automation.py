"""What the repository automates: the notes of a release, and the hooks before a commit."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from checks.project import ROOT
from tests.cases import for_each


def release_notes(tag: str, root: Path) -> str:
    """Return what `scripts/release-notes` prints for a tag in a project."""
    loader = importlib.machinery.SourceFileLoader("release_notes", str(ROOT / "scripts" / "release-notes"))
    spec = importlib.util.spec_from_loader("release_notes", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    notes: str = module.release_notes(tag, root)
    return notes


def project(folder: Path, heading: str) -> Path:
    """Write a project of version 1.2.0 with one section in its changelog, and return its folder."""
    (folder / "pyproject.toml").write_text('[project]\nversion = "1.2.0"\n', encoding="utf-8")
    (folder / "CHANGELOG.md").write_text(f"# Changes\n\n{heading}\n\nIt is fast.\n\n## 1.1.0, 2026-01-01\n\nOld.\n")
    return folder


def test_release_notes_are_the_section_of_the_version(tmp_path: Path) -> None:
    """The notes of a release are its section of the changelog, without the heading."""
    assert release_notes("v1.2.0", project(tmp_path, "## 1.2.0, 2026-12-01")) == "It is fast.\n"


@for_each("tag, heading, problem", [
    ("v1.3.0", "## 1.2.0, 2026-12-01", "pyproject.toml has the version 1.2.0"),
    ("1.2.0", "## 1.2.0, 2026-12-01", "tag v1.2.0"), ("v1.2.0", "## 1.2.0, unreleased", "write the date"),
    ("v1.2.0", "## 1.1.9, 2026-12-01", "has no section"),
])  # fmt: skip
def test_an_unfinished_release_is_refused(tmp_path: Path, tag: str, heading: str, problem: str) -> None:
    """A tag without its version, its section or its date publishes nothing, and the reason names what to do."""
    with pytest.raises(SystemExit, match=problem):
        release_notes(tag, project(tmp_path, heading))


def test_a_commit_runs_the_hooks(tmp_path: Path) -> None:
    """Before a commit, pre-commit runs each hook, and a failed one prevents the commit."""
    shutil.copyfile(ROOT / ".pre-commit-config.yaml", tmp_path / ".pre-commit-config.yaml")
    (tmp_path / "Makefile").write_text("lint types imports:\n\t@echo ran $@ && false\n", encoding="utf-8")
    (tmp_path / "a.py").touch()
    for command in (["git", "init", "-q"], ["git", "add", "-A"]):
        subprocess.run(command, cwd=tmp_path, check=True)
    command = [sys.executable, "-m", "pre_commit", "run"]
    home = os.environ | {"PRE_COMMIT_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, cwd=tmp_path, env=home, capture_output=True, text=True, check=False)
    ran = [line for line in done.stdout.splitlines() if line.startswith("ran ")]
    assert (done.returncode, ran) == (1, ["ran lint", "ran types", "ran imports"]), done.stdout
