"""The programs of the pages run. `checks/` parses all blocks, and checks their types."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from checks.blocks import PARSERS
from tests import forks
from tests.cases import for_each
from tests.forks import CELERY, FORKS, fork, interpret
from tests.services import RedisServer, eventually
from website.blocks import LANGUAGES, Page, pages, read
from website.navigation import ROOT
from website.shell import commands, fault

PAGES = pages()
RUN = {page.place: page for page in PAGES if not page.tested_by and page.files(only_run=True)}
REDIS = re.compile(r"redis://localhost(?::6379)?/\d+")
IMPORTED = (*CELERY, "fastapi.testclient", "onejob.api", "prometheus_client")
"""What the programs import."""
PATIENCE = re.compile(r"\btimeout=10\b")


def write(page: Page, folder: Path, url: str) -> dict[str, str]:
    """Write the programs of a page, on the Redis at a URL and with the patience of a busy machine; return them."""
    texts = page.files(only_run=True)
    files = {name: PATIENCE.sub("timeout=60", REDIS.sub(url, text)) for name, text in texts.items()}
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return files


def environment() -> dict[str, str]:
    """Return the environment of a program, which finds this onejob."""
    return os.environ | {"PYTHONPATH": str(ROOT / "src")}


def run_programs(page: Page, files: dict[str, str], folder: Path) -> None:
    """Run each program of a page; its output is what the page shows."""
    for name in files:
        run = forks.run([f"{name}.py"], environment=environment(), cwd=folder, modules=IMPORTED)
        assert run.returncode == 0, run.stderr
        assert [line for line in page.output(name) if line not in run.stdout.splitlines()] == [], run.stdout


@pytest.mark.parametrize("place", sorted(RUN))
def test_programs_of_a_page_run(place: str, broker: RedisServer, tmp_path: Path) -> None:
    """The blocks of Python of a page, one after the other, run, and their assertions hold."""
    page = RUN[place]
    files = write(page, tmp_path, broker.database())
    if not page.worker:
        run_programs(page, files, tmp_path)
        return
    log = tmp_path / "worker.log"
    command = ["-m", "celery", "-A", next(iter(files)), "worker", *page.worker.split(), "--loglevel", "INFO"]
    start = fork if FORKS else interpret
    with start(command, environment=environment(), cwd=tmp_path, output=log):
        eventually(lambda: " ready." in log.read_text())
        run_programs(page, files, tmp_path)


FENCE = "`" * 3


def test_blocks_of_a_page_are_read() -> None:
    """A page's blocks continue each other; comments begin files, add lines, and say what is not run."""
    text = f"""
<!-- check: setup
import a
-->
{FENCE}python
x = 1
{FENCE}
<!-- check: types -->
{FENCE}python
y = x
{FENCE}
- indented:

    {FENCE}python
    # web.py
    if x:
        z = 1
    {FENCE}
<!-- check: decorates (n: int) -->
{FENCE}python
@b
@c  # two decorators
{FENCE}
<!-- check: skip, because it is short -->
{FENCE}python
...
{FENCE}
{FENCE}
no language
{FENCE}
{FENCE}console
$ python web.py
1
$ ls
{FENCE}
"""
    page = read("docs/a-page.md", text)
    files = page.files(only_run=False)
    assert files["page_a_page"].split() == "import a x = 1 y = x".split()
    assert "y" not in page.files(only_run=True)["page_a_page"]
    assert re.sub(r"_\d+", "", files["web"]).split("\n\n")[-1].strip().splitlines() == [
        "@b", "def decorated(n: int) -> None: ...", "@c  # two decorators", "def decorated(n: int) -> None: ...",
    ]  # fmt: skip
    assert [block.kind for block in page.blocks] == ["python"] * 4 + ["skip", "", "shell"]
    assert page.output("web") == ["1"]
    assert set(LANGUAGES.values()) <= {"python", "shell", "text", *PARSERS}


@for_each("line, reason", [
    ("onejob jobs list --state failed", ""), ("FOO=1 onejob --store sqlite:///x.db why JOB  # a comment", ""),
    ("onejob jobs list --stat failed", "No such option"), ("onejob jobz list", "No such command"),
    ("onejob jobs list && onejob nothing", "No such command"), ("KEY=$(onejob keys ad x)", "No such command"),
    ("onejob jobs list --state broken", "broken"), ("celery -A shop worker --pool threads -c 4", ""),
    ("celery -A shop worker --poool threads", "No such option"), ("celery -A shop worker -P onejob -c 200", ""),
    ("celery -A shop onejob duplicates --by nobody", "nobody"),
    ("onejob jobs list > ~/jobs.txt 2> /dev/null", ""), ("make demo", ""),
    ("make nothing", "no target"), ("ls -l | sort", ""),
])  # fmt: skip
def test_wrong_commands_are_seen(line: str, reason: str) -> None:
    """A command or an option that does not exist is found, behind variables, in substitutions and in lists."""
    (block,) = read("page.md", f"{FENCE}sh\n{line}\n{FENCE}\n").blocks
    found = "".join(fault(words) for words in commands(block))
    assert reason in found
    assert bool(found) == bool(reason)
