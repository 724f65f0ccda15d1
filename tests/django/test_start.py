"""The quick start for Django, docs/start/django.md, is a project that works as it is written."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from tests import forks
from tests.django.project import ROOT
from tests.quiet import LogReader
from tests.services import eventually

PAGE = (ROOT / "docs" / "start" / "django.md").read_text(encoding="utf-8")
FILE = re.compile(r"```python\n# (\S+)\n(.*?)```", re.DOTALL)
COMMAND = re.compile(r"^\$ (.*)$", re.MULTILINE)


def commands(folder: Path, environment: dict[str, str], texts: list[str]) -> str:
    """Run commands of the page, and return what the last one has written."""
    written = ""
    for text in texts:
        name, *arguments = shlex.split(text)
        argv = arguments if name == "python" else ["-m", "django", *arguments]
        done = forks.run(argv, cwd=folder, environment=environment, modules=forks.DJANGO)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "WARNING" not in done.stdout + done.stderr
        written = done.stdout
    return written


def test_the_quick_start_works_as_written(tmp_path: Path, broker_url: str) -> None:
    """Each file and each command of the page, in its order, leads to a job that a worker has run, without a warning."""
    install, project, application, migrate, check, worker, submit, jobs = COMMAND.findall(PAGE)
    assert install.startswith("pip install")
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    environment["PYTHONPATH"] = str(ROOT / "src")
    commands(tmp_path, environment, [project, application])
    for name, text in FILE.findall(PAGE):
        with (tmp_path / name).open("a", encoding="utf-8") as file:
            file.write(text.replace("redis://localhost:6379/0", broker_url))
    commands(tmp_path, environment, [migrate, check])
    log = tmp_path / "worker.log"
    argv = ["-m", *shlex.split(worker), "-P", "solo", "-l", "INFO"]
    with forks.interpret(argv, environment=environment, cwd=tmp_path, output=log) as daemon:
        eventually(lambda: " ready." in log.read_text(errors="replace") or not daemon.alive, 60)
        assert "R-000007" in commands(tmp_path, environment, [submit.replace("timeout=10", "timeout=60")])
        assert "completed" in commands(tmp_path, environment, [jobs])
    assert [*LogReader(log).troubles()] == []
