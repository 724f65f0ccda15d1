"""The laws of the command line, on a real ledger in a file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from onejob.cli import main
from onejob.ledger import Ledger
from onejob.stores import open_store
from tests.fundamentals.shop import claimed, order

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result

APP = """
import celery, onejob
app = celery.Celery("shop", broker="memory://")
app.conf.onejob_store = "sqlite:///{path}"

@app.task(base=onejob.Task, unique_on=["order_id"])
def invoice(order_id, note=""): ...
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a ledger in a file."""
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    """Return that ledger."""
    ledger = Ledger(open_store(url))
    yield ledger
    ledger.close()


def call(*args: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(main, args, catch_exceptions=False)


def test_list_shows_each_job_once(ledger: Ledger, url: str) -> None:
    """`jobs list` prints one line for each job, newest first, after a heading."""
    jobs = [ledger.submit(order(number)).job for number in range(3)]
    lines = call("--store", url, "jobs", "list").output.splitlines()
    assert [line.split()[0] for line in lines] == ["id", *(job.id for job in reversed(jobs))]


def test_list_filters(ledger: Ledger, url: str) -> None:
    """`jobs list` keeps to the states, the task and the identity that were asked for."""
    waiting, running = ledger.submit(order(1)).job, ledger.submit(order(2)).job
    claimed(ledger, running.id)

    def ids(*options: str) -> list[str]:
        return [job["id"] for job in json.loads(call("--store", url, "jobs", "list", "--json", *options).output)]

    assert ids("--state", "running") == [running.id]
    assert ids("--state", "running", "--state", "queued") == [running.id, waiting.id]
    assert ids("--task", "another") == []
    assert ids("--identity", waiting.identity) == [waiting.id]
    assert ids("--limit", "1") == [running.id]


def test_show_opens_the_payload(ledger: Ledger, url: str) -> None:
    """`jobs show --json` prints a job whose payload is JSON and not a text of JSON."""
    job = ledger.submit(order(42)).job
    assert json.loads(call("--store", url, "jobs", "show", job.id, "--json").output)["payload"] == {"args": [42]}


def test_cancel_cancels(ledger: Ledger, url: str) -> None:
    """`jobs cancel` ends a waiting job and says in the ledger from where."""
    job = ledger.submit(order(42)).job
    assert call("--store", url, "jobs", "cancel", job.id).exit_code == 0
    assert ledger.get(job.id).reason == "canceled at the command line"


def test_why_tells_sentences(ledger: Ledger, url: str) -> None:
    """`why` prints the history as sentences."""
    job = ledger.submit(order(42)).job
    assert "The job was admitted" in call("--store", url, "why", job.id).output


@pytest.mark.parametrize("words", [["jobs", "show", "x"], ["why", "x"], ["jobs", "cancel", "x"]])
def test_an_unknown_job_is_a_sentence(ledger: Ledger, url: str, words: list[str]) -> None:
    """An id that no job has gives exit code 1 and a sentence, no traceback."""
    ledger.submit(order(42))
    result = call("--store", url, *words)
    assert result.exit_code == 1
    assert "no job has the id 'x'" in result.output


def test_no_ledger_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a store and without an app, the command says how to name one."""
    monkeypatch.delenv("ONEJOB_STORE", raising=False)
    result = call("jobs", "list")
    assert result.exit_code == 1
    assert "--store URL" in result.output


def test_the_store_may_come_from_the_environment(ledger: Ledger, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONEJOB_STORE names the ledger when --store does not."""
    job = ledger.submit(order(42)).job
    monkeypatch.setenv("ONEJOB_STORE", url)
    assert job.id in call("jobs", "list").output


def test_identity_prints_what_is_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`identity` tells equal calls by the same text and hash, JSON words as values and others as text."""
    (tmp_path / "cli_shop.py").write_text(APP.format(path=tmp_path / "ledger.db"))
    monkeypatch.syspath_prepend(str(tmp_path))
    one = call("-A", "cli_shop", "identity", "cli_shop.invoice", "42", "note=hello")
    other = call("-A", "cli_shop", "identity", "cli_shop.invoice", "order_id=42")
    text = call("-A", "cli_shop", "identity", "cli_shop.invoice", '"42"')
    assert one.output == other.output
    assert '"order_id":42' in one.output
    assert '"order_id":"42"' in text.output


def test_identity_names_the_tasks_that_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that the app does not have is refused with the names of those that it has."""
    (tmp_path / "cli_shop2.py").write_text(APP.format(path=tmp_path / "ledger.db"))
    monkeypatch.syspath_prepend(str(tmp_path))
    result = call("-A", "cli_shop2", "identity", "cli_shop2.bill", "42")
    assert result.exit_code == 1
    assert "cli_shop2.invoice" in result.output
