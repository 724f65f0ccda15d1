"""The key file: changed by many processes, replaced under a running server; keys that expire and rotate."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from starlette.requests import empty_receive
from starlette.testclient import TestClient

from onejob.api import create_app
from onejob.api.api_keys import KeyFile, Role
from onejob.api.auth import authenticate
from onejob.api.checked_request import CheckedRequest
from onejob.api.problems import Problem
from onejob.cli import main
from onejob.errors import ConfigurationError
from onejob.jobs.quota import Quotas
from onejob.jobs.timestamps import parse_duration
from tests.cases import for_each
from tests.http.conftest import problem
from tests.http.test_api_keys import bearer

if TYPE_CHECKING:
    from pathlib import Path

    from celery import Celery

CHANGES = """
import os, sys
from onejob.api.api_keys import KeyFile, Role

def change(number):
    file = KeyFile(sys.argv[1])
    file.add(f"new-{number}", Role.READ)
    file.revoke(f"old-{number}")

count = int(sys.argv[2])
start, release = os.pipe()
for number in range(count):
    if os.fork() == 0:
        os.close(release)
        os.read(start, 1)
        change(number)
        os._exit(0)
os.close(release)
sys.exit(sum(os.wait()[1] for _ in range(count)))
"""
"""Processes that all start at once, and change the same file."""


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    """Return an empty key file."""
    return KeyFile(tmp_path / "keys.json")


def names(file: KeyFile) -> list[str]:
    """Return the names in a key file."""
    return [key.name for key in file.read()]


def call(file: KeyFile, *args: str) -> Any:
    """Run `onejob keys`."""
    return CliRunner().invoke(main, ["keys", *args, "--file", str(file.path)])


@pytest.mark.parametrize("count", [6, pytest.param(20, marks=pytest.mark.deep)])
def test_concurrent_changes_are_all_kept(file: KeyFile, count: int) -> None:
    """Of the keys that many processes add and revoke at once, none is lost and no revocation is undone."""
    old = [{"name": f"old-{number}", "role": "read", "sha256": "", "created_at": 0} for number in range(count)]
    file.path.write_text(json.dumps(old))
    file.path.chmod(0o600)
    done = subprocess.run([sys.executable, "-c", CHANGES, str(file.path), str(count)], timeout=60, check=False)
    assert done.returncode == 0
    assert sorted(names(file)) == sorted(f"new-{number}" for number in range(count))


def test_a_change_keeps_mode_owner_and_link(file: KeyFile, tmp_path: Path) -> None:
    """A new key file is private; a change keeps the mode and the owner that the file has, and a symbolic link."""
    file.add("a", Role.READ)
    assert file.path.stat().st_mode & 0o777 == 0o600
    file.path.chmod(0o640)
    if os.getuid() == 0:
        os.chown(file.path, 12_345, 12_345)
    link = KeyFile(tmp_path / "link.json")
    link.path.symlink_to(file.path)
    link.add("b", Role.READ)
    stat = file.path.stat()
    assert (stat.st_mode & 0o777, link.path.is_symlink(), names(file)) == (0o640, True, ["a", "b"])
    lock = file.path.with_name(".keys.json.lock").stat()
    assert (lock.st_mode & 0o777, stat.st_uid, lock.st_uid) == (
        0o600,
        *[12_345 if os.getuid() == 0 else os.getuid()] * 2,
    )


def test_a_mounted_directory_is_followed(celery_app: Celery, tmp_path: Path) -> None:
    """A revocation takes effect at the next request when the file is swapped behind a link, as Kubernetes does it."""
    text = ""
    for version in ("1", "2"):
        (tmp_path / version).mkdir()
        text = KeyFile(tmp_path / version / "keys.json").add("a" if version == "1" else "b", Role.READ) or text
    first = KeyFile(tmp_path / "1" / "keys.json")
    text = first.add("shop", Role.READ)
    (tmp_path / "..data").symlink_to("1")
    mounted = tmp_path / "keys.json"
    mounted.symlink_to("..data/keys.json")
    with TestClient(create_app(celery_app, keys=mounted)) as client:
        assert client.get("/jobs", headers=bearer(text)).status_code == 200
        (tmp_path / "..new").symlink_to("2")
        (tmp_path / "..new").rename(tmp_path / "..data")
        problem(client.get("/jobs", headers=bearer(text)), 401, "unauthorized")


def test_a_change_in_place_of_the_same_size_is_noticed(file: KeyFile) -> None:
    """A change that keeps the size and the time of modification of the file takes effect."""
    file.add("shop", Role.READ)
    assert names(file) == ["shop"]
    stat = file.path.stat()
    file.path.write_text(file.path.read_text().replace('"shop"', '"pohs"'))
    os.utime(file.path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert names(file) == ["pohs"]


def test_a_replaced_file_that_is_mounted_alone_is_refused(file: KeyFile) -> None:
    """Where only the former file can be seen, as in a container that mounts the file itself, no key is accepted."""
    file.add("shop", Role.READ)
    with file.path.open() as former:
        mounted = KeyFile(f"/proc/self/fd/{former.fileno()}")
        assert names(mounted) == ["shop"]
        file.revoke("shop")
        with pytest.raises(ConfigurationError, match="mount its directory"):
            mounted.read()


def test_a_repeated_authentication_sees_a_revocation(file: KeyFile) -> None:
    """A call of `authenticate` with the request of an open stream fails as soon as its key is revoked or expired."""
    text = file.add("shop", Role.READ)
    scope = {"type": "http", "headers": [(b"authorization", f"Bearer {text}".encode())]}
    server = KeyFile(file.path)
    caller = authenticate(server, Role.READ, CheckedRequest(scope, empty_receive))
    assert caller is not None
    file.revoke("shop")
    with pytest.raises(Problem, match="send an API key"):
        authenticate(server, Role.READ, CheckedRequest(scope, empty_receive))


def test_an_expired_key_is_refused(celery_app: Celery, file: KeyFile) -> None:
    """A key is refused after its time of expiry, with that time, and works before."""
    valid, over = (
        file.add(name, Role.READ, expires_at=time.time() + seconds) for name, seconds in (("a", 60), ("b", 0))
    )
    with TestClient(create_app(celery_app, keys=file.path)) as client:
        assert client.get("/jobs", headers=bearer(valid)).status_code == 200
        details = problem(client.get("/jobs", headers=bearer(over)), 401, "unauthorized")
    assert "'b' expired at 20" in details["detail"]


def test_rotation_overlaps(file: KeyFile) -> None:
    """A new key works at once with the permissions of the former one, which works until the overlap ends."""
    quotas = Quotas.parse("5/day", None)
    former = file.add("shop", Role.SUBMIT, quotas, expires_at=time.time() + 1000, own_jobs=True, tasks=["shop.invoice"])
    new = file.rotate("shop", 60)
    both = [file.find(text) for text in (former, new)]
    assert [key is not None and not key.expired and key.caller == both[0].caller for key in both if both[0]] == [
        True
    ] * 2
    ends = [round(key.expires_at - time.time()) for key in both if key is not None and key.expires_at is not None]
    assert (ends[0] in range(50, 61), ends[1] in range(990, 1001)) == (True, True)
    last = file.rotate("shop", 0)
    assert (file.find(former), file.find(new), names(file)) == (None, None, ["shop"])
    file.rotate("shop", 60)
    file.revoke("shop")
    assert (file.find(last), names(file)) == (None, [])
    with pytest.raises(ConfigurationError, match="no key named"):
        file.rotate("shop", 60)


@for_each("fields", [{"own_jobs": "yes"}, {"tasks": "shop.invoice"}, {"expires_at": "soon"}, {"quota": "many"}])
def test_an_invalid_limit_refuses_the_file(file: KeyFile, fields: dict[str, Any]) -> None:
    """A key with an invalid limit makes the file invalid, so that no key is wider than its entry says."""
    row = {"name": "a", "role": "read", "sha256": "", "created_at": 0}
    file.path.write_text(json.dumps([row | fields]))
    file.path.chmod(0o600)
    with pytest.raises(ConfigurationError, match="cannot be used"):
        file.read()


def test_the_command_line_limits_and_rotates_keys(file: KeyFile) -> None:
    """`keys add` sets expiry, own jobs and tasks, `keys rotate` prints a new key, and `keys list` shows all of it."""
    limits = ("--own-jobs", "--task", "shop.b", "--task", "shop.a", "--expires", "90d")
    former = call(file, "add", "shop", "--role", "submit", *limits).output.strip()
    call(file, "add", "plain", "--role", "read", "--expires", "2099-01-01T00:00:00Z")
    rows = json.loads(call(file, "list", "--json").output)
    assert (rows[0]["own_jobs"], rows[0]["tasks"], rows[1]["expires_at"]) == (
        True, ["shop.a", "shop.b"], "2099-01-01T00:00:00Z"
    )  # fmt: skip
    assert timedelta(days=89) < datetime.fromisoformat(rows[0]["expires_at"]) - datetime.now(UTC) <= timedelta(days=90)
    new = call(file, "rotate", "shop", "--overlap", "12h").output.strip()
    assert [file.find(text) is not None for text in (former, new)] == [True, True]
    assert [row["name"] for row in json.loads(call(file, "list", "--json").output)] == ["plain", "shop", "shop"]
    assert "shop.a" in call(file, "list").output


@for_each(
    "given", [("--expires", "soon"), ("--expires", "90"), ("--expires", "2001-01-01T00:00:00Z"), ("--expires", "0d")]
)
def test_an_invalid_expiry_is_refused(file: KeyFile, given: tuple[str, str]) -> None:
    """A time of expiry that is over, or that is neither a time nor a duration, adds no key."""
    result = call(file, "add", "shop", "--role", "read", *given)
    assert (result.exit_code, file.path.exists()) == (2, False)


@for_each("text seconds", [("45s", 45), ("30m", 1800), ("24h", 86_400), ("90d", 90 * 86_400), ("2w", 14 * 86_400)])
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    """A duration is a whole number of seconds, minutes, hours, days or weeks."""
    assert parse_duration(text) == seconds
    for wrong in (text[:-1], f"-{text}", f"{text} ", text.upper()):
        with pytest.raises(ValueError, match="90d"):
            parse_duration(wrong)
