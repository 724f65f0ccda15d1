"""`onejob demo` as a whole, with real processes."""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from rich.console import Console

from onejob.demo.scenario import print_cards
from onejob.demo.supervisor import SOCKET_PATH_LIMIT, ApiClient, DemoError, make_folder
from tests.services import eventually

DEMO = [sys.executable, "-c", "from onejob.cli.commands import main; main()", "demo"]
PATIENCE = 290.0


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Return a folder with a short path: that of a Unix socket is limited, and pytest's own folders grow longer."""
    with TemporaryDirectory(prefix="onejob-") as folder:
        yield Path(folder)


@pytest.fixture
def place(tmp_path: Path) -> dict[str, str]:
    """Return environment variables that place the demo's temporary files in the test's folder."""
    return os.environ | {"TMPDIR": str(tmp_path), "COLUMNS": "160"}


def processes_of(folder: Path) -> list[str]:
    """Return the environments or commands of the running processes that were started for a folder."""
    if Path("/proc/self/environ").exists():
        environments = (_environment(process) for process in Path("/proc").glob("[0-9]*"))
        return [text for text in environments if f"ONEJOB_DEMO_FOLDER={folder}" in text or f"TMPDIR={folder}" in text]
    ps = subprocess.run(["/bin/ps", "axeww", "-o", "command="], capture_output=True, text=True, check=True).stdout
    return [line for line in ps.splitlines() if f"TMPDIR={folder}" in line and "/bin/ps" not in line]


def _environment(process: Path) -> str:
    """Return a process's environment; "" if it has ended, is a zombie, or belongs to another user."""
    with suppress(OSError):
        return (process / "environ").read_text(errors="replace")
    return ""


@pytest.mark.deep
@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize("options", [[], ["--in-memory"], ["--documents", "texts"]])
def test_the_demo_succeeds(place: dict[str, str], tmp_path: Path, options: list[str]) -> None:
    """The demo, also with documents of one's own, resumes the job after the kill, and leaves no processes or files."""
    names = "Ganymede Callisto Io Europa Amalthea Himalia Elara Pasiphae Sinope Lysithea".split()
    sentence = "The {} is the largest of the {} moons that Galileo found near Jupiter in January of 1610."
    sentences = " ".join(sentence.format(name, number) for number, name in enumerate(names, 4))
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "moons.txt").write_text(f"Moons\n\n{sentences}\n\n{sentences}\n")
    completed = subprocess.run([*DEMO, *options], env=place, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "1 admitted, 99 attached" in completed.stdout
    assert "of them “waits for customer=school”" in completed.stdout
    assert "killed with SIGKILL" in completed.stdout
    assert "resumed on worker" in completed.stdout
    assert ("(Moons" in completed.stdout) is ("texts" in options)
    assert processes_of(tmp_path) == []
    assert list(tmp_path.glob("onejob-demo-*")) == []


def test_a_server_that_dies_is_reported() -> None:
    """A server that ends before its answer, or does not listen any more, is an error of the demo with its URL."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:
        api = ApiClient(server.getsockname()[1])
        answer = pool.submit(api.get, "meter")
        server.accept()[0].close()
        with pytest.raises(DemoError, match=rf"^{api.url}meter cannot be reached"):
            answer.result()
    with pytest.raises(DemoError, match="cannot be reached"):
        api.get("meter")


def test_cards_are_printed_as_they_are() -> None:
    """A card of one's own documents may have links and paths in brackets, which are no markup of the terminal."""
    card = {"question": "The [____](https://example.org) of [/etc/hosts]", "answer": "[names]", "source": "A [b], c"}
    print_cards(Console(file=(printed := io.StringIO()), width=160), [card])
    assert f"Q  {card['question']}\n  A  {card['answer']}  ({card['source']})\n" in printed.getvalue()


@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.deep)])
def test_nothing_survives_the_supervisor(place: dict[str, str], tmp_path: Path, number: signal.Signals) -> None:
    """When the supervisor is terminated or killed, its processes end and its folder is removed."""
    with subprocess.Popen([*DEMO, "--stay"], env=place, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as demo:
        try:
            assert demo.stdout is not None
            first = next(line for line in demo.stdout if "The page is at" in line)
            assert re.search(r"http://127\.0\.0\.1:\d+/", first)
            assert len(processes_of(tmp_path)) >= 4
            demo.send_signal(number)
            demo.wait(PATIENCE)
        finally:
            demo.kill()
    eventually(lambda: not processes_of(tmp_path))
    eventually(lambda: not list(tmp_path.glob("onejob-demo-*")))


@pytest.mark.parametrize("length", [1, 80])
def test_the_sockets_of_the_demo_have_short_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    """The folder of the demo is in the temporary directory, unless the path of its socket would be too long there."""
    directory = tmp_path / ("x" * length)
    directory.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(directory))
    folder = make_folder()
    folder.rmdir()
    assert len(os.fsencode(folder / "broker.sock")) <= SOCKET_PATH_LIMIT
    assert (folder.parent == directory) == (length == 1)
