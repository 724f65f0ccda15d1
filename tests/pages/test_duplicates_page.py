"""The page of duplicates: the rules of tasks, and the box that tells whether a call would be a duplicate."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from onejob.celery.options import tasks_of
from onejob.celery.submission import prepare_submission
from onejob.jobs.records import Query
from tests.cases import for_each
from tests.pages.browser import Browser, mounted

if TYPE_CHECKING:
    from tests.pages.sample import Sample


ALL = Query(limit=10_000)


def trial(browser: Browser, task: str, arguments: str) -> Any:
    """Return what the box says of a call."""
    return browser.json("/duplicates", task=task, arguments=arguments)["trial"]


@for_each("task, arguments, said", [
    ("shop.study_plan", "{", "not valid JSON"), ("shop.study_plan", "7", "a JSON object"),
    ("shop.study_plan", "null", "a JSON object"),
    ("shop.study_plan", "[" * 499, "not valid JSON"), ("no.such.task", "{}", "no onejob task named 'no.such.task'"),
    ("shop.study_plan", "{}", "project"), ("shop.study_plan", '{"project": "x", "course": 1}', "course"),
    ("shop.study_plan", "[1, 2, 3]", ""),
    ("shop.study_plan", '{"project": NaN}', ""),
])  # fmt: skip
def test_the_box_says_what_is_wrong(browser: Browser, task: str, arguments: str, said: str) -> None:
    """Texts that are no JSON, unknown tasks and wrong arguments are answered with the reason, beside the box."""
    found = trial(browser, task, arguments)
    assert found["answer"] is None
    assert said in found["error"]
    page = browser.page("/duplicates", task=task, arguments=arguments)
    assert " ".join(found["error"].split()) in page.text


@pytest.mark.parametrize("form", ["object", "array"])
def test_the_box_tells_what_a_submission_gets(any_sample: Sample, form: str) -> None:
    """The outcome and the job that the box names are those that a submission of this call then gets, on every store."""
    browser = Browser(mounted(any_sample.app, authorize=lambda _request: ("ann", "read")))
    jobs = len(any_sample.ledger.find(ALL))
    calls: list[tuple[str, dict[str, Any]]] = [
        ("shop.study_plan", {"project": "running"}), ("shop.study_plan", {"project": "new"}),
        ("shop.send_invoice", {"order_id": 77}), ("shop.send_invoice", {"order_id": 4711}),
        ("shop.index_document", {"document": 7, "text": "second"}), ("shop.daily_report", {"region": "north"}),
        ("shop.daily_report", {"region": "north"}),
    ]  # fmt: skip
    for task, kwargs in calls:
        found = trial(browser, task, json.dumps(kwargs if form == "object" else [*kwargs.values()]))["answer"]
        got = any_sample.ledger.submit(prepare_submission(tasks_of(any_sample.app)[task], kwargs, source="test"))
        assert found["outcome"] == got.outcome
        assert found["identity"] == got.job.identity
        assert (found["existing"] or {}).get("id", got.job.id) == got.job.id
        assert (found["existing"] is None) is (got.outcome == "admitted")
    assert len(any_sample.ledger.find(ALL)) == jobs + 3


def test_the_box_stores_nothing(browser: Browser, sample: Sample) -> None:
    """To ask whether a call would be a duplicate changes neither jobs nor counts."""
    before = sample.ledger.find(ALL), browser.json("/duplicates")["groups"]
    for text in ('{"project": "running"}', '{"project": "new"}'):
        assert trial(browser, "shop.study_plan", text)["answer"]
    assert (sample.ledger.find(ALL), browser.json("/duplicates")["groups"]) == before


def test_rules_are_in_words(browser: Browser) -> None:
    """The page says for each task which arguments count, for how long, and what happens to a duplicate."""
    rules = {rule["task"]: rule for rule in browser.json("/duplicates")["rules"]}
    assert {name: (rule["unique_on"], rule["window"], rule["on_duplicate"]) for name, rule in rules.items()} == {
        "shop.study_plan": ("project", "until it has ended", "attach"),
        "shop.send_invoice": ("order_id", "until it has ended", "attach"),
        "shop.daily_report": ("region", "for each day@Europe/Berlin", "attach"),
        "shop.index_document": ("document", "until it has ended", "replace"),
    }


def test_days_and_hours_are_those_of_the_viewer(browser: Browser) -> None:
    """Duplicates by hour of the day are those of the zone of the viewer, and as many as in another zone."""
    totals = []
    for zone in ("UTC", "Asia/Tokyo"):
        browser.client.cookies.set("onejob_zone", zone)
        shown = browser.json("/duplicates")
        assert [each["hour"] for each in shown["hours"]] == list(range(24))
        totals.append([each["prevented"] for each in shown["hours"]])
    assert sum(totals[0]) == sum(totals[1]) > 0
    assert totals[1] == totals[0][-9:] + totals[0][:-9]
