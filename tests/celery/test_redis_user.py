"""A user of Redis who has the rights of docs/operations/redis-user.md, and no other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from checks.project import ROOT
from onejob.health.redis import CALLS, check_rights, refused_calls
from tests.services import start_redis

APP = """
import celery, onejob

app = celery.Celery("shop", broker="{url}", backend="{url}", task_cls=onejob.Task)
app.conf.update(onejob_store="{url}", onejob_lease=3, worker_prefetch_multiplier=1)


@app.task
def add(x, y):
    return x + y


@app.task(base=celery.Task)
def total(numbers):
    return sum(numbers)


@app.task(bind=True, max_retries=1)
def flaky(self):
    if self.request.retries < 1:
        raise self.retry(countdown=0.1)
    return "done"
"""
PROGRAM = """
import asyncio
import celery, shop

assert [each.get(30) for each in [shop.add.delay(number, 1) for number in range(3)]] == [1, 2, 3]
assert (shop.add.delay(1, 1).get(30), shop.flaky.delay().get(30)) == (2, "done")
assert shop.add.apply_async((100, 2), countdown=1, priority=5).get(30) == 102
assert shop.total.apply_async(([1, 2],), countdown=0.1).get(30) == 3
assert celery.chord([shop.add.s(9, number) for number in range(3)], shop.total.s()).apply_async().get(30) == 30
assert asyncio.run(shop.add.asubmit(5, 50)).id
control = shop.app.control
assert len(control.inspect(timeout=5).ping()) == 2
assert control.inspect(timeout=5).active_queues()
control.revoke("nobody")
control.broadcast("enable_events")
with shop.app.connection_for_read() as connection:
    seen = []
    receiver = shop.app.events.Receiver(connection, handlers={"*": lambda event: seen.append(event)})
    receiver.capture(limit=1, timeout=30)
control.purge()
"""
COMMANDS = ("jobs list", "workers", "queues", "metrics", "audit", "duplicates", "activity", "dead list", "doctor")


def rights(*sections: str) -> list[str]:
    """Return what the page grants in some of its sections."""
    page = (ROOT / "docs/operations/redis-user.md").read_text()
    texts = [part for part in page.split("\n## ") if part.startswith(sections)]
    return " ".join(re.findall(r"```text\n(.*?)```", "".join(texts), re.DOTALL)).split()


@dataclass
class Granting:
    """A Redis with a user whose rights tests choose."""

    admin: Any
    url: str

    def grant(self, *granted: str) -> None:
        self.admin.execute_command(
            "ACL", "SETUSER", "shop", "on", ">pw", "resetkeys", "resetchannels", "-@all", *granted
        )


@pytest.fixture
def granting(tmp_path: Path) -> Iterator[Granting]:
    folder = tmp_path / "redis"
    folder.mkdir()
    with start_redis(folder, "--appendonly", "yes") as server, redis.Redis.from_url(server.url) as admin:
        yield Granting(admin, server.url.replace("//", "//shop:pw@"))


@pytest.mark.deep
def test_a_user_with_the_rights_of_the_page_lacks_none(granting: Granting, tmp_path: Path) -> None:
    """Workers, canvas, remote control, events and commands work with the rights of the page: no access is denied."""
    granting.grant(*rights("For"))
    (tmp_path / "shop.py").write_text(APP.format(url=granting.url))
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    celery = [sys.executable, "-m", "celery", "-A", "shop"]
    with ExitStack() as running, (tmp_path / "log").open("w") as log:
        for name in ("a", "b"):
            command = [*celery, "worker", "-E", "-c", "2", "-n", name]
            worker = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=tmp_path)
            running.callback(worker.wait, 30)
            running.callback(worker.terminate)
        made = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert made.returncode == 0, made.stderr + (tmp_path / "log").read_text()
        for each in COMMANDS:
            command = [*celery, "onejob", *each.split()]
            made = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
            assert made.returncode == 0, made.stdout + made.stderr
    assert granting.admin.acl_log() == []


def test_each_missing_right_is_found(granting: Granting) -> None:
    """The doctor names each command, key and channel of the ledger that a user may not use, and executes none."""
    granted = rights("For the ledger")
    granting.grant(*granted)
    assert refused_calls(granting.url, "onejob") == {}
    for call in CALLS:
        command = call.split()[0]
        granting.grant(*granted, f"-{command}")
        assert [*refused_calls(granting.url, "onejob")] == [call]
    granting.grant(*granted, "resetchannels")
    assert {call.split()[0] for call in refused_calls(granting.url, "onejob")} == {"publish", "subscribe"}
    (finding,) = check_rights(granting.url, "onejob")
    assert finding.check == "redis-channels"
    assert "may not call publish, subscribe as the ledger does" in finding.problem
    granting.grant(*granted, "resetkeys")
    assert len(refused_calls(granting.url, "onejob")) == sum("KEY" in call for call in CALLS)
    granting.grant(*granted, "-multi")
    assert refused_calls(granting.url, "onejob") == {}, "who may not ask is told nothing"
    assert granting.admin.dbsize() == 0
