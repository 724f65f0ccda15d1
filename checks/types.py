"""What type checkers say about users' code: run by `make types`.

In a project that has only onejob and Celery, with and without the published types of Celery, mypy and basedpyright
accept the right calls of `checks/samples`, and report every mistake on its line (`# E: code`). The blocks of Python of
the pages pass mypy.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from checks.project import PACKAGE, ROOT
from website.blocks import pages

if TYPE_CHECKING:
    from collections.abc import Iterator

SAMPLES = Path(__file__).parent / "samples"
BUILD = ROOT / "build" / "types"
"""Where the environments and the caches of the checkers are kept."""
TYPED = ("celery", "kombu", "amqp", "billiard", "vine")
"""The packages that celery-types has stubs for."""
LENIENT = [
    "--strict-optional", "--check-untyped-defs", "--ignore-missing-imports", "--explicit-package-bases",
    *(f"--disable-error-code={code}" for code in ("no-redef", "empty-body", "untyped-decorator", "method-assign")),
]  # fmt: skip
"""How the blocks of pages are checked: a page may define a name twice, and leave bodies out."""
Found: TypeAlias = "set[tuple[str, int, str]]"
"""The file, the line and the code of each error."""


def make_project(folder: Path, *, stubs: bool) -> Path:
    """Return a user's project: the samples, and an environment with onejob, Celery and, if `stubs`, its types."""
    shutil.rmtree(folder / "venv", ignore_errors=True)
    venv.create(folder / "venv", symlinks=True)
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    installed = Path(sysconfig.get_path("purelib"))
    for name in (*TYPED, "click", "redis", *(f"{name}-stubs" for name in TYPED if stubs)):
        (site / name).symlink_to(installed / name)
    (site / "onejob.pth").write_text(str(PACKAGE.parent))  # no link: a build would follow it
    return Path(shutil.copytree(SAMPLES, folder / "code", dirs_exist_ok=True))


def run_mypy(code: Path) -> Found:
    """Return the errors of `mypy --strict`."""
    python = str(code.parent / "venv" / "bin" / "python")
    options = ["--strict", "--config-file=", "--cache-dir=../cache", "--output=json", "--python-executable", python]
    told = _run("mypy", *options, *sorted(path.name for path in code.glob("*.py")), cwd=code)
    entries = [json.loads(line) for line in told.splitlines()]
    return {(each["file"], each["line"], each["code"]) for each in entries if each["severity"] == "error"}


def run_pyright(code: Path) -> Found:
    """Return the errors of basedpyright in pyright's strict mode."""
    config = {"typeCheckingMode": "strict", "venvPath": "..", "venv": "venv", "include": ["."]}
    (code / "pyrightconfig.json").write_text(json.dumps(config))
    entries = json.loads(_run("basedpyright", "--outputjson", ".", cwd=code))["generalDiagnostics"]
    return {
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1, each["rule"])
        for each in entries
        if each["severity"] == "error"
    }


def _run(module: str, *arguments: str, cwd: Path) -> str:
    """Return the output of a type checker. Raises `RuntimeError` if it could not check."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode > 1:
        raise RuntimeError(done.stdout + done.stderr)
    return done.stdout


def expected(code: Path) -> dict[tuple[str, int], set[str]]:
    """Return the codes in the comments `# E: code ...` of each line."""
    return {
        (path.name, number): set(comment[1].split())
        for path in code.glob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (comment := re.search(r"# E: (.*)$", line))
    }


def compare(found: Found, lines: dict[tuple[str, int], set[str]]) -> Iterator[str]:
    """Yield the errors that are not expected, and the lines that have none of the expected ones."""
    for file, line, code in sorted(found):
        if code not in lines.get((file, line), set()):
            yield f"checks/samples/{file}:{line}: {code} is not expected"
    for file, line in sorted(lines.keys() - {each[:2] for each in found}):
        yield f"checks/samples/{file}:{line}: no error is reported"


def check_samples() -> Iterator[str]:
    """Yield what is wrong in the samples, with each checker, without and with the published types of Celery."""
    for stubs in (False, True):
        code = make_project(BUILD / ("stubs" if stubs else "plain"), stubs=stubs)
        for run in (run_mypy, run_pyright):
            with_types = " with celery-types" if stubs else ""
            told = compare(run(code), expected(code))
            yield from (f"{fault} ({run.__name__.removeprefix('run_')}{with_types})" for fault in told)


def check_blocks() -> Iterator[str]:
    """Yield what mypy finds in the blocks of Python of the pages, as modules."""
    shutil.rmtree(BUILD / "pages", ignore_errors=True)
    for page in pages():
        folder = BUILD / "pages" / re.sub(r"\W", "_", page.place.removesuffix(".md"))
        folder.mkdir(parents=True)
        files = page.files(only_run=False) if not page.tested_by else {}
        own = "|".join(files) or "-"
        for name, text in files.items():
            moved = re.sub(rf"^from ({own}) import", rf"from pages.{folder.name}.\1 import", text, flags=re.MULTILINE)
            (folder / f"{name}.py").write_text(moved, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", *LENIENT, "--config-file=", f"--cache-dir={BUILD / 'cache'}", "pages"]
    path = {"MYPYPATH": f"{ROOT / 'src'}{os.pathsep}{BUILD}"}
    done = subprocess.run(command, cwd=BUILD, env=os.environ | path, capture_output=True, text=True, check=False)
    if done.returncode:
        yield done.stdout + done.stderr


def main() -> int:
    """Check the samples and the blocks; return the exit code."""
    faults = [*check_samples(), *check_blocks()]
    print(*faults, sep="\n") if faults else print("the samples and the blocks of the pages have the right types")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
