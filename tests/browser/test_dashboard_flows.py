"""What people open the dashboard for, done by somebody who sees it for the first time."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from onejob.errors import JobNotFoundError
from onejob.jobs.lifecycle import State
from onejob.jobs.records import Query
from onejob.ledger.duplicate_stats import summarize_duplicates
from onejob.stores.protocol import GroupBy
from tests.browser.dashboards import OPERATOR

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from tests.browser.dashboards import Dashboard
    from tests.browser.tabs import Tabs
    from tests.pages.sample import Sample

OUTAGE = ("TimeoutError", "the payment provider did not answer within 30 s, request 8f3a9c0d-0000-4000-8000-000000000001")
BIG = ".big"


def button(page: Page, name: str) -> Locator:
    """Return the button with a name that begins so."""
    return page.get_by_role("button", name=re.compile(f"^{name}"))


def link(page: Page, name: str) -> Locator:
    """Return the first link with this name."""
    return page.get_by_role("link", name=name, exact=True).first


def state(sample: Sample, job_id: str) -> State:
    """Return the state of a job."""
    return sample.ledger.get(job_id).state


def break_night(sample: Sample, jobs: int) -> list[str]:
    """Let jobs fail eight hours ago, with one error, and return their ids."""
    failed = []
    for number in range(jobs):
        sample.clock.at = time.time() - 8 * 3600 + number
        job = sample.submit("shop.send_invoice", "cron", order_id=90_000 + number).job
        failed.append(sample.fail(job, OUTAGE).id)
    sample.clock.at = None
    return failed


def queue(sample: Sample, jobs: int) -> list[str]:
    """Submit jobs that wait, and return their ids."""
    numbers = range(1000, 1000 + jobs)
    return [sample.submit("shop.index_document", "batch", document=number, text="").job.id for number in numbers]


def test_why_a_job_ran_twice(tabs: Tabs, served: Dashboard) -> None:
    """Somebody who knows an argument finds the job, which says that its first worker was lost."""
    page = tabs.open(served.url())
    page.get_by_role("searchbox").fill("crashed")
    page.keyboard.press("Enter")
    page.locator("[data-row] a.id").click()
    expect(page).to_have_url(served.job_url("crashed"))
    expect(page.get_by_role("region", name="What happened")).to_contain_text("Attempt 1 was lost, its lease expired")
    timeline = page.get_by_role("region", name="Timeline")
    expect(timeline).to_contain_text("attempt 1 on west@web-3: lost")
    expect(timeline).to_contain_text("attempt 2 on south@web-2: completed")


def test_who_sends_most_duplicates(tabs: Tabs, served: Dashboard) -> None:
    """From the overview, one click leads to the submitters, of which the one with the most duplicates is the first."""
    most = summarize_duplicates(served.sample.ledger, GroupBy.SUBMITTER)[0].name
    page = tabs.open(served.url())
    link(page, "Most duplicates by submitter").click()
    first = page.locator("[data-row]").first
    expect(first.get_by_role("link").first).to_have_text(most)
    first.get_by_role("link").first.click()
    expect(page.locator("[data-row]").first).to_contain_text(most)


def test_last_night_is_redriven(tabs: Tabs, served: Dashboard) -> None:
    """The error that killed the jobs of the night is a group, which is redriven whole after a preview of its number."""
    failed = break_night(served.sample, 7)
    page = tabs.open(served.url())
    link(page, "Dead letters").click()
    page.get_by_label("Since").fill("12h")
    button(page, "Filter").click()
    group = page.locator("[data-row]", has_text="TimeoutError")
    expect(group).to_contain_text("the payment provider did not answer within 30 s")
    expect(group.get_by_role("cell").first).to_have_text("7")
    group.get_by_role("button", name="Redrive the 7 dead letters").click()
    expect(page.locator(BIG)).to_contain_text("7 jobs will be redriven.")
    assert {state(served.sample, job_id) for job_id in failed} == {State.FAILED}
    button(page, "Redrive 7").click()
    expect(page.locator(BIG)).to_have_text("7 redriven.")
    assert {state(served.sample, job_id) for job_id in failed} == {State.QUEUED}
    link(page, "Back").click()
    expect(page).to_have_url(re.compile(r"/dead\?task=&since=12h$"))
    expect(page.locator("main")).not_to_contain_text("TimeoutError")


def test_all_that_match_are_canceled(tabs: Tabs, served: Dashboard) -> None:
    """All jobs that match a filter are canceled, also those that the page does not list, and no others."""
    waiting = queue(served.sample, 23)
    page = tabs.open(served.url("/jobs?task=shop.index_document&submitter=batch&limit=20"))
    expect(page.locator("[data-row]")).to_have_count(20)
    page.get_by_label("Apply to").select_option("all that match")
    button(page, "Cancel…").click()
    expect(page.locator(BIG)).to_contain_text("23 jobs will be canceled.")
    later = served.sample.submit("shop.index_document", "batch", document=2000, text="").job.id
    button(page, "Cancel 23").click()
    expect(page.locator(BIG)).to_have_text("23 canceled.")
    assert {state(served.sample, job_id) for job_id in waiting} == {State.CANCELED}
    assert state(served.sample, later) is State.QUEUED
    assert state(served.sample, served.sample.named["queued"]) is State.QUEUED


def test_many_portions_follow_each_other(
    tabs: Tabs, served: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bulk operation on many jobs goes on by itself, portion by portion, to the sum."""
    monkeypatch.setattr("onejob.pages.bulk.PORTION", 2)
    queue(served.sample, 7)
    page = tabs.open(served.url("/jobs?task=shop.index_document&submitter=batch"))
    page.get_by_label("Apply to").select_option("all that match")
    button(page, "Cancel…").click()
    button(page, "Cancel 7").click()
    expect(page.locator(BIG)).to_have_text("7 canceled.")


def test_selected_jobs_are_deleted(tabs: Tabs, served: Dashboard) -> None:
    """The ticked jobs are deleted after a preview, and what cannot be deleted is refused with a reason."""
    failed = break_night(served.sample, 2)
    page = tabs.open(served.url("/jobs"))
    for job_id in (*failed, served.sample.named["queued"]):
        page.get_by_role("checkbox", name=f"Select job {job_id}").check()
    button(page, "Delete…").click()
    expect(page.locator(BIG)).to_contain_text("2 jobs will be deleted.")
    button(page, "Delete 2").click()
    expect(page.locator(BIG)).to_have_text("2 deleted, 1 refused.")
    for job_id in failed:
        with pytest.raises(JobNotFoundError):
            served.sample.ledger.get(job_id)
    assert state(served.sample, served.sample.named["queued"]) is State.QUEUED


def test_a_job_is_deleted(tabs: Tabs, served: Dashboard, expected: list[str]) -> None:
    """A job is deleted from its page, which is gone then."""
    expected.append("404|410")
    page = tabs.open(served.job_url("canceled"))
    button(page, "Delete").click()
    button(page, "Delete 1").click()
    expect(page.locator(BIG)).to_have_text("1 deleted.")
    page.goto(served.job_url("canceled"))
    expect(page.get_by_role("alert")).to_contain_text("job-purged")


def test_a_waiting_job_runs_now(tabs: Tabs, served: Dashboard) -> None:
    """A job that waits for its next attempt is made due at once."""
    page = tabs.open(served.job_url("retrying"))
    button(page, "Run now").click()
    expect(page.locator(".notice")).to_contain_text("Run now")
    job = served.sample.ledger.get(served.sample.named["retrying"])
    assert job.run_at <= time.time()
    page.reload()
    expect(page.locator(".notice")).to_have_count(0)


def test_a_dead_letter_is_redriven_with_other_arguments(tabs: Tabs, served: Dashboard, expected: list[str]) -> None:
    """Arguments that are no JSON are refused with what was typed; corrected ones make a new job."""
    expected.append("422")
    page = tabs.open(served.job_url("failed"))
    link(page, "Redrive with other arguments…").click()
    named = page.get_by_label("Keyword arguments")
    expect(named).to_have_value(re.compile('"order_id": 66'))
    named.fill("{order_id: 67}")
    button(page, "Submit with these arguments").click()
    expect(page.get_by_role("alert")).to_contain_text("kwargs is not valid JSON")
    expect(named).to_have_value("{order_id: 67}")
    named.fill('{"order_id": 67}')
    button(page, "Submit with these arguments").click()
    expect(page.locator(".notice")).to_contain_text("admitted")
    expect(page.get_by_role("region", name="Arguments")).to_contain_text('"order_id": 67')
    assert served.sample.ledger.get_or_none(served.sample.named["failed"]) is None
    [job] = served.sample.ledger.find(Query(task="shop.send_invoice", states=frozenset({State.QUEUED}), limit=1))
    assert served.job_url("failed").rpartition("/")[0] + f"/{job.id}" == page.url


def test_the_audit_log_names_the_user(tabs: Tabs, served: Dashboard) -> None:
    """The audit log lists what was done, with the name of the user, and no preview."""
    page = tabs.open(served.job_url("retrying"))
    button(page, "Run now").click()
    page.goto(served.url("/dead"))
    button(page, "Redrive the").first.click()
    button(page, "Redrive ").click()
    expect(page.locator(BIG)).to_contain_text("redriven.")
    link(page, "Audit log").click()
    rows = page.locator("[data-row]")
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text("operation=redrive")
    expect(rows.nth(1)).to_contain_text(served.sample.named["retrying"])
    for number in range(2):
        expect(rows.nth(number)).to_contain_text(OPERATOR.name)
