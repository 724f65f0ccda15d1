"""The laws of `onejob doctor`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner

import onejob
from onejob.cli.access import find_app
from onejob.cli.commands import celery_group
from onejob.doctor import examine
from onejob.health.finding import Level
from tests.cli.command import Shell, call
from tests.cli.conftest import app_shell
from tests.doctor.support import installed

__all__ = ["app_shell"]


def test_a_healthy_ledger_is_ok(tmp_path: Path) -> None:
    """A ledger with a live worker is ok, also with --fail-on warning; one that is not there is not made."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    missing = call("--store", url, "doctor")
    assert missing.exit_code == 1
    assert "there is no ledger" in missing.output
    assert [*tmp_path.iterdir()] == []
    with installed(url) as installation:
        installation.ledger.heartbeat("celery@one", lasts=60.0)
    result = call("--store", url, "doctor", "--json", "--fail-on", "warning")
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert {"level": "ok", "subject": "ledger", "check": ""}.items() <= found[0].items()
    assert str(tmp_path) in found[0]["problem"]
    assert {finding["level"] for finding in found} == {"ok"}


def test_the_exit_code_follows_the_worst_finding(tmp_path: Path, app_shell: Shell) -> None:
    """A warning fails the command with --fail-on warning only, an error always; Celery has the command, too.

    The last line has the number of findings of each level, in English.
    """
    name = app_shell.options[1]
    context = CLIContext(find_app(name), no_color=True, workdir=".")
    result = CliRunner().invoke(celery_group, ["--create", "doctor"], obj=context)
    assert result.exit_code == 0
    assert "app: worker_prefetch_multiplier is 4" in result.output
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    assert call("--store", url, "doctor").exit_code == 0
    assert call("--store", url, "doctor", "--fail-on", "warning").exit_code == 1
    find_app(name).conf.update(task_always_eager=True, task_serializer="pickle")
    result = app_shell("doctor")
    assert result.exit_code == 1
    assert "task_always_eager is True" in result.output
    assert result.output.splitlines()[-1] == "1 error, 2 warnings, 2 info, 2 ok"


def test_an_app_that_no_worker_can_start_is_an_error(tmp_path: Path) -> None:
    """An option of a task, or a setting, that cannot work is one error that names it."""
    with installed(f"sqlite:///{tmp_path / 'ledger.db'}") as installation:
        app = Celery("shop", broker="memory://", changes={"onejob_store": "sqlite:///none.db"}, set_as_current=False)
        app.task(base=onejob.Task, name="shop.wrong", unique_onn=["a"], shared=False)(_nothing)
        findings = examine(replace(installation, app=app))
        misspelt = Celery("shop", broker="memory://", changes={"onejob_leese": 5}, set_as_current=False)
        findings += examine(replace(installation, app=misspelt))
    assert [(each.check, each.problem) for each in findings if each.level is Level.ERROR] == [
        ("invalid-configuration", "task shop.wrong has no option unique_onn: did you mean unique_on?"),
        ("invalid-configuration", "there is no setting onejob_leese: did you mean onejob_lease?"),
    ]


def _nothing(a: int) -> None: ...


def test_an_unusable_ledger_is_an_error() -> None:
    """A store that does not answer is an error that says what to do, with the exit code 1."""
    result = call("--store", "redis://127.0.0.1:1/0", "doctor")
    assert result.exit_code == 1
    line, means, to_do, count = result.output.splitlines()
    assert line.startswith("error    ledger: the Redis store at 127.0.0.1:1/0 did not answer")
    assert "means: no job can be submitted" in means
    assert "to do: " in to_do
    assert count == "1 error"
