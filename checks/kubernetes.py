"""What `deploy/kubernetes` has fits the schemas, runs commands that exist, takes no rights, and stops gracefully."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import kubernetes_validate
import yaml

from checks.deploy import MARGIN
from checks.project import check, differences, line_of
from onejob.config import Settings
from onejob.errors import ConfigurationError
from website.shell import fault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checks.project import Project

FOLDER = "deploy/kubernetes/"
KUSTOMIZATION = f"{FOLDER}kustomization.yaml"
API, WORKER, MIGRATE = "onejob-api", "onejob-worker", "onejob-migrate"
SCHEMAS = "1.30"
"""The version of Kubernetes whose schemas the manifests have to fit."""
RIGHTS = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
NOBODY = {
    "runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"},
}  # fmt: skip
VOLUMES = {API: {"onejob-secret", "onejob-keys"}, WORKER: {"onejob-secret"}, MIGRATE: {"onejob-owner"}}
"""The secrets that each pod mounts."""
PROBES = {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}
"""The routes of the API's probes: its liveness asks neither the ledger nor the broker."""

INTERNAL = (
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16", "172.16.0.0/12",
    "192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/3", "::1/128", "64:ff9b::/96", "fc00::/7",
    "fe80::/10", "::ffff:0:0/96",
)  # fmt: skip
"""The networks of clusters, clouds and machines, which webhooks must not reach."""


class Manifests:
    """The objects of the files that kustomization.yaml names."""

    def __init__(self, project: Project) -> None:
        named = yaml.safe_load(project[KUSTOMIZATION])["resources"]
        self.objects = [each for name in named for each in yaml.safe_load_all(project[FOLDER + name])]
        self.pods: dict[str, dict[str, Any]] = {
            each["metadata"]["name"]: each["spec"]["template"]["spec"]
            for each in self.objects
            if "template" in each.get("spec", {})
        }
        """The specification of each pod by the name of what makes it."""
        self.containers = [each for pod in self.pods.values() for each in _containers(pod)]

    def find(self, kind: str, name: str) -> dict[str, Any]:
        """Return an object by its kind and name; an empty one if there is none."""
        found = (each for each in self.objects if (each["kind"], each["metadata"]["name"]) == (kind, name))
        return next(found, {})

    def settings(self) -> dict[str, str]:
        """Return the variables of the ConfigMap."""
        return dict(self.find("ConfigMap", "onejob-config").get("data", {}))


def _containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def _commands(container: dict[str, Any]) -> Iterator[list[str]]:
    """Yield what a container, its probes and its hooks execute; the commands of a shell one by one."""
    given = [container["command"]] if "command" in container else []
    hooks = [container.get(f"{name}Probe", {}) for name in PROBES] + [*container.get("lifecycle", {}).values()]
    given += [hook["exec"]["command"] for hook in hooks if "exec" in hook]
    for command in given:
        if command[0] == "sh":
            yield from (shlex.split(one) for one in re.findall(r"onejob [\w -]+", command[2]))
        else:
            yield command


@check
def manifest_schemas(project: Project) -> Iterator[str]:
    """Each object has the fields that its kind has in Kubernetes, and no other."""
    for place, text in project.under(FOLDER, ".yaml").items():
        for each in yaml.safe_load_all(text) if place != KUSTOMIZATION else ():
            if each["apiVersion"].startswith(("monitoring.coreos.com/", "keda.sh/")):
                continue  # of the Prometheus operator, and of KEDA
            try:
                kubernetes_validate.validate(each, SCHEMAS, strict=True)
            except kubernetes_validate.ValidationError as error:
                yield f"{place}:1: {each['kind']}: {error.message}"


@check
def manifest_commands(project: Project) -> Iterator[str]:
    """Each command of a container, a probe or a hook exists, with options that it has."""
    for container in Manifests(project).containers:
        for command in _commands(container):
            if command[0] not in {"onejob", "celery", "sleep"} or (problem := fault(command)):
                told = problem if command[0] in {"onejob", "celery", "sleep"} else "no such program in the image"
                yield f"{FOLDER}:1: {container['name']}: {' '.join(command)}: {told}"


@check
def manifest_files(project: Project) -> Iterator[str]:
    """kustomization.yaml names every manifest, also those to choose, and makes the secrets that the pods mount."""
    text = project[KUSTOMIZATION]
    kustomization, manifests = yaml.safe_load(text), Manifests(project)
    files = {PurePosixPath(place).name for place in project.under(FOLDER, ".yaml") if place != KUSTOMIZATION}
    yield from differences(f"{KUSTOMIZATION}:1", "resources", {*re.findall(r"  (?:# )?- ([a-z]+\.yaml)", text)}, files)
    generated = {each["name"]: each.get("files", []) for each in kustomization["secretGenerator"]}
    sources = {file.partition("=")[2] or file for given in generated.values() for file in given}
    made = {*re.findall(r"[> ](secrets/[\w.-]+)", text.partition("\napiVersion")[0])}
    yield from differences(f"{KUSTOMIZATION}:1", "the secrets that the comment makes", made, sources)
    volumes = {name: {each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each}
               for name, pod in manifests.pods.items()}  # fmt: skip
    yield from differences(f"{FOLDER}:1", "the secrets that pods mount", volumes, VOLUMES)
    yield from differences(f"{KUSTOMIZATION}:1", "secrets", {*generated}, set[str]().union(*VOLUMES.values()))
    images = {each["image"] for each in manifests.containers}
    yield from differences(f"{KUSTOMIZATION}:1", "images", {each["name"] for each in kustomization["images"]}, images)
    if "/deploy/kubernetes/secrets/\n" not in project[".gitignore"]:
        yield ".gitignore:1: /deploy/kubernetes/secrets/ is not ignored"


@check
def manifest_scaler(project: Project) -> Iterator[str]:
    """The scaler scales the workers, each for as many jobs as it runs at a time."""
    spec = yaml.safe_load(project[f"{FOLDER}scale.yaml"])["spec"]
    worker = Manifests(project).find("Deployment", spec["scaleTargetRef"]["name"])
    if not worker:
        yield f"{FOLDER}scale.yaml:1: there is no deployment {spec['scaleTargetRef']['name']}"
        return
    (command,) = (container["command"] for container in worker["spec"]["template"]["spec"]["containers"])
    for trigger in spec["triggers"]:
        if f"--concurrency={trigger['metadata']['threshold']}" not in command:
            yield f"{FOLDER}scale.yaml:1: the threshold is not the concurrency of a worker"


@check
def manifest_build(project: Project) -> Iterator[str]:
    """Kustomize, where there is kubectl, makes the secrets, and every object refers to them by their new names."""
    if not shutil.which("kubectl"):
        return
    with TemporaryDirectory() as folder:
        for place, text in project.under(FOLDER).items():
            Path(folder, PurePosixPath(place).name).write_text(text)
        Path(folder, "secrets").mkdir()
        for name in ("store", "owner-store", "broker", "keys.json"):
            Path(folder, "secrets", name).write_text("{}")
        command = ["kubectl", "kustomize", folder]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        yield f"{KUSTOMIZATION}:1: {built.stderr.strip()}"
        return
    objects = [*yaml.safe_load_all(built.stdout)]
    names = {each["metadata"]["name"] for each in objects if each["kind"] == "Secret"}
    yield from differences(f"{FOLDER}:1", "secrets", {*re.findall(r"secretName: (\S+)", built.stdout)}, names)


@check
def manifest_settings(project: Project) -> Iterator[str]:
    """Each variable of the ConfigMap and of the secret is one that the app, or the command line, reads."""
    manifests = Manifests(project)
    data = manifests.settings()
    app = project["examples/job_api/app.py"]
    for variable in data:
        name = variable if variable == "JOB_API_PROBE_FILE" else variable.removesuffix("_FILE")
        if f'"{name}"' not in app:
            yield f"{FOLDER}config.yaml:{line_of(project[f'{FOLDER}config.yaml'], variable)}: the app reads no {name}"
    mounts = {mount["mountPath"] for each in manifests.containers for mount in each["volumeMounts"]}
    folders = {folder for folder in mounts if "secret" in folder}
    named = {data.get(name) for name in ("ONEJOB_STORE_FILE", "JOB_API_BROKER_FILE")}
    wanted = {f"{folder}/{name}" for folder in folders for name in ("store", "broker")}
    yield from differences(f"{FOLDER}config.yaml:1", "files of secrets", named, wanted)


@check
def manifest_stops(project: Project) -> Iterator[str]:
    """Kubernetes waits longer than the grace of runs, and than the hook of the API; a lease holds."""
    manifests = Manifests(project)
    data, worker, api = manifests.settings(), manifests.pods[WORKER], manifests.pods[API]
    if worker["terminationGracePeriodSeconds"] < float(data["JOB_API_SHUTDOWN_GRACE"]) + MARGIN:
        yield f"{FOLDER}worker.yaml:1: terminationGracePeriodSeconds is shorter than the grace of runs and {MARGIN} s"
    hook = api["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    if api["terminationGracePeriodSeconds"] < int(hook[1]) + MARGIN:
        yield f"{FOLDER}api.yaml:1: terminationGracePeriodSeconds is shorter than the hook and {MARGIN} s"
    try:
        Settings(store="sqlite:///ledger.db", lease=float(data["JOB_API_LEASE"]))
    except ConfigurationError as error:
        yield f"{FOLDER}config.yaml:1: {error}"


@check
def manifest_probes(project: Project) -> Iterator[str]:
    """The probes of the API are its routes; those of a worker read its file; only its liveness ignores the store."""
    manifests = Manifests(project)
    api, worker = (manifests.pods[name]["containers"][0] for name in (API, WORKER))
    routes = {name: api[f"{name}Probe"]["httpGet"]["path"] for name in PROBES}
    yield from differences(f"{FOLDER}api.yaml:1", "the routes of the probes", routes, PROBES)
    file = manifests.settings()["JOB_API_PROBE_FILE"]
    read = {name: worker[f"{name}Probe"]["exec"]["command"] for name in PROBES}
    place = f"{FOLDER}worker.yaml:1"
    yield from differences(place, "the file of the probes", {command[-1] for command in read.values()}, {file})
    lenient = {name for name, command in read.items() if "--ready" not in command}
    yield from differences(place, "the probes that ignore the store", lenient, {"liveness"})
    if file.rpartition("/")[0] not in {mount["mountPath"] for mount in worker["volumeMounts"]}:
        yield f"{place}: the folder of {file} is not mounted"


@check
def manifest_rights(project: Project) -> Iterator[str]:
    """A container has a read-only root, no capability and a limit; a pod is a user without rights or a token."""
    manifests = Manifests(project)
    for each in manifests.containers:
        yield from differences(f"{FOLDER}:1", f"rights of {each['name']}", each.get("securityContext"), RIGHTS)
        yield from differences(f"{FOLDER}:1", each["name"], {"requests", "limits"} - {*each["resources"]}, set())
    for name, pod in manifests.pods.items():
        context = {field: pod["securityContext"].get(field) for field in NOBODY}
        yield from differences(f"{FOLDER}:1", f"the user of {name}", context, NOBODY)
        yield from differences(
            f"{FOLDER}:1", f"the token of {name}", pod.get("automountServiceAccountToken"), wanted=False
        )
        for volume in pod.get("volumes", ()):
            if "emptyDir" in volume and "sizeLimit" not in volume["emptyDir"]:
                yield f"{FOLDER}:1: the volume {volume['name']} of {name} has no sizeLimit, and may fill its node"


@check
def manifest_labels(project: Project) -> Iterator[str]:
    """Each selector selects the pods of a Deployment, each of which has a budget that lets a node be drained."""
    manifests = Manifests(project)
    for name in (WORKER, API):
        spec = manifests.find("Deployment", name)["spec"]
        own = spec["template"]["metadata"]["labels"]
        budget = manifests.find("PodDisruptionBudget", name).get("spec", {})
        (spread,) = manifests.pods[name]["topologySpreadConstraints"]
        for what, selector in (("selector", spec["selector"]), ("spread", spread["labelSelector"])):
            yield from differences(f"{FOLDER}:1", f"the {what} of {name}", selector["matchLabels"], own)
        wanted = {"maxUnavailable": 1, "selector": {"matchLabels": own}}
        yield from differences(f"{FOLDER}disruption.yaml:1", f"the budget of {name}", budget, wanted)
        if spec["replicas"] <= 1:
            yield f"{FOLDER}:1: {name} has one replica, and a drained node would end it"
    service, own = manifests.find("Service", API), manifests.find("Deployment", API)["spec"]["selector"]["matchLabels"]
    yield from differences(f"{FOLDER}api.yaml:1", "the service", service["spec"]["selector"], own)
    yield from differences(f"{FOLDER}api.yaml:1", "the labels of the service", service["metadata"]["labels"], own)


@check
def manifest_network(project: Project) -> Iterator[str]:
    """Each pod is in the policy that closes it, and only the API is open, at its port."""
    manifests = Manifests(project)
    place = f"{FOLDER}network.yaml:1"
    closing, *opening = (each["spec"] for each in manifests.objects if each["kind"] == "NetworkPolicy")
    templates = [each["spec"]["template"] for each in manifests.objects if "template" in each.get("spec", {})]
    apps = {each["metadata"]["labels"]["app"] for each in templates}
    closed = {*closing["podSelector"]["matchExpressions"][0]["values"]}
    yield from differences(place, "the closed pods", closed, apps | {*manifests.pods})
    yield from differences(place, "what is closed", closing["policyTypes"], ["Ingress", "Egress"])
    yield from differences(place, "what may enter everywhere", closing["ingress"], [])
    (port,) = manifests.pods[API]["containers"][0]["ports"]
    entered = [(each["podSelector"].get("matchLabels"), [way.get("ports") for way in each["ingress"]])
               for each in opening if "ingress" in each]  # fmt: skip
    wanted = [({"app": API}, [[{"port": port["name"], "protocol": "TCP"}]])]
    yield from differences(place, "what is open", entered, wanted)
    for network in INTERNAL:
        if any(_permits(rule, ip_network(network)) for each in opening for rule in each.get("egress", ())):
            yield f"{place}: a worker may reach {network}"


def _permits(rule: dict[str, Any], network: IPv4Network | IPv6Network) -> bool:
    """Return whether a rule lets pods connect to the first or the last address of a network."""
    blocks = [each["ipBlock"] for each in rule.get("to", ()) if "ipBlock" in each]
    return "to" not in rule or any(
        address in ip_network(block["cidr"]) and not any(address in ip_network(out) for out in block.get("except", ()))
        for block in blocks
        for address in (network[0], network[-1])
    )
