"""The blocks of code of the pages: commands exist, configuration parses, Python compiles; `tests/docs` runs it."""

from __future__ import annotations

import json
import tomllib
from configparser import ConfigParser
from configparser import Error as ConfigError
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import yaml

from checks.project import check
from website.blocks import read
from website.navigation import FROM_ROOT
from website.shell import commands, fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from checks.project import Project
    from website.blocks import Block, Page

PARSERS: dict[str, Callable[[str], object]] = {
    "toml": tomllib.loads,
    "yaml": lambda text: list(yaml.safe_load_all(text)),
    "json": json.loads,
    "ini": lambda text: ConfigParser(allow_no_value=True, interpolation=None, strict=False).read_string(text),
}
ERRORS = (ValueError, SyntaxError, yaml.YAMLError, ConfigError)


def pages(project: Project) -> Iterator[Page]:
    """Yield the pages whose blocks are checked: those of docs/ and of the root."""
    for place, text in project.under("", ".md").items():
        if place in FROM_ROOT or place.startswith("docs/"):
            yield read(place, text)


@check
def block_languages(project: Project) -> Iterator[str]:
    """A block has a language that is known here, a reason where it is not checked, and a test where one is named."""
    for page in pages(project):
        for block in page.blocks:
            if not block.kind:
                yield f"{page.place}:{block.line}: a block without a known language: {block.language!r}"
            if block.kind == "skip" and len(block.check) < 15:
                yield f"{page.place}:{block.line}: a block is skipped without a reason"
        if page.tested_by and PurePosixPath(page.place).name not in project.files.get(page.tested_by, ""):
            yield f"{page.place}:1: {page.tested_by} does not test this page"


@check
def block_commands(project: Project) -> Iterator[str]:
    """Each command line of a page names commands and options that exist."""
    for page in pages(project):
        for block in page.blocks:
            if block.kind == "shell":
                for words in commands(block):
                    if reason := fault(words):
                        yield f"{page.place}:{block.line}: {' '.join(words)}: {reason}"


@check
def block_syntax(project: Project) -> Iterator[str]:
    """Each block of TOML, YAML, JSON and INI parses, and each block of Python compiles."""
    for page in pages(project):
        for block in page.blocks:
            try:
                _parse(block)
            except ERRORS as error:
                yield f"{page.place}:{block.line}: this block cannot be parsed: {error}"


def _parse(block: Block) -> None:
    if block.kind == "python":
        compile(block.source, "block", "exec")
    elif block.language in PARSERS and block.kind != "skip":
        PARSERS[block.language](block.code)
