"""The package and its automation: locks fit what is declared, workflows run targets of make and trust nobody."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any

import yaml
from packaging.requirements import Requirement

from checks.pages import REPOSITORY
from checks.project import check, differences, line_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checks.project import Project

LOCKS: dict[str, tuple[tuple[str, ...] | None, tuple[str, ...]]] = {
    "dev": (("demo", "django", "opentelemetry", "postgres", "server", "wsgi"), ("build", "docs", "lint", "test")),
    "demo": (("demo",), ("build",)),
    "server": (("server", "postgres"), ("build",)),
    "oldest": (("django", "opentelemetry", "postgres", "server", "wsgi"), ()),
    "uv": (None, ("install",)),
}
"""The extras and the groups that each lock is made from; without extras, it is not that of an environment of ours."""
WORKFLOWS = ".github/workflows/"
FORMS = ".github/ISSUE_TEMPLATE/"
PINNED = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40}")
FIELDS = {"textarea", "input", "dropdown", "checkboxes", "markdown"}


def pyproject(project: Project) -> dict[str, Any]:
    """Return pyproject.toml as data."""
    return tomllib.loads(project["pyproject.toml"])


def _declared(declared: dict[str, Any], lock: str) -> Iterator[Requirement]:
    """Yield what pyproject.toml asks of the environment that a lock makes."""
    extras, groups = LOCKS[lock]
    asked = [] if extras is None else list(declared["project"]["dependencies"])
    asked += [text for extra in extras or () for text in _of_extra(declared, extra)]
    asked += [text for group in groups for text in declared["dependency-groups"][group]]
    yield from map(Requirement, asked)


def _of_extra(declared: dict[str, Any], extra: str) -> Iterator[str]:
    """Yield what an extra asks for, and what the extras of ours ask for that it names."""
    for text in declared["project"]["optional-dependencies"][extra]:
        own = re.fullmatch(r"onejob\[([\w,]+)\]", text)
        if own:
            for name in own[1].split(","):
                yield from _of_extra(declared, name)
        else:
            yield text


def _locked(text: str) -> dict[str, str]:
    """Return the versions that a lock names."""
    return dict(re.findall(r"^([a-z0-9.-]+)(?:\[[a-z,]+\])?==(\S+)", text, re.MULTILINE))


@check
def locks(project: Project) -> Iterator[str]:
    """A lock has an allowed version of all that is declared, each with its hashes, and does not say where to get it."""
    declared = pyproject(project)
    tested = _locked(project["requirements/dev.txt"])
    for lock in LOCKS:
        place = f"requirements/{lock}.txt"
        text = project[place]
        versions = _locked(text)
        for asked in _declared(declared, lock):
            if versions.get(asked.name, "") not in asked.specifier:
                yield f"{place}:{line_of(text, f'{asked.name}==')}: {versions.get(asked.name)} is not {asked}"
        for entry in re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]:
            name = re.split(r"[=\[ ]", entry)[0]
            if name not in versions or "--hash=sha256:" not in entry:
                yield f"{place}:{line_of(text, entry)}: {name} has no version, or no hash"
        for told in re.findall(r"\w+://|^-.*|@ .*", text, re.MULTILINE):
            yield f"{place}:{line_of(text, told)}: a lock does not say where to get packages: {told}"
        if lock in {"demo", "server"}:
            for name, version in sorted(set(versions.items()) - set(tested.items())):
                yield f"{place}:{line_of(text, f'{name}==')}: the tests run with another version than {version}"


@check
def package_links(project: Project) -> Iterator[str]:
    """The metadata of the package leads to its documentation, its source, its changes and its issues."""
    urls: dict[str, str] = pyproject(project)["project"]["urls"]
    yield from differences(
        "pyproject.toml", "project.urls", {*urls}, {"Documentation", "Source", "Changelog", "Issues"}
    )
    for url in urls.values():
        if REPOSITORY.match(url) and not project.has(REPOSITORY.sub("", url)):
            yield f"pyproject.toml:{line_of(project['pyproject.toml'], url)}: there is no {url}"


def _explained(project: Project) -> set[str]:
    """Return the targets of the Makefile that have a line of help."""
    return set(re.findall(r"^([a-z-]+):.*## \w", project["Makefile"], re.MULTILINE))


@check
def make_help(project: Project) -> Iterator[str]:
    """Each target that a person may ask for has one line of help."""
    phony = re.search(r"^\.PHONY: (.*)$", project["Makefile"], re.MULTILINE)
    targets = set(phony[1].split()) - {"FORCE"} if phony else set()
    for target in sorted(targets ^ _explained(project)):
        yield f"Makefile:{line_of(project['Makefile'], f'{target}:')}: {target} has no help, or is not in .PHONY"


def _workflows(project: Project) -> Iterator[tuple[str, dict[str, Any], list[dict[str, Any]]]]:
    """Yield each workflow: its place, itself as data, and the steps of all of its jobs."""
    for place, text in project.under(WORKFLOWS, ".yml").items():
        loaded: dict[str, Any] = yaml.safe_load(text)
        yield place, loaded, [step for job in loaded["jobs"].values() for step in job["steps"]]


def _targets_run(steps: list[dict[str, Any]]) -> set[str]:
    """Return the targets of make that steps run."""
    return set(re.findall(r"^make ([a-z-]+)", "\n".join(step.get("run", "") for step in steps), re.MULTILINE))


@check
def workflows(project: Project) -> Iterator[str]:
    """A workflow runs targets of make; its actions are pinned, its rights read-only, and no event's text is run."""
    for place, workflow, steps in _workflows(project):
        text = project[place]
        for target in sorted(_targets_run(steps) - _explained(project)):
            yield f"{place}:{line_of(text, f'make {target}')}: the Makefile has no target {target}"
        for action in (step["uses"] for step in steps if "uses" in step):
            if not PINNED.fullmatch(action):
                yield f"{place}:{line_of(text, action)}: {action} is not pinned to a commit"
        if workflow["permissions"] != {"contents": "read"}:
            yield f"{place}:{line_of(text, 'permissions:')}: a workflow may only read; a job may have more rights"
        for run in (step["run"] for step in steps if "${{ github.event" in step.get("run", "")):
            yield f"{place}:{line_of(text, run.splitlines()[0])}: the text of an event would be run"
        for name, job in workflow["jobs"].items():
            if "timeout-minutes" not in job:
                yield f"{place}:{line_of(text, f'  {name}:')}: the job {name} has no timeout-minutes"


@check
def workflow_pins(project: Project) -> Iterator[str]:
    """What a workflow installs by itself, which no tool updates, has the version and a hash of our locks."""
    locks = [project[f"requirements/{lock}.txt"] for lock in LOCKS]
    for place, _, _ in _workflows(project):
        text = project[place]
        for pin, digest in re.findall(r"([a-z0-9.-]+==\S+) --hash=(sha256:\w+)", text):
            if not any(f"{pin} " in lock and digest in lock for lock in locks):
                yield f"{place}:{line_of(text, pin)}: {pin} with this hash is in no lock: take those of `make lock`"


@check
def tested_pythons(project: Project) -> Iterator[str]:
    """The checks run on Linux and on macOS, on each Python that the metadata of the package names."""
    place = f"{WORKFLOWS}checks.yml"
    matrix = yaml.safe_load(project[place])["jobs"]["test"]["strategy"]["matrix"]
    labels = pyproject(project)["project"]["classifiers"]
    supported = [label.rpartition(" ")[2] for label in labels if re.search(r":: 3\.\d+$", label)]
    systems = {system.partition("-")[0] for system in matrix["os"]}
    line = f"{place}:{line_of(project[place], 'matrix:')}"
    yield from differences(line, "the tested Pythons", matrix["python"], supported)
    yield from differences(line, "the tested systems", systems, {"ubuntu", "macos"})


@check
def publication(project: Project) -> Iterator[str]:
    """One job has the right to get an identity for the package index; it runs no code of the repository."""
    place = f"{WORKFLOWS}release.yml"
    jobs = yaml.safe_load(project[place])["jobs"]
    allowed = [name for name, job in jobs.items() if job.get("permissions", {}).get("id-token") == "write"]
    yield from differences(f"{place}:{line_of(project[place], 'id-token')}", "who may publish", allowed, ["publish"])
    if any("checkout" in step.get("uses", "") for step in jobs["publish"]["steps"]):
        yield f"{place}:{line_of(project[place], '  publish:')}: the job that publishes checks out the repository"
    if any("secrets." in str(step) for job in jobs.values() for step in job["steps"]):
        yield f"{place}:{line_of(project[place], 'secrets.')}: a release needs no secret"


@check
def hooks(project: Project) -> Iterator[str]:
    """Hooks are targets that `make check` runs, and all that it runs is run for pull requests, too."""
    place = ".pre-commit-config.yaml"
    text = project[place]
    checks = set(re.findall(r"^check (\S+)", project[".ci/run"], re.MULTILINE))
    for hook in yaml.safe_load(text)["repos"][0]["hooks"]:
        if hook["entry"].removeprefix("make ") not in checks:
            yield f"{place}:{line_of(text, hook['entry'])}: `make check` does not run `{hook['entry']}`"
    run = next(
        (_targets_run(steps) for name, _, steps in _workflows(project) if name == f"{WORKFLOWS}checks.yml"), set()
    )
    for target in sorted(checks - run):
        yield f"{WORKFLOWS}checks.yml:1: does not run `make {target}`, which `make check` runs"


@check
def issue_forms(project: Project) -> Iterator[str]:
    """An issue form has a name, a description and fields with ids of their own."""
    for place, text in project.under(FORMS, ".yml").items():
        loaded = yaml.safe_load(text)
        if place.endswith("/config.yml"):
            for link in loaded["contact_links"]:
                yield from differences(f"{place}:1", "a contact", {*link}, {"name", "url", "about"})
            continue
        ids = [field.get("id", "") for field in loaded["body"]]
        for number, name in enumerate(ids):
            if not name or name in ids[:number]:
                yield f"{place}:{line_of(text, f'id: {name}')}: a field has no id of its own: {name!r}"
        for kind in {field["type"] for field in loaded["body"]} - FIELDS:
            yield f"{place}:{line_of(text, f'type: {kind}')}: there is no field of the type {kind}"
        if not loaded.get("name") or not loaded.get("description"):
            yield f"{place}:1: a form has a name and a description"
