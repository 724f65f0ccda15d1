"""Which ledger a command uses, and how one is made: files, settings, migrations; identities of an app's tasks."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner

from onejob.cli.access import find_app
from onejob.cli.commands import celery_group
from onejob.jobs.lifecycle import State
from onejob.ledger.ledger import Ledger
from onejob.stores.schema import HEAD, VERSIONS
from onejob.transactions.fence import TABLE
from tests.cases import for_each
from tests.cli.command import APP, Shell, call
from tests.fundamentals.shop import order
from tests.operation_cases import failed
from tests.services import PostgresServer


@for_each("words", [
    "jobs list", "jobs show x", "jobs cancel x", "why x", "dead list", "dead drop x", "dead redrive x", "duplicates",
    "workers", "metrics", "migrate status",
])  # fmt: skip
def test_a_mistyped_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    """A SQLite file that does not exist is refused with its path and the remedy, and is not created."""
    monkeypatch.chdir(tmp_path)
    refused = call("--store", "sqlite:///typo.db", *words.split())
    assert refused.exit_code == 1
    assert all(text in refused.output for text in (str(tmp_path / "typo.db"), "--create"))
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_created_on_request(tmp_path: Path, app_shell: Shell) -> None:
    """`--create` and `migrate up` create the file, after which no command needs the option; that of an app, too."""
    assert "--create" in app_shell("jobs", "list").output
    assert not (tmp_path / "ledger.db").exists()
    for words in ("--create jobs list", "--create migrate status", "migrate up"):
        shell = Shell(("--store", f"sqlite:///{tmp_path / words.replace(' ', '-')}.db"))
        shell(*words.split())
        listed = shell("jobs", "list")
        assert (listed.exit_code, listed.output.split()[0]) == (0, "id")


def test_the_store_can_be_named_by_the_environment(
    ledger: Ledger, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONEJOB_STORE names the ledger when --store does not, or ONEJOB_STORE_FILE a file with the URL, as of a secret."""
    job = ledger.submit(order(42)).job
    monkeypatch.delenv("ONEJOB_STORE", raising=False)
    nameless = call("jobs", "list")
    assert nameless.exit_code == 1
    assert "--store URL" in nameless.output
    monkeypatch.setenv("ONEJOB_STORE_FILE", str(tmp_path / "store"))
    missing = call("jobs", "list")
    assert missing.exit_code == 1
    assert "Name a file with the URL of the ledger" in missing.output
    (tmp_path / "alive").touch()
    assert call("probe", str(tmp_path / "alive")).output == "ok\n", "which needs no store"
    (tmp_path / "store").write_text(f"{url}\n")
    assert job.id in call("jobs", "list").output
    assert "sqlite:///other" in call("--store", "sqlite:///other", "jobs", "list").output
    monkeypatch.delenv("ONEJOB_STORE_FILE")
    monkeypatch.setenv("ONEJOB_STORE", url)
    assert job.id in call("jobs", "list").output


@for_each("seconds", ["nan", "0", "-1", "soon"])
def test_seconds_are_a_number_above_0(tmp_path: Path, seconds: str) -> None:
    """An age that is no number above 0 is refused: nothing is older than NaN."""
    (tmp_path / "alive").touch()
    assert call("probe", str(tmp_path / "alive"), "--max-age", seconds).exit_code == 2


def test_the_settings_of_an_app_apply(ledger: Ledger, tmp_path: Path, app_shell: Shell) -> None:
    """A command uses the settings of its app, as the retention of a canceled job; one without a store is refused."""
    module = tmp_path / f"{app_shell.options[1]}.py"
    module.write_text(module.read_text() + "app.conf.onejob_retention = {'canceled': 7}\n")
    job = ledger.submit(order(1)).job
    assert app_shell("jobs", "cancel", job.id).exit_code == 0
    ended = ledger.get(job.id)
    assert ended.wake_at == pytest.approx((ended.finished_at or 0) + 7, abs=1.0)
    (tmp_path / f"without_{module.name}").write_text("import celery\napp = celery.Celery(broker='memory://')\n")
    refused = call("-A", f"without_{module.stem}", "jobs", "list")
    assert refused.exit_code == 1
    assert "Set app.conf.onejob_store" in refused.output


@for_each("words", ["dead edit ID --args [2]", "beat run tick", "serve APP --host 192.0.2.1"])
def test_an_app_submits_to_its_own_ledger(ledger: Ledger, app_shell: Shell, tmp_path: Path, words: str) -> None:
    """What submits with an app is refused for another ledger, whose dead letter would end as a job of the app's."""
    dead = failed(ledger)
    other = tmp_path / "other.db"
    module = tmp_path / f"{app_shell.options[1]}.py"
    module.write_text(APP.format(path=other))
    for options in (("--store", f"sqlite:///{tmp_path / 'ledger.db'}"), ("--namespace", "another")):
        chosen = words.replace("ID", dead.id).replace("APP", app_shell.options[1])
        refused = app_shell(*options, "--create", *chosen.split())
        assert refused.exit_code == 1
        assert f"its own ledger, sqlite:///{other}" in refused.output
    assert ledger.get(dead.id).state == State.FAILED
    assert not other.exists()


def test_an_app_is_served_however_it_is_named(app_shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """`serve` takes the app of its argument, of `-A` and of `celery -A`; without one it says what is missing."""
    name, served = app_shell.options[1], list[Any]()
    monkeypatch.setattr("onejob.api.server.serve", lambda web, **_: served.append(web))
    words = ["--create", "serve"]
    assert [call(*words, name).exit_code, app_shell(*words).exit_code] == [0, 0]
    result = CliRunner().invoke(celery_group, words, obj=CLIContext(find_app(name), no_color=True, workdir="."))
    assert (result.exit_code, len(served)) == (0, 3)
    refused = call("serve")
    assert refused.exit_code == 1
    assert "name one with -A module" in refused.output


def test_an_app_has_the_tasks_of_the_modules_that_it_names(tmp_path: Path, app_shell: Shell) -> None:
    """The command knows the tasks of the modules that an app includes, as a worker does, and says which is missing."""
    name, included = app_shell.options[1], f"included_by_{app_shell.options[1]}"
    module = tmp_path / f"{name}.py"
    module.write_text(module.read_text() + f"app.conf.include = ['{included}']\n")
    refused = app_shell("identity", "later", "7")
    assert refused.exit_code == 1
    assert f"No module named '{included}'" in refused.output
    later = f"@{name}.app.task(base=onejob.Task, name='later', shared=False)\ndef later(number): ...\n"
    (tmp_path / f"{included}.py").write_text(f"import onejob, {name}\n\n{later}")
    assert app_shell("identity", "later", "7").exit_code == 0


def test_an_app_that_is_none_is_named() -> None:
    """`-A` with the name of another object says its class, of none what is missing, and stands before the command."""
    assert "module 'tests.cli.command' has no attribute 'ap'" in call("-A", "tests.cli.command:ap", "doctor").output
    told = call("-A", "tests.cli.command:APP", "doctor").output
    assert "'tests.cli.command:APP' is of class str, not a Celery app" in told
    assert "-A stands before the command: onejob -A ... doctor" in call("doctor", "-A", "shop").output


# --- identities -----------------------------------------------------------------------------------------------------


def test_identity_prints_what_is_hashed(app_shell: Shell, ledger: Ledger) -> None:
    """`identity` prints the hashed text of a call, in which words of JSON are values, and `--check` its outcome."""
    task, deep = f"{app_shell.options[1]}.invoice", "[" * 9999
    words = (["42", "note=hello"], ["order_id=42"], ['"42"'], ["hello"], [deep])
    one, other, text, plain, nested = (app_shell("identity", task, *each).output for each in words)
    assert one == other
    for output, value in ((one, "42"), (text, '"42"'), (plain, '"hello"'), (nested, f'"{deep}"')):
        assert f'"order_id":{value}' in output
    unknown = app_shell("identity", "shop.bill", "42")
    assert unknown.exit_code == 1
    assert task in unknown.output
    command = ("identity", f"{app_shell.options[1]}.invoice", "order_id=7")
    hashed, checked = app_shell.lines(*command), app_shell.lines(*command, "--check")
    assert (checked[:2], checked[2].split()) == (hashed, ["outcome:", "admitted"])
    job = ledger.submit(replace(order(7), identity=hashed[1].split()[1])).job
    found = app_shell.json(*command, "--check")
    assert found["outcome"] == "attached"
    assert found["job"] == job.id
    assert job.id in found["reason"]


# --- migrate --------------------------------------------------------------------------------------------------------


@pytest.fixture
def nowhere(postgres_server: PostgresServer) -> Iterator[Shell]:
    """Return the command for a schema in PostgreSQL which is not there yet."""
    name = f"cli_{secrets.token_hex(4)}"
    yield Shell(("--store", postgres_server.url, "--namespace", name))
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute(f"drop schema if exists {name} cascade".encode())


def test_an_error_of_several_lines_is_one_line() -> None:
    """The lines of a driver's error are one line, in which nothing is escaped."""
    refused = call("--store", "postgresql://127.0.0.1:1/none", "migrate", "up")
    assert (refused.exit_code, refused.output.count("\n")) == (1, 1)
    assert "refused Is the server running" in refused.output


def test_an_advice_names_the_app_that_was_given(
    postgres_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an error or the doctor advises names the ledger by the app, if a command was given one."""
    (tmp_path / "advised.py").write_text(
        "import celery\napp = celery.Celery('advised', broker='memory://', set_as_current=False)\n"
        f"app.conf.onejob_store, app.conf.onejob_namespace = {postgres_server.url!r}, 'nowhere'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for words in (["jobs", "list"], ["doctor"]):
        output = call("-A", "advised", *words).output
        assert "run `onejob -A advised migrate up`" in output
        assert "--store URL" not in output


def test_migrate_makes_a_ledger(nowhere: Shell) -> None:
    """`migrate` says what is to do, prints its SQL, and does it, after which the ledger can be listed."""
    schema = nowhere.options[-1]
    listed = nowhere("jobs", "list")
    assert listed.exit_code == 1
    assert "migrate up" in listed.output
    assert f'create table "{schema}".jobs' in nowhere("migrate", "sql").output
    before = nowhere("migrate", "status")
    assert before.exit_code == 1
    assert f"to do: {', '.join(VERSIONS)}" in before.output
    done = nowhere("migrate", "up").output
    assert done.endswith(f"schema {schema} was created with {HEAD}: {', '.join(VERSIONS)}\n")
    assert "nothing to do" in nowhere("migrate", "up").output
    after = nowhere("migrate", "status", "--json")
    assert (after.exit_code, json.loads(after.output)) == (
        0,
        {"current": HEAD, "head": HEAD, "pending": [], "repairs": []},
    )
    assert nowhere("jobs", "list").exit_code == 0
    assert "no ledger is named" in call("migrate", "up").output
    assert call("migrate", "fence").output == f"{TABLE};\n"
