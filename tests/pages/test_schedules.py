"""The page of the beat schedule: what it shows, and what its forms do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from celery.schedules import crontab, schedule

from onejob.celery.beat import Beat
from tests.pages.browser import Browser
from tests.pages.sample import Sample


class Failing(schedule):
    """A schedule with a fault."""

    def remaining_estimate(self, last_run_at: Any) -> Any:
        raise LookupError("no such moon")


@pytest.fixture
def scheduled(sample: Sample) -> Sample:
    """Return the sample with a schedule, at which a worker has looked."""
    nightly = {"task": "shop.daily_report", "schedule": crontab(hour=3, minute=0), "kwargs": {"region": "north"}}
    sample.app.conf.beat_schedule = {"nightly/north": nightly, "wrong": nightly | {"schedule": Failing(60)}}
    Beat(sample.app).look()
    return sample


def plain() -> None: ...


def test_only_a_job_has_a_page(scheduled: Sample, browser: Browser) -> None:
    """The message of the last tick has a link if it is a job, and not if its task is one of Celery alone."""
    task: Any = scheduled.app.task
    task(name="plain", shared=False)(plain)
    nightly = scheduled.app.conf.beat_schedule["nightly/north"]
    scheduled.app.conf.beat_schedule = {"nightly/north": nightly, "plain": nightly | {"task": "plain", "kwargs": {}}}
    Beat(scheduled.app).look()
    for state in scheduled.ledger.store.schedules():
        last = replace(state, nonce="new", last_job=f"of-{state.name}")
        assert scheduled.ledger.put_schedule(last, expected=state.nonce)
    page = browser.page("/schedules")
    assert "of-plain" in page.text
    assert [link for link in page.links if "/jobs/" in link] == ["/ops/jobs/of-nightly%2Fnorth"]


def test_the_forms_of_an_entry(scheduled: Sample, browser: Browser) -> None:
    """The page has each entry with its next tick; its forms pause, resume and run one, and are recorded."""
    text = browser.page("/schedules").text
    assert "onejob_beat is off" in text
    assert "crontab: 0 3 * * *" in text
    assert "fails" in text
    path = "/schedules/nightly%2Fnorth"
    assert browser.post(path, operation="pause").status_code == 303
    assert "nightly/north is paused." in browser.page("/schedules").text
    entries = {each["name"]: each for each in browser.json("/schedules")["entries"]}
    assert (entries["nightly/north"]["paused"], entries["nightly/north"]["next_tick_at"]) == (True, None)
    assert entries["wrong"]["error"] == "LookupError: no such moon"
    assert browser.post(path, operation="resume").status_code == 303
    assert "nightly/north goes on." in browser.page("/schedules").text
    jobs = len(scheduled.jobs())
    assert browser.post(path, operation="run").status_code == 303
    assert "nightly/north is submitted: job" in browser.page("/schedules").text
    assert len(scheduled.jobs()) in {jobs, jobs + 1}  # the report of the day answers if there is one
    assert scheduled.audited("action", "target", "detail")[0] == ("schedule", "nightly/north", "POST operation=run")
    assert browser.post(path, operation="drop").status_code == 422
    assert browser.post("/schedules/nothing", operation="run").status_code == 404
