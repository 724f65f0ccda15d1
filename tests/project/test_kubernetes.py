"""What `deploy/` has for Kubernetes, Compose and systemd runs commands that exist, and stops workers gracefully."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import celery
import pytest
import yaml
from celery.bin.base import CLIContext
from celery.bin.worker import worker as celery_worker

import onejob
from onejob.api.app import create_app
from onejob.cli import main
from onejob.cli.access import Access
from onejob.config import Settings
from tests.project.test_deploy import DEPLOY, UNITS, service
from tests.project.tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = DEPLOY / "kubernetes"
MARGIN = 10
"""How many seconds a worker needs at least after the grace of its runs: to requeue them, and to end."""


def manifests() -> list[dict[str, Any]]:
    """Return every object of the files that kustomization.yaml names."""
    named = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    return [each for name in named for each in yaml.safe_load_all((FOLDER / name).read_text())]


def found(kind: str, name: str) -> dict[str, Any]:
    """Return an object by its kind and name."""
    (each,) = [each for each in manifests() if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return each


def pods() -> dict[str, dict[str, Any]]:
    """Return the specification of each pod by the name of what makes it."""
    return {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]
        for each in manifests()
        if "template" in each.get("spec", {})
    }


def containers() -> list[dict[str, Any]]:
    """Return all containers."""
    return [each for pod in pods().values() for each in (*pod.get("initContainers", ()), *pod["containers"])]


def commands() -> list[list[str]]:
    """Return what the containers, their probes and their hooks execute; those of a shell one by one."""
    given = [each["command"] for each in containers()]
    for each in containers():
        hooks = [each.get(f"{name}Probe", {}) for name in ("startup", "liveness", "readiness")]
        hooks += [*each.get("lifecycle", {}).values()]
        given += [hook["exec"]["command"] for hook in hooks if "exec" in hook]
    shells = [re.findall(r"onejob [\w -]+", command[2]) for command in given if command[0] == "sh"]
    return [command for command in given if command[0] != "sh"] + [shlex.split(one) for each in shells for one in each]


def check_command(command: list[str]) -> None:
    """Parse a command as it would be executed; one that does not exist, or has a wrong option, raises."""
    program, *arguments = command
    if program == "onejob":
        context = main.make_context("onejob", [*arguments], obj=Access())
        name, sub, rest = main.resolve_command(context, [*context._protected_args, *context.args])
        assert sub is not None
        sub.make_context(name, rest, parent=context)
    elif program == "celery":
        assert arguments[:2] == ["-A", "examples.job_api.app"]
        assert arguments[2] == "worker"
        celery_worker.make_context(
            "worker", arguments[3:], obj=CLIContext(app=celery.Celery("x"), no_color=True, workdir=".")
        )
    else:
        assert program == "sleep"


def test_the_commands_exist() -> None:
    """Each command of a container, a probe or a hook is one of the command line, with options that it has."""
    assert {command[0] for command in commands()} == {"onejob", "celery", "sleep"}
    for command in commands():
        check_command(command)
    with pytest.raises(Exception, match="no-such"):
        check_command(["onejob", "probe", "--no-such", "file"])


def test_the_files_are_all_named() -> None:
    """kustomization.yaml names every manifest, and the secrets come from files that are not in the repository."""
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    assert {*kustomization["resources"], "kustomization.yaml"} == {path.name for path in FOLDER.glob("*.yaml")}
    generated = {
        each["name"]: each.get("envs", []) + each.get("files", []) for each in kustomization["secretGenerator"]
    }
    assert {file for files in generated.values() for file in files} == {*(FOLDER / ".gitignore").read_text().split()}
    references = set(
        re.findall(r"secret(?:Ref: \{ name|Name): ([\w-]+)", "".join(p.read_text() for p in FOLDER.glob("*.yaml")))
    )
    assert references == {*generated}
    assert {image["name"] for image in kustomization["images"]} == {each["image"] for each in containers()}


@pytest.mark.skipif(not shutil.which("kubectl"), reason="needs kubectl")
def test_kustomize_builds_the_manifests(tmp_path: Path) -> None:
    """Kustomize makes the secrets of their files, and every object refers to them by the names that they get."""
    shutil.copytree(FOLDER, tmp_path / "kubernetes")
    shutil.copy(FOLDER / "secret.env.example", tmp_path / "kubernetes" / "secret.env")
    (tmp_path / "kubernetes" / "keys.json").write_text("{}")
    build = ["kubectl", "kustomize", str(tmp_path / "kubernetes")]
    built = subprocess.run(
        build, capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    )
    objects = [*yaml.safe_load_all(built.stdout)]
    names = {each["metadata"]["name"] for each in objects if each["kind"] == "Secret"}
    assert len(objects) == len(manifests()) + len(names)
    assert {*re.findall(r"(?:secretRef:\n\s+name|secretName): (\S+)", built.stdout)} == names


def test_the_settings_are_read_by_the_app() -> None:
    """Each variable of the ConfigMap and of the secret is one that the app, or the command line, reads."""
    names = {*found("ConfigMap", "onejob-config")["data"]}
    names |= {line.partition("=")[0] for line in (FOLDER / "secret.env.example").read_text().splitlines()}
    app = (ROOT / "examples" / "job_api" / "app.py").read_text()
    assert {name for name in names if f'"{name}"' not in app} == set()


def test_a_stop_is_longer_than_the_grace_of_runs() -> None:
    """Kubernetes and Compose wait longer than the grace of the runs before they kill a worker, and a lease holds."""
    data = found("ConfigMap", "onejob-config")["data"]
    grace = float(data["JOB_API_SHUTDOWN_GRACE"])
    assert pods()["onejob-worker"]["terminationGracePeriodSeconds"] >= grace + MARGIN
    Settings(
        store="sqlite:///ledger.db", lease=float(data["JOB_API_LEASE"]), heartbeat=float(data["JOB_API_HEARTBEAT"])
    )
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["worker"]
    default = re.search(r":-(\d+)\}", compose["environment"]["JOB_API_SHUTDOWN_GRACE"])
    assert default is not None
    assert int(compose["stop_grace_period"].removesuffix("s")) >= int(default[1]) + MARGIN
    check_command(compose["healthcheck"]["test"][1:])


def test_the_api_stops_after_its_hook() -> None:
    """The API has time for its preStop hook and for open requests."""
    api = pods()["onejob-api"]
    hook = api["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert api["terminationGracePeriodSeconds"] >= int(hook[1]) + MARGIN


def test_the_probes_of_the_api_are_its_routes() -> None:
    """The liveness of the API asks neither the ledger nor the broker, its readiness both, and both paths exist."""
    api = pods()["onejob-api"]["containers"][0]
    app = celery.Celery("office", broker="memory://", set_as_current=False)
    app.conf.onejob_store = "sqlite:///ledger.db"
    define: Any = app.task
    define(base=onejob.Task, expose=True, shared=False, name="ping")(ping)
    routes = {*create_app(app).openapi()["paths"]}
    paths = {name: api[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert paths == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}
    assert {*paths.values()} <= routes


def ping() -> None:
    """Do nothing."""


def test_the_probes_of_a_worker_read_its_file() -> None:
    """All probes of a worker read the file that it writes, and only the liveness ignores the store."""
    path = found("ConfigMap", "onejob-config")["data"]["JOB_API_PROBE_FILE"]
    worker = pods()["onejob-worker"]["containers"][0]
    probes = {name: worker[f"{name}Probe"]["exec"]["command"] for name in ("startup", "liveness", "readiness")}
    assert {command[-1] for command in probes.values()} == {path}
    assert {name for name, command in probes.items() if "--ready" not in command} == {"liveness"}
    assert path.rpartition("/")[0] in {mount["mountPath"] for mount in worker["volumeMounts"]}
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["worker"]
    assert compose["healthcheck"]["test"][-1] == compose["environment"]["JOB_API_PROBE_FILE"]
    assert compose["environment"]["JOB_API_PROBE_FILE"].rpartition("/")[0] in compose["tmpfs"]


@pytest.mark.parametrize("container", containers(), ids=lambda each: each["name"])
def test_containers_take_no_rights(container: dict[str, Any]) -> None:
    """Each container has a read-only root, no capability, no way to more rights, and a limit of memory."""
    wanted = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert container["securityContext"] == wanted
    assert {"requests", "limits"} <= {*container["resources"]}


def test_pods_are_nobody() -> None:
    """Each pod runs as a user without rights, with the seccomp profile of the runtime and without a token."""
    for pod in pods().values():
        context = pod["securityContext"]
        assert context["runAsNonRoot"]
        assert context["runAsUser"] == 10001
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False


def test_labels_and_budgets_fit() -> None:
    """Each selector selects the pods of a Deployment, and each Deployment has a budget that lets a node be drained."""
    labels = {
        name: found("Deployment", name)["spec"]["template"]["metadata"]["labels"]
        for name in ("onejob-worker", "onejob-api")
    }
    for name, own in labels.items():
        assert found("Deployment", name)["spec"]["selector"]["matchLabels"] == own
        budget = found("PodDisruptionBudget", name)["spec"]
        assert budget == {"maxUnavailable": 1, "selector": {"matchLabels": own}}
        assert found("Deployment", name)["spec"]["replicas"] > budget["maxUnavailable"]
    assert found("Service", "onejob-api")["spec"]["selector"] == labels["onejob-api"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_stop_gracefully_and_start_again(unit: Path) -> None:
    """A systemd unit is restarted whenever it ends, and has time to stop; a worker's children are not signalled."""
    section = service(unit)
    assert section["Restart"] == ["always"]
    assert "StartLimitIntervalSec=0\n" in unit.read_text().partition("[Service]")[0]
    assert int(section["TimeoutStopSec"][0]) >= MARGIN
    for line in (*section["ExecStart"], *section["ExecStartPre"]):
        program, *arguments = shlex.split(line.replace("%", "x"))
        if program.endswith("/onejob"):
            check_command(["onejob", *arguments])
    assert section.get("KillMode", ["control-group"]) == (["mixed"] if "worker" in unit.name else ["control-group"])
