"""The logs of runs on the page of a job."""

from __future__ import annotations

from tests.pages.browser import browser_of
from tests.pages.sample import Sample


def test_the_page_of_a_job_shows_its_logs(sample: Sample) -> None:
    """The page has the log of each attempt, as text, and `redact` decides what is shown of it."""
    job = sample.start(sample.submit("shop.study_plan", project="logs").job)
    sample.ledger.keep_run_log(job, "reading <b>orders</b>\n")
    assert "reading <b>orders</b>" in browser_of(sample).page(f"/jobs/{job.id}").text
    hidden = browser_of(sample, redact=lambda _job, name, value: "hidden" if name == "log" else value)
    page = hidden.page(f"/jobs/{job.id}").text
    assert "hidden" in page
    assert "reading" not in page
