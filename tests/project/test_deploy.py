"""What `deploy/` has for production takes no right that it does not need."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import psycopg
import pytest
import redis

from onejob.stores import open_store
from onejob.stores.migrate import upgrade
from tests.contract.support import submit
from tests.project.tree import ROOT
from tests.services import eventually, free_port, redis_binary, start_postgres
from tests.tiers import deep

if TYPE_CHECKING:
    from pathlib import Path

DEPLOY = ROOT / "deploy"
UNITS = sorted(DEPLOY.glob("systemd/*.service"))
SANDBOX = {
    "NoNewPrivileges": "yes", "CapabilityBoundingSet": "", "AmbientCapabilities": "", "ProtectSystem": "strict",
    "ProtectHome": "yes", "PrivateTmp": "yes", "PrivateDevices": "yes", "ProtectKernelModules": "yes",
    "ProtectKernelTunables": "yes", "ProtectControlGroups": "yes",
    "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX",
    "RestrictNamespaces": "yes", "RestrictSUIDSGID": "yes", "LockPersonality": "yes", "MemoryDenyWriteExecute": "yes",
    "SystemCallArchitectures": "native", "UMask": "0077",
}  # fmt: skip
EXPOSURE = 2.0
"""What `systemd-analyze security` may say at most, of ten."""


def service(unit: Path) -> dict[str, list[str]]:
    """Return the settings of a unit's section `Service`, each with its values."""
    section = unit.read_text().partition("[Service]\n")[2].partition("\n[Install]")[0]
    found: dict[str, list[str]] = {}
    for line in section.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `systemd-analyze`."""
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False)  # noqa: S607 - the system's


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_are_sandboxed(unit: Path) -> None:
    """Each systemd unit runs as a user of its own, in the whole sandbox."""
    found = service(unit)
    assert {name: found.get(name) for name in SANDBOX} == {name: [value] for name, value in SANDBOX.items()}
    assert found["SystemCallFilter"] == ["@system-service", "~@privileged"]
    assert found["User"] == ["office"]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_the_units(unit: Path, tmp_path: Path) -> None:
    """Systemd knows every setting of the units, and finds little that they expose."""
    runnable = re.sub(r"(?m)^(ExecStart\w*=)\S+", r"\g<1>/bin/true", unit.read_text())
    (tmp_path / unit.name).write_text(runnable)
    verify = analyze("verify", tmp_path / unit.name)
    assert [line for line in verify.stderr.splitlines() if unit.stem.rstrip("@") in line] == []
    rated = analyze("security", "--offline=true", tmp_path / unit.name)
    level = re.search(r"exposure level for .*: ([\d.]+)", rated.stdout)
    assert level is None or float(level[1]) <= EXPOSURE  # an older systemd has no --offline


def test_the_services_have_passwords_of_their_own(tmp_path: Path) -> None:
    """`make-secrets` makes a password for each server and role of the Compose file, once, and readable by the owner."""
    compose = (DEPLOY / "compose.yaml").read_text()
    script = tmp_path / "make-secrets"
    shutil.copy(DEPLOY / "make-secrets", script)
    keys = tmp_path / "onejob"
    keys.write_text(f"#!/bin/sh\necho key\ntouch {tmp_path}/secrets/server/keys.json\n")
    keys.chmod(0o700)
    (tmp_path / ".env").write_text("POSTGRES_PASSWORD=kept\n")
    for _ in range(2):
        subprocess.run([script, keys], check=True, capture_output=True)
    made = dict(line.split("=") for line in (tmp_path / ".env").read_text().splitlines())
    assert set(made) == set(re.findall(r"\$\{(\w+):\?", compose))
    assert made.pop("POSTGRES_PASSWORD") == "kept"
    assert len(set(made.values())) == len(made) == 2
    assert all(len(value) == 64 for value in made.values())
    assert not [line for line in compose.splitlines() if "POSTGRES_PASSWORD" in line and "superuser" not in line]


def test_the_keys_are_mounted_as_a_folder() -> None:
    """The API gets the folder of its key file, so that it reads a file that has been replaced, and no key in plain."""
    volume, path = re.findall(r"\./(secrets/\S+):(/run/\S+):ro", (DEPLOY / "compose.yaml").read_text())[0]
    assert f'"--keys", "{path}/keys.json"' in (DEPLOY / "Dockerfile").read_text()
    assert f"keys=$here/{volume}/keys.json\n" in (DEPLOY / "make-secrets").read_text()


@deep
def test_the_ledgers_role_has_only_its_schema() -> None:
    """The role of the services owns the ledger's schema, migrates and uses it, and may do nothing else."""
    server = start_postgres()
    try:
        sql = (DEPLOY / "postgres-role.sql").read_text().replace("\\getenv password LEDGER_PASSWORD\n", "")
        with psycopg.connect(server.url, autocommit=True) as superuser:
            superuser.execute("create database onejob")
        with psycopg.connect(server.url.removesuffix("/postgres") + "/onejob", autocommit=True) as superuser:
            superuser.execute(sql.replace(":'password'", "'secret'").encode())
        url = server.url.replace("postgres@", "onejob@").removesuffix("/postgres") + "/onejob"
        upgrade(url)
        store = open_store(url)
        assert submit(store).id == "job-1"
        store.close()
        with psycopg.connect(url, autocommit=True) as role:
            for refused in ("create schema other", "create table public.other ()", "create role other",
                            "create database other", "alter role onejob superuser", "create extension file_fdw",
                            "copy (select 1) to program 'true'", "select pg_read_file('/etc/passwd')"):  # fmt: skip
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    role.execute(refused.encode())
        with pytest.raises(psycopg.OperationalError, match="permission denied"):
            psycopg.connect(url.removesuffix("/onejob") + "/postgres")
    finally:
        server.remove()


def test_redis_requires_its_password(tmp_path: Path) -> None:
    """Redis, started as in the Compose file, refuses commands without the password, which is in no argument."""
    compose = (DEPLOY / "compose.yaml").read_text()
    found = re.search(r"exec redis-server (.*) - <<END\n(.*?)\n\s*END\n", compose, re.DOTALL)
    assert found is not None
    port = free_port()
    command = [redis_binary(), *found[1].split(), "--port", str(port), "--dir", str(tmp_path), "-"]
    settings = found[2].strip().replace("$$REDISCLI_AUTH", "secret") + "\n"
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as server:
        assert server.stdin is not None
        with server.stdin as stdin:
            stdin.write(settings)
        try:
            client = redis.Redis(port=port, password="secret", decode_responses=True)  # noqa: S106 - of this test
            eventually(lambda: answers(client))
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            assert client.config_get("appendonly") == {"appendonly": "yes"}
            with pytest.raises(redis.AuthenticationError):
                redis.Redis(port=port).set("name", "value")
            client.close()
        finally:
            server.terminate()


def answers(client: redis.Redis) -> bool:
    """Return whether a server answers."""
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False
