"""What `deploy/` has for systemd and Compose takes no right that it does not need, and stops workers gracefully."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import yaml

from checks.project import check, differences, line_of
from website.shell import fault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checks.project import Project

UNITS = "deploy/systemd/"
COMPOSE, IMAGE, MAKE_SECRETS = "deploy/compose.yaml", "deploy/Dockerfile", "deploy/make-secrets"
SANDBOX = {
    "NoNewPrivileges": "yes", "CapabilityBoundingSet": "", "AmbientCapabilities": "", "ProtectSystem": "strict",
    "ProtectHome": "yes", "PrivateTmp": "yes", "PrivateDevices": "yes", "ProtectKernelModules": "yes",
    "ProtectKernelTunables": "yes", "ProtectControlGroups": "yes",
    "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX",
    "RestrictNamespaces": "yes", "RestrictSUIDSGID": "yes", "LockPersonality": "yes", "MemoryDenyWriteExecute": "yes",
    "SystemCallArchitectures": "native", "UMask": "0077", "User": "office",
}  # fmt: skip
JOB_API = ("examples/job_api/app.py", COMPOSE, "examples/job_api/README.md")
VARIABLE = re.compile(r"\b(?:JOB_API|ONEJOB)_[A-Z_]+\b")
EXPOSURE = 2.0
"""What `systemd-analyze security` may say at most, of ten."""
MARGIN = 10
"""How many seconds a worker needs at least after the grace of its runs: to requeue them, and to end."""
SECRETS = {
    "postgres": ["postgres-password", "owner-store", "store"], "redis": ["broker"], "migrate": ["owner-store"],
    "api": ["store", "broker"], "worker": ["store", "broker"],
}  # fmt: skip
"""The secrets that each service of Compose gets."""


def units(project: Project) -> dict[str, dict[str, list[str]]]:
    """Return the settings of each unit's section `Service`, each with its values, by the unit's place."""
    return {place: _section(text) for place, text in project.under(UNITS, ".service").items()}


def _section(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in text.partition("[Service]\n")[2].partition("\n[Install]")[0].splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def compose(project: Project) -> dict[str, Any]:
    """Return the Compose file as data."""
    loaded: dict[str, Any] = yaml.safe_load(project[COMPOSE])
    return loaded


@check
def unit_sandboxes(project: Project) -> Iterator[str]:
    """Each systemd unit runs as a user of its own, in the whole sandbox."""
    for place, service in units(project).items():
        wanted = {name: [value] for name, value in SANDBOX.items()}
        wanted["SystemCallFilter"] = ["@system-service", "~@privileged"]
        for name, values in wanted.items():
            line = line_of(project[place], f"\n{name}=") + 1
            yield from differences(f"{place}:{line}", name, service.get(name), values)


@check
def unit_stops(project: Project) -> Iterator[str]:
    """A unit is restarted whenever it ends, has time to stop, and a worker's children are not signalled."""
    for place, service in units(project).items():
        migrates, works = "migrate" in place, "worker" in place
        yield from differences(f"{place}:1", "Restart", service["Restart"], ["on-failure" if migrates else "always"])
        mode = service.get("KillMode", ["control-group"])
        yield from differences(f"{place}:1", "KillMode", mode, ["mixed" if works else "control-group"])
        if not migrates and int(service.get("TimeoutStopSec", ["0"])[0]) < MARGIN:
            yield f"{place}:{line_of(project[place], 'TimeoutStopSec')}: too short to stop"
        if "StartLimitIntervalSec=0\n" not in project[place].partition("[Service]")[0]:
            yield f"{place}:1: StartLimitIntervalSec=0 is missing: a long outage would end the attempts to start"
        words = shlex.split(service["ExecStart"][0].replace("%", "x"))
        if problem := fault([PurePosixPath(words[0]).name, *words[1:]]):
            yield f"{place}:{line_of(project[place], 'ExecStart=')}: {problem}"


@check
def unit_migration(project: Project) -> Iterator[str]:
    """One unit runs `migrate up`, with an environment of its own; the others start after it, and do not need it."""
    found = units(project)
    lines = {place: [*each["ExecStart"], *each.get("ExecStartPre", [])] for place, each in found.items()}
    migrating = [place for place, run in lines.items() if any(" migrate up" in line for line in run)]
    if len(migrating) != 1:
        yield f"{UNITS}:1: one unit migrates, not {migrating}"
    for migration in migrating:
        name = PurePosixPath(migration).name
        for place, service in found.items():
            if place != migration and service["EnvironmentFile"] == found[migration]["EnvironmentFile"]:
                yield f"{place}:{line_of(project[place], 'EnvironmentFile')}: this is the environment of the migration"
            for order in ("Wants", "After"):
                line = re.search(rf"(?m)^{order}=(.*)$", project[place])
                if (line is not None and name in line[1].split()) == (place == migration):
                    yield f"{place}:{line_of(project[place], f'{order}=')}: {order}= and {name} do not fit"


@check
def unit_analysis(project: Project) -> Iterator[str]:
    """Systemd, where it is installed, knows every setting of the units, and finds little that they expose."""
    if not shutil.which("systemd-analyze"):
        return
    with TemporaryDirectory() as folder:
        for place, text in project.under(UNITS, ".service").items():
            unit = Path(folder, PurePosixPath(place).name)
            unit.write_text(re.sub(r"(?m)^(ExecStart\w*=)\S+", r"\g<1>/bin/true", text))
            told = _analyze("verify", unit).stderr
            yield from (f"{place}:1: {line}" for line in told.splitlines() if unit.stem.rstrip("@") in line)
            level = re.search(r"exposure level for .*: ([\d.]+)", _analyze("security", "--offline=true", unit).stdout)
            if level and float(level[1]) > EXPOSURE:  # an older systemd has no --offline
                yield f"{place}:1: exposes {level[1]} of ten, and at most {EXPOSURE}"


def _analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False)  # noqa: S607 - the system's


@check
def compose_secrets(project: Project) -> Iterator[str]:
    """Each service of Compose gets its secrets as files, and no password is in an environment."""
    text = project[COMPOSE]
    for name, service in compose(project)["services"].items():
        given = [each if isinstance(each, str) else each["source"] for each in service.get("secrets", [])]
        yield from differences(f"{COMPOSE}:{line_of(text, f'  {name}:')}", f"secrets of {name}", given, SECRETS[name])
        for variable, value in service.get("environment", {}).items():
            if ("PASSWORD" in variable or "://" in str(value)) and not variable.endswith("_FILE"):
                yield f"{COMPOSE}:{line_of(text, variable)}: {variable} is a secret in an environment"


@check
def compose_folders(project: Project) -> Iterator[str]:
    """The API gets the folder of its key file, so that it reads a new file; each tmpfs has a folder of mode 1777."""
    mounted = re.search(r"\./(secrets/\S+):(/run/\S+):ro", project[COMPOSE])
    volume, path = mounted.groups() if mounted else ("secrets", "/run")
    for place, part in ((IMAGE, f'"--keys", "{path}/keys.json"'), (MAKE_SECRETS, f"keys=${volume}/keys.json\n")):
        if part not in project[place]:
            yield f"{place}:1: {part.strip()} is missing, since {COMPOSE} mounts ./{volume} at {path}"
    made = set(re.findall(r"install --directory --mode 1777 (\S+)", project[IMAGE])) | {"/tmp"}  # noqa: S108 - Debian's
    used = {folder for each in compose(project)["services"].values() if "build" in each for folder in each["tmpfs"]}
    yield from differences(f"{IMAGE}:{line_of(project[IMAGE], '--mode 1777')}", "folders for a tmpfs", made, used)


@check
def compose_worker(project: Project) -> Iterator[str]:
    """Compose waits longer than the grace of the runs, and its health check reads the file that the worker writes."""
    worker = compose(project)["services"]["worker"]
    line = f"{COMPOSE}:{line_of(project[COMPOSE], '  worker:')}"
    grace = re.search(r":-(\d+)\}", worker["environment"]["JOB_API_SHUTDOWN_GRACE"])
    if grace is None or int(worker["stop_grace_period"].removesuffix("s")) < int(grace[1]) + MARGIN:
        yield f"{line}: stop_grace_period is shorter than the grace of runs and {MARGIN} s"
    test, file = worker["healthcheck"]["test"][1:], worker["environment"]["JOB_API_PROBE_FILE"]
    if problem := fault(test):
        yield f"{line}: {problem}"
    yield from differences(line, "the file of the health check", test[-1], file)
    if file.rpartition("/")[0] not in worker["tmpfs"]:
        yield f"{line}: the folder of {file} is no tmpfs"


@check
def job_api_settings(project: Project) -> Iterator[str]:
    """What Compose sets, and what the README of the example lists, is what its app reads from the environment."""
    read, *told = ({_setting(name) for name in VARIABLE.findall(project[place])} for place in JOB_API)
    for place, names in zip(JOB_API[1:], told, strict=True):
        yield from differences(f"{place}:1", "settings", sorted(names - {"JOB_API_PORT"}), sorted(read))


def _setting(variable: str) -> str:
    """Return the name of a setting that may also be given as a file."""
    return variable if variable == "JOB_API_PROBE_FILE" else variable.removesuffix("_FILE")
