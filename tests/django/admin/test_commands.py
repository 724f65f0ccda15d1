"""The commands of `onejob` as a command of `manage.py`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.django.admin.staff import on_every_store

if TYPE_CHECKING:
    from tests.django.admin.conftest import Shop

CALLS = """
from io import StringIO
from django.core.management import CommandError, call_command
def call(*words, **options):
    output = StringIO()
    try:
        call_command("onejob", *words, stdout=output, **options)
    except CommandError as error:
        return [error.returncode, str(error)]
    except SystemExit as error:
        return [error.code, output.getvalue()]
    return [0, output.getvalue()]
print(json.dumps([call(*words) for words in json.loads(sys.argv[1])]))
"""


@on_every_store
def test_manage_has_the_commands(shop: Shop) -> None:
    """Jobs are listed, explained and canceled in the project's ledger, wherever that is, with the words of `onejob`."""
    job_id, other = shop.job("command"), shop.job("command")
    listing = ["jobs", "list", "--state", "queued", "--argument", "command", "--json"]
    calls = [listing, ["why", job_id], ["jobs", "cancel", job_id], ["jobs", "cancel", job_id]]
    listed, why, canceled, refused = shop.project.script(CALLS, calls)
    assert {job["id"] for job in json.loads(listed[1])} == {job_id, other}
    assert (why[0], job_id in why[1]) == (0, True)
    assert (canceled[0], "canceled at the command line" in canceled[1]) == (0, True)
    assert (refused[0], f"job {job_id} is canceled" in refused[1]) == (1, True)
    assert shop.sample.ledger.get(job_id).state == "canceled"


def test_errors_are_those_of_manage(shop: Shop) -> None:
    """What is wrong is a `CommandError` with one sentence, and the exit code of the command."""
    unknown, wrong, option, found = shop.project.script(
        CALLS, [["why", "unknown"], ["nothing"], ["jobs", "list", "--state", "odd"], ["dead", "redrive", "unknown"]]
    )
    assert (unknown[0], "no job has the id 'unknown'" in unknown[1]) == (1, True)
    assert (wrong[0], "No such command 'nothing'" in wrong[1]) == (2, True)
    assert (option[0], "Usage: manage.py onejob jobs list" in option[1]) == (2, True)
    assert found[0] == 1
    shown = shop.project.manage("onejob", "why", "unknown", "--settings", "shop.settings", code=1)
    assert shown.startswith("CommandError: no job has the id 'unknown'")
    assert "Usage: manage.py onejob" in shop.project.manage("onejob", "--help")
