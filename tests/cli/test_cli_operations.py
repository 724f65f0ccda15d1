"""Operations at the command line: run now, delete, bulk operations, groups of dead letters and duplicate checks."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from onejob.jobs.lifecycle import State
from onejob.jobs.records import Query
from tests.cli.command import APP, call
from tests.fundamentals.shop import claimed, order

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from onejob.ledger.ledger import Ledger


def test_a_delayed_job_is_made_due(ledger: Ledger, url: str) -> None:
    """`jobs run-now` makes a delayed job due, and refuses one that runs."""
    job = ledger.submit(order(1, delay=3600.0)).job
    assert call("--store", url, "jobs", "run-now", job.id).exit_code == 0
    assert ledger.history(job.id)[-1].detail == "made due at the command line"
    claimed(ledger, job.id)
    refused = call("--store", url, "jobs", "run-now", job.id)
    assert (refused.exit_code, "only a waiting job" in refused.output) == (1, True)


def test_an_ended_job_is_deleted(ledger: Ledger, url: str) -> None:
    """`jobs delete` deletes an ended job, and refuses a live one; both are in the audit log."""
    live, ended = ledger.submit(order(1)).job, ledger.cancel(ledger.submit(order(2)).job.id)
    assert call("--store", url, "jobs", "delete", ended.id).output == f"{ended.id} deleted\n"
    assert "Cancel it first" in call("--store", url, "jobs", "delete", live.id).output
    assert [job.id for job in ledger.find(Query())] == [live.id]
    assert [(each.action, each.target) for each in ledger.audit(limit=9)] == [
        ("delete", live.id), ("delete", ended.id),
    ]  # fmt: skip


def test_several_jobs_are_canceled(ledger: Ledger, url: str) -> None:
    """`jobs cancel` takes several ids; one that cannot be canceled stops no other, and makes the exit code 1."""
    first, ended, last = (ledger.submit(order(number)).job.id for number in range(3))
    ledger.cancel(ended)
    command = ("--store", url, "jobs", "cancel")
    result = call(*command, first, ended, "unknown", last)
    assert (result.exit_code, "2 canceled, 2 refused" in result.output) == (1, True)
    assert {ledger.get(each).state for each in (first, last)} == {State.CANCELED}
    more = [ledger.submit(order(number)).job.id for number in (4, 5)]
    done = call(*command, "--force", "--json", *more)
    assert (done.exit_code, json.loads(done.output)["done"]) == (0, more)
    assert [(each.action, each.detail) for each in ledger.audit(limit=2)] == [("cancel", "forced"), ("cancel", "")]
    assert call(*command).exit_code == 2


def test_an_ended_job_is_not_canceled(ledger: Ledger, url: str) -> None:
    """`jobs cancel` of a job that has ended is refused with its state."""
    job = ledger.complete(claimed(ledger, ledger.submit(order(1)).job.id), "1")
    refused = call("--store", url, "jobs", "cancel", job.id)
    assert (refused.exit_code, "is completed" in refused.output) == (1, True)


def test_many_jobs_are_operated_on(ledger: Ledger, url: str) -> None:
    """`jobs bulk` asks before it changes the jobs that match, in the states that the operation applies to."""
    delayed = [ledger.submit(order(number, delay=3600.0)).job.id for number in range(3)]
    ended = ledger.cancel(ledger.submit(order(9)).job.id)
    command = ("--store", url, "jobs", "bulk")
    declined = call(*command, "cancel", "--task", "shop.invoice", text="n\n")
    assert (declined.exit_code, "3 jobs will be canceled" in declined.stderr) == (1, True)
    dry = json.loads(call(*command, "run_now", "--since", "1h", "--dry-run", "--json").output)
    assert dry == {"dry_run": True, "done": delayed[::-1], "refused": {}}
    assert {job.state for job in ledger.find(Query()) if job.id != ended.id} == {State.QUEUED}
    assert "2 canceled, 0 refused" in call(*command, "cancel", "--limit", "2", "--state", "queued", "--yes").output
    assert "1 canceled, 0 refused" in call(*command, "cancel", "--task", "shop.invoice", text="y\n").output
    assert "4 deleted" in call(*command, "delete", "--error", "cancel", "--yes").output
    assert ledger.find(Query()) == []
    assert ledger.audit(limit=1)[0].detail == "reason=cancel limit=1000"


def test_a_refusal_is_reported(ledger: Ledger, url: str) -> None:
    """A job in another state that is selected is refused with its reason, and exit code 1; so is no filter, with 2."""
    job = ledger.submit(order(1)).job
    refused = call("--store", url, "jobs", "bulk", "redrive", "--state", "queued", "--yes")
    assert (refused.exit_code, job.id in refused.output, "0 redriven, 1 refused" in refused.output) == (1, True, True)
    assert call("--store", url, "jobs", "bulk", "cancel", "--yes").exit_code == 2


def test_dead_letters_are_grouped(ledger: Ledger, url: str) -> None:
    """`dead groups` prints a line for each task and error, with the number of its jobs."""
    for number in range(3):
        error = {"type": "KeyError", "message": f"no row {number}", "traceback": ""}
        ledger.fail(claimed(ledger, ledger.submit(order(number)).job.id), json.dumps(error), "no")
    heading, line = call("--store", url, "dead", "groups").output.splitlines()
    assert heading.split()[:3] == ["jobs", "task", "error"]
    assert (line.split()[:3], line.endswith("no row 2")) == (["3", "shop.invoice", "KeyError"], True)
    (group,) = json.loads(call("--store", url, "dead", "groups", "--json").output)
    assert (group["count"], group["pattern"], len(group["job_ids"])) == (3, "no row …", 3)


def test_an_identity_is_checked(url: str, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`identity --check` also prints the outcome of the call, and the job that would answer it."""
    (tmp_path / "checked_shop.py").write_text(APP.format(path=tmp_path / "ledger.db"))
    monkeypatch.syspath_prepend(str(tmp_path))
    command = ("-A", "checked_shop", "identity", "checked_shop.invoice", "order_id=7")
    plain = call(*command).output.splitlines()
    checked = call(*command, "--check").output.splitlines()
    assert checked[:2] == plain
    assert checked[2].split() == ["outcome:", "admitted"]
    job = ledger.submit(replace(order(7), identity=plain[1].split()[1])).job
    found = json.loads(call(*command, "--check", "--json").output)
    assert (found["outcome"], found["job"], job.id in found["reason"]) == ("attached", job.id, True)
