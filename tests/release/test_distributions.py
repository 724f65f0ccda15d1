"""What a release consists of: the wheel and the source distribution, installed where nothing else is."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path
from zipfile import ZipFile

import pytest
from hatchling import build

from checks.pages import RAW, TARGET
from checks.project import PACKAGE, ROOT, paths
from tests.release.environments import clean_environment

LIGHT = frozenset(
    "amqp async-timeout billiard celery click click-didyoumean click-plugins click-repl exceptiongroup hiredis kombu "
    "msgpack onejob packaging pip prompt-toolkit python-dateutil redis setuptools six typing-extensions tzdata tzlocal "
    "vine wcwidth".split()
)
"""Everything that `pip install onejob` may install: Celery with what it needs, and a Redis client."""
SHOP = """
import celery, onejob

app = celery.Celery("shop", broker="memory://")
app.conf.onejob_store = "sqlite:///ledger.db"
app.conf.worker_hijack_root_logger = False

@app.task(base=onejob.Task, unique_on=["order_id"])
def invoice(order_id: int, note: str = "") -> str:
    return f"invoice {order_id}"

if __name__ == "__main__":
    from celery.contrib.testing.worker import start_worker

    first, again = invoice.delay(42), invoice.delay(42, note="clicked twice")
    with start_worker(app, perform_ping_check=False, pool="solo"):
        print(first.outcome, again.outcome, first.id == again.id, again.get(timeout=60))
"""
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the built wheel and the built source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    before = Path.cwd()
    os.chdir(ROOT)  # where a build backend works
    try:
        names = {"wheel": build.build_wheel(str(folder)), "sdist": build.build_sdist(str(folder))}
    finally:
        os.chdir(before)
    return {kind: folder / name for kind, name in names.items()}


def unpack(sdist: Path, folder: Path) -> Path:
    """Unpack a source distribution, and return its folder."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = folder.iterdir()
    return unpacked


def run(python: Path, *arguments: str, cwd: Path) -> str:
    """Run an interpreter without anything from this environment, and return what it prints."""
    variables = {"PATH": os.defpath, "HOME": str(cwd), "TMPDIR": str(cwd), "LANG": "C.UTF-8", "COLUMNS": "160"}
    done = subprocess.run(
        [str(python), *arguments], cwd=cwd, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def contents(wheel: Path) -> dict[str, bytes]:
    """Return the files of a wheel, but for the list of them."""
    with ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}


def installed(python: Path, cwd: Path) -> Iterable[str]:
    """Return the names of the distributions that an environment has."""
    listed = json.loads(run(python, "-m", "pip", "list", "--format", "json", cwd=cwd))
    return {distribution["name"].lower().replace("_", "-") for distribution in listed}


def test_the_wheel_carries_the_whole_package(distributions: dict[str, Path]) -> None:
    """The wheel holds every file of the package, statements, scripts, texts and pages too, and nothing else."""
    names = {name for name in contents(distributions["wheel"]) if ".dist-info/" not in name}
    assert names == {str(path.relative_to(PACKAGE.parent)) for path in paths() if path.is_relative_to(PACKAGE)}
    assert {"onejob/py.typed", "onejob/stores/sqlite/migrations/0001.sql"} <= names


def test_the_source_distribution_builds_the_same_wheel(
    distributions: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheel that is built from the source distribution has the content of the one built from the repository."""
    monkeypatch.chdir(unpack(distributions["sdist"], tmp_path / "source"))
    again = tmp_path / build.build_wheel(str(tmp_path))
    assert contents(again) == contents(distributions["wheel"])


def test_the_source_distribution_has_the_whole_project(distributions: dict[str, Path], tmp_path: Path) -> None:
    """The source distribution has every file of the repository, so that it can be tested from there."""
    unpacked = unpack(distributions["sdist"], tmp_path)
    held = {path.relative_to(unpacked) for path in unpacked.rglob("*") if path.is_file()}
    assert {path.relative_to(ROOT) for path in paths()} - held == set()


def test_the_metadata_has_absolute_links_only(distributions: dict[str, Path]) -> None:
    """The README that the package index shows leads to the repository's host, with every link and every picture."""
    (text,) = (text for name, text in contents(distributions["wheel"]).items() if name.endswith("/METADATA"))
    targets = TARGET.findall(text.decode())
    assert [target for target in targets if not target.startswith("https://")] == []
    assert f"{RAW}docs/images/idea.svg" in targets


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_a_clean_environment_runs_the_first_job(distributions: dict[str, Path], tmp_path: Path, kind: str) -> None:
    """`pip install onejob` alone installs little, has the command, and runs equal jobs once."""
    python = clean_environment(tmp_path / "venv", str(distributions[kind]))
    assert set(installed(python, tmp_path)) - LIGHT == set()
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    assert run(python, "shop.py", cwd=tmp_path).endswith("admitted attached True invoice 42\n")
    onejob = str(python.with_name("onejob"))
    assert "onejob, version 0." in run(Path(onejob), "--version", cwd=tmp_path)
    assert "completed" in run(Path(onejob), "--store", "sqlite:///ledger.db", "jobs", "list", cwd=tmp_path)


@pytest.mark.deep
def test_the_demo_runs_from_the_wheel(distributions: dict[str, Path], tmp_path: Path) -> None:
    """`pip install "onejob[demo]"` and `onejob demo` work from the wheel, with its pages, scripts and texts."""
    python = clean_environment(tmp_path / "venv", f"{distributions['wheel']}[demo]")
    assert "1 admitted, 99 attached" in run(python.with_name("onejob"), "demo", cwd=tmp_path)
