"""The version in the middle of the guide on Redis locks releases the key of each job, whoever has submitted it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import celery
import redis

from tests.forks import interpret
from tests.services import eventually, start_redis
from website.blocks import read
from website.navigation import ROOT

GUIDE = "docs/guides/migrating-from-a-redis-lock.md"
URL = re.compile(r"redis://localhost:6379")


def test_the_end_of_a_job_deletes_its_key_and_no_other(tmp_path: Path) -> None:
    """A worker of the version in the middle runs old messages and new jobs, and deletes the keys that are theirs."""
    command = "-m celery -A both worker --pool=solo".split()
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    with ExitStack() as stack:
        url = stack.enter_context(start_redis(tmp_path)).url.removesuffix("/0")
        text = read(GUIDE, (ROOT / GUIDE).read_text(encoding="utf-8")).files(only_run=False)["both"]
        (tmp_path / "both.py").write_text(URL.sub(url, text))
        store = stack.enter_context(redis.Redis.from_url(f"{url}/2", decode_responses=True))
        old = stack.enter_context(celery.Celery("before", broker=f"{url}/0"))
        subprocess.run([sys.executable, "both.py"], cwd=tmp_path, env=environment, check=True)
        assert sorted(store.keys()) == ["project_job:8", "project_job:9"]
        for project, holder in ((5, "an-old-id"), (6, "another-id")):
            store.set(f"project_job:{project}", holder)
            old.send_task("before.index", (project, f"id-{project}"), task_id=f"id-{project}")
        old.send_task("before.index", (9, "an-old-job"), task_id="an-old-job")
        store.set("project_job:5", "id-5")
        with interpret(command, environment=environment, cwd=tmp_path, output=tmp_path / "worker.log"):
            eventually(lambda: store.keys() == ["project_job:6"], 100)
        assert store.get("project_job:6") == "another-id"
