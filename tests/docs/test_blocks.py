"""Every block of code of the pages is run, type-checked or parsed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis
import yaml

from tests.cases import for_each
from tests.services import eventually, start_redis
from tests.tiers import deep
from website.blocks import LANGUAGES, pages, read
from website.navigation import ROOT
from website.shell import commands, fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.services import RedisServer
    from website.blocks import Page

PAGES = pages()
RUN = {page.place: page for page in PAGES if not page.tested_by and page.files(only_run=True)}
PARSERS: dict[str, Callable[[str], object]] = {
    "toml": tomllib.loads,
    "yaml": lambda text: list(yaml.safe_load_all(text)),
    "json": json.loads,
    "ini": lambda text: ConfigParser(allow_no_value=True, interpolation=None, strict=False).read_string(text),
}
REDIS = re.compile(r"redis://localhost(?::6379)?/\d+")
PATIENCE = re.compile(r"\btimeout=10\b")
TYPES = ["--strict-optional", "--check-untyped-defs", "--ignore-missing-imports", "--disable-error-code=no-redef"]
TYPES += ["--disable-error-code=empty-body", "--disable-error-code=untyped-decorator", "--explicit-package-bases"]
TYPES += ["--disable-error-code=method-assign"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Return the Redis that stands for the reader's."""
    server = start_redis(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


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
        command = [sys.executable, f"{name}.py"]
        run = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        assert [line for line in page.output(name) if line not in run.stdout.splitlines()] == []


@pytest.mark.parametrize("place", sorted(RUN))
def test_programs_of_a_page_run(place: str, broker: RedisServer, tmp_path: Path) -> None:
    """The blocks of Python of a page, one after the other, run, and their assertions hold."""
    page = RUN[place]
    with redis.Redis.from_url(broker.url) as client:
        client.flushall()
    files = write(page, tmp_path, broker.url)
    if not page.has_worker:
        run_programs(page, files, tmp_path)
        return
    log = tmp_path / "worker.log"
    command = [sys.executable, "-m", "celery", "-A", next(iter(files)), "worker", "--pool", "threads", "-c", "2"]
    with log.open("w") as output:
        worker = subprocess.Popen(
            [*command, "--loglevel", "INFO"], cwd=tmp_path, env=environment(), stdout=output, stderr=output
        )
    try:
        eventually(lambda: " ready." in log.read_text())
        run_programs(page, files, tmp_path)
    finally:
        worker.terminate()
        worker.wait()


@for_each("place", [page.place for page in PAGES])
def test_every_block_says_its_language(place: str) -> None:
    """A block has a language that is known here, a reason where it is not checked, and a test where one is named."""
    (page,) = (page for page in PAGES if page.place == place)
    assert [block.line for block in page.blocks if not block.kind] == []
    assert [block.line for block in page.blocks if block.kind == "skip" and len(block.check) < 15] == []
    assert not page.tested_by or Path(place).name in (ROOT / page.tested_by).read_text(encoding="utf-8")


@for_each("place", [page.place for page in PAGES])
def test_commands_exist(place: str) -> None:
    """Each command line of a page names commands and options that exist."""
    (page,) = (page for page in PAGES if page.place == place)
    shells = [block for block in page.blocks if block.kind == "shell"]
    found = [(block.line, words, fault(words)) for block in shells for words in commands(block)]
    assert [(line, " ".join(words), reason) for line, words, reason in found if reason] == []


@for_each("place", [page.place for page in PAGES])
def test_configuration_parses(place: str) -> None:
    """Each block of TOML, YAML, JSON and INI parses, and each block of Python compiles."""
    (page,) = (page for page in PAGES if page.place == place)
    for block in page.blocks:
        if block.kind in PARSERS:
            PARSERS[block.kind](block.code)
        elif block.kind == "python":
            compile(block.source, f"{place}:{block.line}", "exec")


@deep
def test_blocks_have_types(tmp_path: Path) -> None:
    """The blocks of Python of every page, as modules, pass the type checker."""
    for page in PAGES:
        folder = tmp_path / "pages" / re.sub(r"\W", "_", page.place.removesuffix(".md"))
        folder.mkdir(parents=True)
        files = page.files(only_run=False) if not page.tested_by else {}
        own = "|".join(files) or "-"
        for name, text in files.items():
            moved = re.sub(rf"^from ({own}) import", rf"from pages.{folder.name}.\1 import", text, flags=re.MULTILINE)
            (folder / f"{name}.py").write_text(moved, encoding="utf-8")
    paths = {"MYPYPATH": f"{ROOT / 'src'}{os.pathsep}{tmp_path}"}
    command = [sys.executable, "-m", "mypy", *TYPES, "--config-file=", f"--cache-dir={tmp_path / 'cache'}", "pages"]
    run = subprocess.run(command, cwd=tmp_path, env=os.environ | paths, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


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


@for_each(
    "line, reason",
    [
        ("onejob jobs list --state failed", ""),
        ("FOO=1 onejob --store sqlite:///x.db why JOB  # a comment", ""),
        ("onejob jobs list --stat failed", "No such option"),
        ("onejob jobz list", "No such command"),
        ("onejob jobs list && onejob nothing", "No such command"),
        ("KEY=$(onejob keys ad x)", "No such command"),
        ("onejob jobs list --state broken", "broken"),
        ("celery -A shop worker --pool threads -c 4", ""),
        ("celery -A shop worker --poool threads", "No such option"),
        ("celery -A shop onejob duplicates --by nobody", "nobody"),
        ("onejob completion bash > ~/.onejob-complete.bash 2> /dev/null", ""),
        ("make demo", ""),
        ("make nothing", "no target"),
        ("ls -l | sort", ""),
    ],
)
def test_wrong_commands_are_seen(line: str, reason: str) -> None:
    """A command or an option that does not exist is found, behind variables, in substitutions and in lists."""
    (block,) = read("page.md", f"{FENCE}sh\n{line}\n{FENCE}\n").blocks
    found = "".join(fault(words) for words in commands(block))
    assert reason in found
    assert bool(found) == bool(reason)
