"""API keys: the key file, which many processes change under a running server; expiry, rotation, quotas of each key."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from starlette.testclient import TestClient

import onejob
from onejob.api import create_app, router
from onejob.api.api_keys import KeyFile, Role
from onejob.errors import ConfigurationError
from onejob.jobs.query import Query
from onejob.jobs.submitter import Quota, Quotas
from onejob.jobs.timestamps import parse_duration
from tests.api.conftest import Shop, Standing, bearer, problem
from tests.cases import for_each
from tests.cli.command import call

DAY = 86_400
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys.json")


def names(file: KeyFile) -> list[str]:
    return [key.name for key in file.read(manages=True)]


def keys(file: KeyFile, *args: str) -> Any:
    return call("keys", *args, "--file", str(file.path))


def listed(file: KeyFile) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(keys(file, "list", "--json").output)
    return rows


def test_a_change_of_the_file_takes_effect_at_once(keyed: Shop, standing: Standing) -> None:
    """From the next request on an added key is accepted, and a revoked or expired one refused, with its time."""
    shop, now = keyed.named("submit"), time.time()
    assert shop.submit().status_code == 202
    standing.keys.revoke("submit")
    problem(shop.submit(), 401, "unauthorized")
    added = [standing.keys.add(f"until {at}", Role.SUBMIT, expires_at=now + at) for at in (60, 0)]
    assert keyed.submit(headers=bearer(added[0])).status_code == 200
    details = problem(keyed.submit(headers=bearer(added[1])), 401, "unauthorized")
    assert "'until 0' expired at 20" in details["detail"]


ROW = {"name": "a", "role": "read", "sha256": "", "created_at": 0}


@for_each("content", ["", "{", "{}x", "[{}]", *(json.dumps([ROW | fields]) for fields in (
    {"name": 7}, {"name": ""}, {"sha256": "é"}, {"sha256": None}, {"role": "root"}, {"own_jobs": "yes"},
    {"tasks": "shop.invoice"}, {"expires_at": "soon"}, {"quota": "many"},
    {"expires_at": math.nan}, {"expires_at": math.inf}, {"created_at": math.nan},
))])  # fmt: skip
def test_an_invalid_file_refuses_every_request(keyed: Shop, standing: Standing, content: str) -> None:
    """While the key file is invalid, or a limit of a key is, every request is 503; the previous keys are not used."""
    before = standing.keys.path.read_text()
    standing.keys.path.write_text(content)
    problem(keyed.named("submit").submit(), 503, "keys-unreadable")
    standing.keys.path.write_text(before)
    assert keyed.named("submit").submit().status_code in {200, 202}


def test_a_mounted_directory_is_followed(celery_app: Celery, tmp_path: Path) -> None:
    """A revocation takes effect at the next request when the file is swapped behind a link, as Kubernetes does it."""
    for version in ("1", "2"):
        (tmp_path / version).mkdir()
        KeyFile(tmp_path / version / "keys.json").add(version, Role.READ)
    text = KeyFile(tmp_path / "1" / "keys.json").add("shop", Role.READ)
    (tmp_path / "..data").symlink_to("1")
    mounted = tmp_path / "keys.json"
    mounted.symlink_to("..data/keys.json")
    client = TestClient(create_app(celery_app, keys=mounted), headers=bearer(text))
    assert client.get("/jobs").status_code == 200
    (tmp_path / "..new").symlink_to("2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    problem(client.get("/jobs"), 401, "unauthorized")


# --- the file -------------------------------------------------------------------------------------------------------


def change(file: KeyFile, number: int, start: Any) -> None:
    start.wait(60)
    file.add(f"new-{number}", Role.READ)
    file.revoke(f"old-{number}")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("count", [10, pytest.param(20, marks=pytest.mark.deep)])
def test_concurrent_changes_are_all_kept(file: KeyFile, count: int) -> None:
    """Of the keys that many processes add and revoke at once, none is lost and no revocation is undone."""
    old = [ROW | {"name": f"old-{number}"} for number in range(count)]
    file.path.write_text(json.dumps(old))
    file.path.chmod(0o600)
    start = FORK.Barrier(count)
    processes = [FORK.Process(target=change, args=(file, number, start)) for number in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * count
    assert sorted(names(file)) == sorted(f"new-{number}" for number in range(count))


def test_a_change_keeps_mode_owner_and_link(file: KeyFile, tmp_path: Path) -> None:
    """A new key file is private, and has hashes only; a change keeps the mode, the owner and a symbolic link."""
    text = file.add("a", Role.READ)
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert len(text) == len("onejob_") + 43
    assert text.removeprefix("onejob_") not in file.path.read_text()
    file.path.chmod(0o640)
    owner = 12_345 if os.getuid() == 0 else os.getuid()
    if os.getuid() == 0:
        os.chown(file.path, owner, owner)
    link = KeyFile(tmp_path / "link.json")
    link.path.symlink_to(file.path)
    link.add("b", Role.READ)
    stat, lock = file.path.stat(), file.path.with_name(".keys.json.lock").stat()
    assert stat.st_mode & 0o777 == 0o640
    assert link.path.is_symlink()
    assert names(file) == ["a", "b"]
    assert (lock.st_mode & 0o777, stat.st_uid, lock.st_uid) == (0o600, owner, owner)


def test_a_change_of_the_file_itself_is_noticed(file: KeyFile) -> None:
    """A change that keeps size and time takes effect; where only the former file is mounted, no key is accepted."""
    file.add("shop", Role.READ)
    assert names(file) == ["shop"]
    stat = file.path.stat()
    file.path.write_text(file.path.read_text().replace('"shop"', '"pohs"'))
    os.utime(file.path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert names(file) == ["pohs"]
    with file.path.open() as former:
        mounted = KeyFile(f"/dev/fd/{former.fileno()}")
        assert names(mounted) == ["pohs"]
        file.revoke("pohs")
        with pytest.raises(ConfigurationError, match="mount its directory"):
            mounted.read()


def test_an_unsafe_key_file_is_refused(celery_app: Celery, standing: Standing, file: KeyFile) -> None:
    """A router takes no key file that is missing, or writable for others, or with quotas, which each key has itself."""
    with pytest.raises(ConfigurationError, match="cannot be used"):
        router(celery_app, keys=file.path)
    file.add("a", Role.READ)
    file.path.chmod(0o620)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        router(celery_app, keys=file.path)
    for start in (router, create_app):
        with pytest.raises(ConfigurationError, match="onejob keys add"):
            start(celery_app, keys=standing.keys.path, quota="1/day")
        with pytest.raises(ConfigurationError, match="is not a quota"):
            start(celery_app, identity_quota="often")
    with pytest.raises(ConfigurationError, match="role submit"):
        standing.keys.add("b", Role.READ, Quotas.parse("1/day", None))


def test_a_key_file_is_in_trusted_hands(celery_app: Celery, tmp_path: Path, file: KeyFile) -> None:
    """No server takes keys from a folder in which all may replace them, or of a user who has no part in the server."""
    text = file.add("a", Role.READ)
    link = tmp_path / "links" / "keys.json"
    link.parent.mkdir()
    link.symlink_to(file.path)
    for folder, path in ((tmp_path, file.path), (link.parent, link), (tmp_path, link)):
        folder.chmod(0o777)
        with pytest.raises(ConfigurationError, match=f"chmod o-w {folder}$"):
            create_app(celery_app, keys=path)
        folder.chmod(0o1777)
        assert TestClient(create_app(celery_app, keys=path), headers=bearer(text)).get("/jobs").status_code == 200
        folder.chmod(0o755)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_the_owner_of_a_key_file_is_trusted(celery_app: Celery, tmp_path: Path, file: KeyFile) -> None:
    """A running server takes keys of root, of its own user or of the folder's owner; root may manage any file."""
    text = file.add("a", Role.READ)
    client = TestClient(create_app(celery_app, keys=file.path), headers=bearer(text))
    for owner, folder, status in ((0, 12_345, 200), (12_345, 0, 503), (12_345, 12_345, 200), (54_321, 12_345, 503)):
        os.chown(file.path, owner, owner)
        os.chown(tmp_path, folder, folder)
        assert client.get("/jobs").status_code == status, (owner, folder)
        assert [row["name"] for row in listed(file)] == ["a"]
    with pytest.raises(ConfigurationError, match=r"belongs to the user 54321.*chown root"):
        create_app(celery_app, keys=file.path)
    for mode in (0o1777, 0o755):  # a sticky folder does not make a foreign file trusted
        tmp_path.chmod(mode)
        assert client.get("/jobs").status_code == 503


def test_rotation_overlaps(file: KeyFile) -> None:
    """A new key has the rights of the former one, which works until the overlap ends, and revives none."""
    quotas, end = Quotas.parse("5/day", None), time.time() + 1000
    former = file.add("shop", Role.SUBMIT, quotas, expires_at=end, own_jobs=True, tasks=["shop.invoice"])
    new = file.rotate("shop", 60)
    old, latest = file.find(former), file.find(new)
    assert old is not None
    assert latest is not None
    assert old.caller == latest.caller
    assert not old.expired
    assert not latest.expired
    assert 50 <= (old.expires_at or 0) - time.time() <= 60
    assert latest.expires_at == pytest.approx(end, abs=10)
    last = file.rotate("shop", 0)
    assert (file.find(former), file.find(new), names(file)) == (None, None, ["shop"])
    file.rotate("shop", 60)
    file.revoke("shop")
    assert (file.find(last), names(file)) == (None, [])
    with pytest.raises(ConfigurationError, match="no key named"):
        file.rotate("shop", 60)
    formers = [file.add(f"key {at}", Role.READ, expires_at=at) for at in (0.0, 1.0)]
    for at in (0.0, 1.0):
        file.rotate(f"key {at}", 60)
    assert [file.find(text) for text in formers] == [None, None]


# --- the command line -----------------------------------------------------------------------------------------------


WRONG: tuple[tuple[int, str, str], ...] = (
    (2, "--expires", "soon"), (2, "--expires", "90"), (2, "--expires", "2001-01-01T00:00:00Z"),
    (2, "--expires", "0d"), (1, "--quota", "many"), (1, "--identity-quota", "5/fortnight"),
)  # fmt: skip


def test_the_command_line_manages_keys(file: KeyFile) -> None:
    """`keys add` prints a key once, with its limits, `list` shows names and limits, `rotate` and `revoke` end a key."""
    for code, option, value in WRONG:
        result = keys(file, "add", "shop", "--role", "submit", option, value)
        assert result.exit_code == code, value
        assert not file.path.exists(), value
    texts = [keys(file, "add", f"a {role}", "--role", role.value).output.strip() for role in Role]
    holders = [file.find(text) for text in texts]
    assert [(each.name, each.role) for each in holders if each] == [(f"a {role}", role) for role in Role]
    assert [row["name"] for row in listed(file)] == [f"a {role}" for role in Role]
    assert texts[0] not in keys(file, "list").output
    assert keys(file, "add", "a read", "--role", "read").exit_code == 1
    for role in Role:
        assert keys(file, "revoke", f"a {role}").exit_code == 0
    assert file.find(texts[0]) is None
    assert "no key named" in keys(file, "revoke", "a read").output
    limits = ("--own-jobs", "--task", "shop.b", "--task", "shop.a", "--expires", "90d")
    quotas = ("--quota", "1000/day", "--identity-quota", "20/86400")
    former = keys(file, "add", "shop", "--role", "submit", *limits, *quotas).output.strip()
    keys(file, "add", "plain", "--role", "read", "--expires", "2099-01-01T00:00:00Z")
    shop, plain = listed(file)
    assert shop["own_jobs"] is True
    assert shop["tasks"] == ["shop.a", "shop.b"]
    assert shop["quota"] == "1000/day"
    assert (plain["expires_at"], shop["identity_quota"], plain["quota"]) == ("2099-01-01T00:00:00Z", "20/day", None)
    assert timedelta(days=89) < datetime.fromisoformat(shop["expires_at"]) - datetime.now(UTC) <= timedelta(days=90)
    new = keys(file, "rotate", "shop", "--overlap", "12h").output.strip()
    assert None not in [file.find(text) for text in (former, new)]
    assert [(row["name"], row["quota"]) for row in listed(file)][1:] == [("shop", "1000/day")] * 2
    before = {key.sha256: key for key in file.read()}
    assert keys(file, "end-sessions", "shop").exit_code == 0
    counts = [(key.name, key.sessions_ended - before[key.sha256].sessions_ended) for key in file.read()]
    assert counts == [("plain", 0), ("shop", 1), ("shop", 1)]
    assert None not in [file.find(text) for text in (former, new)]
    assert "shop.a" in keys(file, "list").output
    assert "the name of an API key must be" in keys(file, "add", "a\nb", "--role", "read").output


@for_each("text seconds", [("45s", 45), ("30m", 1800), ("24h", DAY), ("90d", 90 * DAY), ("2w", 14 * DAY)])
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    """A duration is a whole number of seconds, minutes, hours, days or weeks."""
    assert parse_duration(text) == seconds
    for wrong in (text[:-1], f"-{text}", f"{text} ", text.upper()):
        with pytest.raises(ValueError, match="90d"):
            parse_duration(wrong)


# --- quotas ---------------------------------------------------------------------------------------------------------


@for_each("text", ["", "5/", "/day", "0/day", "-1/day", "5/fortnight", "5/0", "5/days", "5/day ", "1.5/day",
                   "5/day/day", "5/31622401", "99999999999/day", "٣/day", "5/Day", 5, None])  # fmt: skip
def test_a_quota_is_a_number_and_a_period(text: Any) -> None:
    """A quota is a limit and a period in seconds or by name; any other text is refused with an example."""
    for valid, limit, period in (("7/hour", 7, 3600), ("1/week", 1, 7 * DAY), ("10/31622400", 10, 366 * DAY)):
        quota = Quota.parse(valid)
        assert (quota.limit, quota.period, str(quota)) == (limit, period, valid)
    with pytest.raises(ConfigurationError, match="20/day"):
        Quota.parse(text)


def test_new_jobs_are_limited(open_shop: Any, tmp_path: Path) -> None:
    """Above a quota of an API key, its own or that of the settings, a new job is 429 with its reset; others are not."""
    shop: Shop = open_shop(has_keys=True, onejob_quota="1/day")
    more = KeyFile(tmp_path / "keys.json").add("more", Role.SUBMIT, Quotas.parse("2/day", "1/day"))
    for number, key in enumerate((shop.texts["one"], shop.texts["two"], more)):
        statuses = [shop.submit(10 * number + order, headers=bearer(key)).status_code for order in (1, 2, 3)]
        assert statuses == ([202, 202, 429] if key is more else [202, 429, 429])
    with pytest.raises(onejob.errors.QuotaExceededError), onejob.submitter("one", own_jobs=True):
        shop.task.delay(3)
    shop.failed(shop.ledger.find(Query(submitter="more"))[-1].id)
    for order_id, name, limit in ((21, "identity_quota", "1/day"), (23, "quota", "2/day")):
        response = shop.submit(order_id, headers=bearer(more))
        details = problem(response, 429, "quota-exceeded")
        assert (details["quota"], details["limit"]) == (name, limit)
        left = (datetime.fromisoformat(details["reset_at"]) - datetime.now(UTC)).total_seconds()
        assert DAY - 600 < left <= int(response.headers["retry-after"]) <= DAY
        statuses = [shop.submit(each, headers=bearer(more)).status_code for each in (22, "1")]
        assert statuses == [200, 422]
