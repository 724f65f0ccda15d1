"""The logs of runs over HTTP, in Python, and at the command line."""

from __future__ import annotations

import onejob
from onejob.jobs.run_log import RunLog
from onejob.stores.protocol import LOGS_KEPT
from tests.api.conftest import Shop, problem
from tests.cli.command import call


def test_operators_read_the_logs_of_a_job(keyed: Shop) -> None:
    """An operator gets the text of each attempt over HTTP, in Python and by `jobs logs`; a reader is refused."""
    operator = keyed.named("operate")
    job = operator.claimed(operator.named("submit").job_id())
    operator.ledger.keep_run_log(job, "one\ntwo \x1b[2J\n")
    expected = [{"attempt": 1, "text": "one\ntwo \x1b[2J\n"}]
    assert operator.get(f"/jobs/{job.id}/logs").json() == expected
    problem(keyed.named("read").get(f"/jobs/{job.id}/logs"), 403, "forbidden")
    problem(operator.get("/jobs/nothing/logs"), 404, "job-not-found")
    assert onejob.Client(operator.app).logs(job.id) == [RunLog(1, "one\ntwo \x1b[2J\n")]
    printed = call("--store", operator.app.conf.onejob_store, "jobs", "logs", job.id).output
    assert printed.splitlines()[0] == "one"
    assert "\x1b" not in printed


def test_the_newest_attempts_have_logs(shop: Shop) -> None:
    """Of a job with many attempts the newest ten have logs, which end with the job."""
    job_id = shop.job_id()
    for attempt in range(1, LOGS_KEPT + 3):
        job = shop.claimed(job_id)
        shop.ledger.keep_run_log(job, f"attempt {attempt}\n")
        shop.ledger.release(job, "again")
    assert [each["attempt"] for each in shop.get(f"/jobs/{job_id}/logs").json()] == [*range(3, LOGS_KEPT + 3)]
    shop.ledger.cancel(job_id)
    shop.ledger.delete(job_id, force=True)
    assert shop.ledger.store.run_logs(job_id) == {}
