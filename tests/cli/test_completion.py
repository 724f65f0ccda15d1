"""The laws of completion in a shell."""

from __future__ import annotations

import subprocess
import sys
from threading import Event
from typing import TYPE_CHECKING

import click
import pytest
from click.shell_completion import BashComplete

from onejob.cli import completions, main
from onejob.jobs.records import Registration
from tests.cli.command import APP, call
from tests.fundamentals.shop import claimed, order

if TYPE_CHECKING:
    from pathlib import Path

    from onejob.ledger.ledger import Ledger

PROGRAM = """#!/bin/sh
exec {python} -c '
from onejob.cli import completions, main
completions.TIMEOUT = 60.0
main(prog_name="onejob")' "$@"
"""
SCRIPT = """
source "$1/script"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_onejob_completion onejob "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give completions the time of a busy machine."""
    monkeypatch.setattr(completions, "TIMEOUT", 60.0)


def completed(*words: str) -> list[str]:
    """Return what the last word is completed to."""
    found = BashComplete(main, {}, "onejob", "_ONEJOB_COMPLETE").get_completions([*words[:-1]], words[-1])
    return [item.value for item in found]


def test_a_bash_completes(tmp_path: Path, ledger: Ledger, url: str) -> None:
    """A real bash completes states and jobs by the script that `onejob completion bash` prints."""
    job = ledger.submit(order(1)).job
    (tmp_path / "onejob").write_text(PROGRAM.format(python=sys.executable))
    (tmp_path / "onejob").chmod(0o700)
    (tmp_path / "script").write_text(call("completion", "bash").output)

    def in_bash(*words: str) -> list[str]:
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), "LC_ALL": "C.UTF-8"}
        command = ["/bin/bash", "--norc", "-c", SCRIPT, "bash", str(tmp_path), "onejob", *words]
        run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        assert run.stderr == ""
        return run.stdout.split()

    assert in_bash("jobs", "list", "--state", "c") == ["completed", "canceled"]
    assert in_bash("--store", url, "jobs", "show", job.id[:8]) == [job.id]


def test_words_are_completed(ledger: Ledger, url: str, tmp_path: Path) -> None:
    """Commands and options need no ledger; jobs, tasks, workers and queues are its own, tasks the app's, too."""
    for words, found in ((("do",), ["doctor"]), (("jobs", "ca"), ["cancel"]), (("jobs", "show", ""), []),
                         (("jobs", "list", "--subm"), ["--submitter"])):  # fmt: skip
        assert completed(*words) == found
    live, dead = ledger.submit(order(1)).job, ledger.submit(order(2)).job
    ledger.fail(claimed(ledger, dead.id), "{}", "no")
    registration = Registration(tasks=("shop.mail",), queues=("slow",))
    ledger.heartbeat("celery@north", lasts=600.0, registration=registration)
    for text, found in (
        ("jobs show ", [dead.id, live.id]), (f"why {live.id[:8]}", [live.id]), ("dead show ", [dead.id]),
        ("jobs list --task shop.", ["shop.invoice", "shop.mail"]), ("jobs list --worker c", ["celery@north"]),
        ("jobs list --queue ", ["slow"]),
    ):  # fmt: skip
        assert completed("--store", url, *text.split(" ")) == found, text
    (tmp_path / "completed_shop.py").write_text(APP.format(path=url.removeprefix("sqlite:///")) + "\nprint('noise')\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        assert completed("-A", "completed_shop", "identity", "completed") == ["completed_shop.invoice"]
    for shell, script in (("zsh", "#compdef onejob"), ("fish", "complete --no-files --command onejob")):
        assert script in call("completion", shell).output


def test_a_ledger_that_does_not_answer_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger that is missing, or takes longer than the timeout, completes nothing."""
    context = click.Context(main)
    context.params["store"] = "sqlite:///missing.db"
    assert completions.JOB.shell_complete(context, click.Argument(["job_id"]), "") == []
    context.params["store"] = "redis://127.0.0.1:1/0"
    over, ended = Event(), Event()

    def open_slowly(*_args: object, **_options: object) -> None:
        over.wait(60)
        ended.set()

    monkeypatch.setattr(completions, "open_store", open_slowly)
    monkeypatch.setattr(completions, "TIMEOUT", 0.05)
    assert completions.JOB.shell_complete(context, click.Argument(["job_id"]), "") == []
    assert not ended.is_set()
    over.set()
