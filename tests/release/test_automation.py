"""What the repository automates runs the commands that a person runs, on what the package says it supports."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.cases import for_each
from tests.project.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORKFLOWS = {path.stem: path for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))}
PINNED = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40}")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def workflow(name: str) -> dict[str, Any]:
    """Return a workflow as data."""
    loaded: dict[str, Any] = yaml.safe_load(WORKFLOWS[name].read_text(encoding="utf-8"))
    return loaded


def steps(name: str) -> Iterator[dict[str, Any]]:
    """Return all steps of a workflow."""
    for job in workflow(name)["jobs"].values():
        yield from job["steps"]


def targets() -> set[str]:
    """Return the targets of the Makefile."""
    return set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


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


@for_each("name", WORKFLOWS)
def test_workflows_run_targets_of_make(name: str) -> None:
    """A workflow checks with the commands of the Makefile, and each of them exists."""
    commands = "\n".join(step.get("run", "") for step in steps(name))
    assert set(re.findall(r"^make ([a-z-]+)", commands, re.MULTILINE)) - targets() == set()


@for_each("name", WORKFLOWS)
def test_workflows_trust_nobody(name: str) -> None:
    """Actions are pinned to commits, rights are read-only unless a job needs more, and no event's text runs as code."""
    used = [step["uses"] for step in steps(name) if "uses" in step]
    assert [action for action in used if not PINNED.fullmatch(action)] == []
    assert workflow(name)["permissions"] == {"contents": "read"}
    assert [step["run"] for step in steps(name) if "${{ github.event" in step.get("run", "")] == []
    assert [job for job, content in workflow(name)["jobs"].items() if "timeout-minutes" not in content] == []


def test_every_supported_python_is_tested_on_both_systems() -> None:
    """The checks run on Linux and on macOS, on each Python that the metadata of the package names."""
    matrix = workflow("checks")["jobs"]["test"]["strategy"]["matrix"]
    supported = [label.rpartition(" ")[2] for label in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", label)]
    assert matrix["python"] == supported
    assert {system.partition("-")[0] for system in matrix["os"]} == {"ubuntu", "macos"}


def test_only_publishing_may_publish() -> None:
    """One job has the right to get an identity for the package index; it runs no code of the repository."""
    jobs = workflow("release")["jobs"]
    assert [name for name, job in jobs.items() if job.get("permissions", {}).get("id-token") == "write"] == ["publish"]
    assert [step for step in jobs["publish"]["steps"] if "checkout" in step.get("uses", "")] == []
    assert [step for step in steps("release") if "secrets." in str(step)] == []


def test_hooks_are_checks() -> None:
    """The hooks before a commit are targets of make that `make check` runs, too."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    checks = re.findall(r"^check (\S+)", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)
    assert {hook["entry"].removeprefix("make ") for hook in hooks} <= set(checks)


def test_the_checks_of_the_repository_are_those_of_a_person() -> None:
    """Each part of `make check` runs in the workflow of pull requests and pushes."""
    checks = re.findall(r"^check (\S+)", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)
    commands = "\n".join(step.get("run", "") for step in steps("checks"))
    assert set(checks) - set(re.findall(r"^make ([a-z-]+)", commands, re.MULTILINE)) == set()


@for_each("form", [path.name for path in sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))])
def test_issue_forms_can_be_shown(form: str) -> None:
    """An issue form has a name, a description and fields with ids of their own."""
    loaded = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / form).read_text(encoding="utf-8"))
    if form == "config.yml":
        assert all({"name", "url", "about"} == set(link) for link in loaded["contact_links"])
        return
    ids = [field["id"] for field in loaded["body"]]
    assert loaded["name"]
    assert loaded["description"]
    assert len(ids) == len(set(ids))
    assert {field["type"] for field in loaded["body"]} <= {"textarea", "input", "dropdown", "checkboxes", "markdown"}


def test_release_notes_are_the_section_of_the_version(tmp_path: Path) -> None:
    """The notes of a release are its section of the changelog, without the heading."""
    assert release_notes("v1.2.0", project(tmp_path, "## 1.2.0, 2026-12-01")) == "It is fast.\n"


@for_each(
    "tag, heading, problem",
    [
        ("v1.3.0", "## 1.2.0, 2026-12-01", "pyproject.toml has the version 1.2.0"),
        ("1.2.0", "## 1.2.0, 2026-12-01", "tag v1.2.0"),
        ("v1.2.0", "## 1.2.0, unreleased", "write the date"),
        ("v1.2.0", "## 1.1.9, 2026-12-01", "has no section"),
    ],
)
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
