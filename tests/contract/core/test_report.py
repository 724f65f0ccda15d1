"""Progress and steps: what a run may store, while its token is the job's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob.errors import JobCanceled, LeaseLost
from onejob.jobs.lifecycle import Transition
from onejob.jobs.model import Cancel
from tests.contract.support import (
    RUNNING,
    ManualClock,
    apply,
    assert_changed,
    get,
    run,
    start,
    submit,
    untouched,
)

if TYPE_CHECKING:
    from onejob.jobs.model import Job
    from onejob.ledger.ledger import Ledger
    from onejob.stores.protocol import Store


def _report(store: Store, job: Job, progress: str = "1") -> Cancel | None:
    return store.report(job.id, job.token, progress, sources=RUNNING)


def _keep_step(store: Store, job: Job, name: str = "one", value: str = "1") -> str | None:
    return store.keep_step(job.id, job.token, name, value, sources=RUNNING)


def test_a_stale_run_reports_nothing(store: Store, clock: ManualClock) -> None:
    """A report with a stale token is refused while another run has the job."""
    stale = run(store)
    apply(store, stale, Transition.CRASH)
    clock.advance(1.0)
    current = start(store)
    with untouched(store):
        assert _report(store, stale) is None
    assert _report(store, current) is Cancel.NO


def test_a_report_changes_its_own_job_only(store: Store, clock: ManualClock) -> None:
    """Of two jobs that share a token, because they were claimed at the same time, a report changes one only."""
    first, second = run(store, "job-1"), run(store, "job-2")
    assert first.token == second.token
    with untouched(store, "job-2"):
        _report(store, first)
        _keep_step(store, first)


@pytest.mark.parametrize("requested", [Cancel.ASKED, Cancel.FORCED])
def test_a_report_returns_the_cancel_request(store: Store, requested: Cancel) -> None:
    """A report returns the cancel request, and the progress is kept."""
    job = run(store)
    job = apply(store, job, Transition.REQUEST_CANCEL, cancel=requested)
    assert _report(store, job, "7") is requested
    assert_changed(store, job, get(store, job.id), progress="7")


def test_a_step_is_kept_with_its_first_value(store: Store, clock: ManualClock) -> None:
    """The first value of a step is kept; a later call returns it, and the job's row does not change."""
    job = run(store)
    clock.advance(1.0)
    assert _keep_step(store, job, "one", "1") == "1"
    assert _keep_step(store, job, "one", "2") == "1"
    assert store.steps(job.id) == {"one": "1"}
    assert_changed(store, job, get(store, job.id))


def test_steps_are_kept_by_name(store: Store) -> None:
    """Steps of different names are kept separately, and their values exactly."""
    job = run(store)
    expected = {"one": "null", "two words": '"ž😀"', "": "0", "three:{}": ""}
    for name, value in expected.items():
        assert _keep_step(store, job, name, value) == value
    assert store.steps(job.id) == expected


@pytest.mark.parametrize("event", [Transition.RETRY, Transition.RELEASE, Transition.CRASH])
def test_steps_are_kept_after_the_run(store: Store, event: Transition) -> None:
    """The next run reads the steps of previous runs, and their first values are still kept."""
    job = run(store)
    _keep_step(store, job, "one", "1")
    apply(store, job, event)
    job = start(store)
    assert store.steps(job.id) == {"one": "1"}
    assert _keep_step(store, job, "one", "2") == "1"
    assert _keep_step(store, job, "two", "2") == "2"


def test_a_stale_run_keeps_no_step(store: Store, clock: ManualClock) -> None:
    """A step with a stale token is refused while another run has the job."""
    stale = run(store)
    apply(store, stale, Transition.CRASH)
    clock.advance(1.0)
    start(store)
    with untouched(store):
        assert _keep_step(store, stale) is None


def test_a_job_that_never_ran_keeps_nothing(store: Store) -> None:
    """A report and a step are refused with the token of a job that was never claimed."""
    job = submit(store)
    with untouched(store):
        assert _report(store, job) is None
        assert _keep_step(store, job) is None


def test_the_ledger_stops_a_run_that_lost_its_lease(ledger: Ledger, store: Store) -> None:
    """A report or a step of a run that lost its lease raises `LeaseLost` in the body."""
    job = run(store)
    apply(store, job, Transition.CRASH)
    with pytest.raises(LeaseLost):
        ledger.report(job, "1")
    with pytest.raises(LeaseLost):
        ledger.keep_step(job, "one", "1")


@pytest.mark.parametrize("force", [False, True])
def test_the_ledger_stops_a_run_that_was_canceled(ledger: Ledger, store: Store, force: bool) -> None:
    """A report of a run with a cancel request raises `JobCanceled` in the body; its steps are still kept."""
    job = run(store)
    ledger.cancel(job.id, force=force)
    with pytest.raises(JobCanceled):
        ledger.report(job, "1")
    assert ledger.keep_step(job, "one", "1") == "1"


def test_the_ledger_keeps_progress_and_steps(ledger: Ledger, store: Store) -> None:
    """What a run reports and keeps can be read through the ledger."""
    job = run(store)
    ledger.report(job, "0.5")
    assert ledger.keep_step(job, "one", "1") == "1"
    assert ledger.keep_step(job, "one", "2") == "1"
    assert ledger.get(job.id).progress == "0.5"
    assert ledger.steps(job) == {"one": "1"}
