"""The code blocks of the pages, and the comments that say how each is checked.

    <!-- check: types -->                   the next block is type-checked and not run
    <!-- check: skip, because ... -->       the next block is not checked
    <!-- check: worker -->                  the page's program runs beside a worker with two threads
    <!-- check: worker -P onejob -c 20 -->  the same, with other options of the worker
    <!-- check: tested by tests/x.py -->    that test runs the page's blocks of Python
    <!-- check: decorates (a: int) -->      each decorator of the next block is given a function
    <!-- check: file more -->               the next block begins the file more.py
    <!-- check: setup                       the lines up to the end of the comment come before the next block
    import celery
    -->

A block whose first line is the comment `# name.py` begins that file; other blocks of Python continue the file before.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from website.navigation import DOCS, FROM_ROOT, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PART = re.compile(
    r"^<!-- check: (?P<check>.*?)-->$|^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_FILE = re.compile(r"# (\w+)\.py\n")
LANGUAGES = {
    "python": "python", "py": "python", "console": "shell", "sh": "shell", "bash": "shell", "toml": "toml",
    "yaml": "yaml", "json": "json", "ini": "ini", "sql": "text", "lua": "text", "text": "text", "http": "text",
    "nginx": "text", "html": "text", "js": "text", "promql": "text",
}  # fmt: skip
"""The languages that a block may have, and how each is checked."""


@dataclass(frozen=True)
class Block:
    """One block of code."""

    line: int
    language: str
    code: str
    check: str = ""
    setup: str = ""
    file: str = ""

    @property
    def kind(self) -> str:
        """How the block is checked: a value of `LANGUAGES`, `skip`, or nothing for an unknown language."""
        return "skip" if self.check.startswith("skip") else LANGUAGES.get(self.language, "")

    @property
    def is_run(self) -> bool:
        """Whether the block is a part of the page's program."""
        return self.kind == "python" and self.check != "types"

    @property
    def source(self) -> str:
        """The code as Python reads it."""
        code = self.code
        if self.check.startswith("decorates "):
            signature = self.check.removeprefix("decorates ")
            lines = enumerate(code.splitlines())
            bodies = {
                n: f"\ndef decorated_{self.line + n}{signature} -> None: ..." for n, line in lines if line[:1] == "@"
            }
            code = "\n".join(line + bodies.get(n, "") for n, line in enumerate(code.splitlines()))
        return f"{self.setup}\n{code}\n"


@dataclass
class Page:
    """The blocks of a page."""

    place: str
    blocks: list[Block] = field(default_factory=list)
    worker: str = ""
    """The options of the worker beside which the program runs; empty: there is none."""
    tested_by: str = ""

    def files(self, *, only_run: bool) -> dict[str, str]:
        """Return the programs of the page by name: its blocks of Python, one after the other."""
        stem = re.sub(r"\W", "_", self.place.rpartition("/")[2].removesuffix(".md"))
        name, found = f"page_{stem}", dict[str, str]()
        for block in self.blocks:
            begins = _FILE.match(block.code) if block.kind == "python" else None
            name = block.file or (begins[1] if begins else name)
            if block.kind == "python" and (block.is_run or not only_run):
                found[name] = found.get(name, "") + block.source
        return found

    def output(self, name: str) -> list[str]:
        """Return the lines that the page shows as the output of `python name.py`."""
        shells = [block.code for block in self.blocks if block.language == "console"]
        found = (re.search(rf"^\$ python {name}\.py\n((?:(?!\$ ).+\n)*)", code, re.MULTILINE) for code in shells)
        return next((match[1].splitlines() for match in found if match), [])


def read(place: str, text: str) -> Page:
    """Return the blocks of a page."""
    page = Page(place)
    check = setup = file = ""
    for part in _PART.finditer(text):
        if part["check"] is None:
            line = text.count("\n", 0, part.start()) + 1
            code = re.sub(f"^{part['indent']}", "", part["code"], flags=re.MULTILINE)
            page.blocks.append(Block(line, part["info"].strip(), code, check, setup, file))
            check = setup = file = ""
        elif part["check"].startswith("setup\n"):
            setup = part["check"].removeprefix("setup\n")
        elif part["check"].startswith("file "):
            file = part["check"].removeprefix("file ").strip()
        elif re.match(r"worker\b", part["check"]):
            page.worker = part["check"].removeprefix("worker").strip() or "--pool threads -c 2"
        elif part["check"].startswith("tested by "):
            page.tested_by = part["check"].removeprefix("tested by ").strip()
        else:
            check = part["check"].strip()
    return page


def sources() -> Iterator[Path]:
    """Yield the pages whose blocks are checked: those of docs/ and of the root."""
    yield from (ROOT / name for name in FROM_ROOT)
    yield from sorted(DOCS.rglob("*.md"))


def pages() -> list[Page]:
    """Return every page with its blocks."""
    return [read(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")) for path in sources()]
