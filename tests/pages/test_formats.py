"""Each page is the same in all formats, and says the same as the HTTP API and the command line."""

from __future__ import annotations

import csv
import io
import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

import onejob.cli
from onejob.api import create_app
from onejob.jobs.lifecycle import State
from tests.cases import for_each
from tests.http.conftest import problem
from tests.pages.browser import LOCAL, Browser, mounted

if TYPE_CHECKING:
    from tests.pages.sample import Sample

LISTS = {
    "/jobs": "jobs", "/duplicates": "groups", "/dead": "groups", "/tasks": "tasks", "/workers": "workers",
    "/audit": "entries",
}  # fmt: skip
PAGES = (*LISTS, "/", "/palette")


@for_each("path", PAGES)
def test_every_page_has_json(browser: Browser, path: str) -> None:
    """Each page links its JSON, whose title is that of the page."""
    page = browser.page(path)
    assert f"/ops{path}?format=json" in page.links
    assert browser.json(path)["title"] in page.text


@for_each("path", LISTS)
def test_every_list_has_csv(browser: Browser, path: str) -> None:
    """Each list links its CSV, whose rows are those of the JSON, in their order."""
    browser.post("/bulk/run", scope="matching", operation="run_now", filter="")  # an entry of the audit log
    assert f"/ops{path}?format=csv" in browser.page(path).links
    rows = browser.json(path)[LISTS[path]]
    assert rows
    table = browser.csv(path)
    assert [list(row) for row in table] == [list(dict.fromkeys(name for row in rows for name in row))] * len(rows)
    for cells, row in zip(table, rows, strict=True):
        for name, value in row.items():
            assert cells[name].removeprefix("'") == as_cell(value) or is_age(name)


def as_cell(value: Any) -> str:
    """Return a JSON value as a cell has it."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def is_age(name: str) -> bool:
    """Tell whether a value changes from request to request."""
    return name in {"runs", "runs_per_minute"}


TEXTS = ('=HYPERLINK("http://evil")', "+1", "-1", "@SUM(A1)", "\t=1", "plain", 'quote " comma , newline \n end', "ключ")


def test_csv_is_rfc_4180_without_formulas(browser: Browser, sample: Sample) -> None:
    """Cells with quotes, commas and line breaks survive, and one that a spreadsheet would execute is quoted."""
    for text in TEXTS:
        job = sample.submit("shop.study_plan", project=text).job
        sample.ledger.cancel(job.id, reason=text)
    response = browser.get("/jobs", format="csv", limit="50")
    assert response.headers["content-disposition"] == 'attachment; filename="onejob-jobs.csv"'
    rows = list(csv.DictReader(io.StringIO(response.text, newline=""), strict=True))
    reasons = {row["reason"] for row in rows[: len(TEXTS)]}
    assert {text if text[0] not in "=+-@\t" else f"'{text}" for text in TEXTS} <= reasons
    assert not [cell for row in rows for cell in row.values() if cell and cell[0] in "=+-@\t\r\n"]
    assert re.search("[^\r]\n[^\r]", response.text.replace("newline \n end", "")) is None


@for_each("path, parameters", [
    ("/jobs", {"format": "xml"}), ("/", {"format": "csv"}), ("/palette", {"format": "csv"}), ("/jobs", {"format": ""}),
])  # fmt: skip
def test_an_unknown_format_is_refused(browser: Browser, path: str, parameters: dict[str, str]) -> None:
    """A format that a page does not have is a 422 page that says which ones there are."""
    response = browser.get(path, **parameters)
    assert response.status_code == 422
    assert "the parameter format" in response.text


@for_each("path, status, kind", [
    ("/jobs?state=lost&format=json", 422, "invalid-request"), ("/jobs/unknown?format=json", 404, "job-not-found"),
    ("/nowhere?format=json", 404, "not-found"), ("/audit?before=x&format=json", 422, "invalid-request"),
    ("/operate/x?format=json", 405, "method-not-allowed"),
])  # fmt: skip
def test_an_error_in_json_is_a_problem(browser: Browser, path: str, status: int, kind: str) -> None:
    """For those who ask for JSON every error is a problem document."""
    problem(browser.client.get(f"/ops{path}"), status, kind)


# --- three doors ------------------------------------------------------------------------------------------------------


@pytest.fixture
def doors(any_sample: Sample) -> tuple[Browser, TestClient, Sample]:
    """Return the dashboard and the HTTP API of one ledger."""
    browser = Browser(mounted(any_sample.app, authorize=lambda _request: ("ann", "edit")))
    return browser, TestClient(create_app(any_sample.app), **LOCAL), any_sample


def test_the_doors_agree(doors: tuple[Browser, TestClient, Sample]) -> None:
    """The dashboard, the HTTP API and the command line say the same of jobs, counts, groups and duplicates."""
    browser, api, sample = doors
    agree_on_jobs(browser, api)
    agree_on_counts(browser, sample)
    agree_on_groups(browser, api)
    for name in ("crashed", "double", "retrying", "failed", "canceled"):
        agree_on_job(browser, api, sample.named[name])


FILTERS: tuple[dict[str, Any], ...] = (
    {}, {"state": ["failed", "canceled"]}, {"submitter": "cron"}, {"argument": "order_id=66"},
)  # fmt: skip


def agree_on_jobs(browser: Browser, api: TestClient) -> None:
    """Assert that both lists have the same jobs, with the same values of the fields that both have."""
    for each in FILTERS:
        shown = browser.json("/jobs", limit="200", **each)
        listed = api.get("/jobs", params={"limit": 200, "count": True, **each}).json()
        assert shown["jobs"]
        assert shown["matching"]["count"] == listed["total"]
        for ours, theirs in zip(shown["jobs"], listed["jobs"], strict=True):
            shared = ours.keys() & theirs.keys() - {"arguments"}
            assert {"id", "state", "reason", "created_at", "run_at", "error", "duplicate_count"} <= shared
            assert {name: ours[name] for name in shared} == {name: theirs[name] for name in shared}


def agree_on_counts(browser: Browser, sample: Sample) -> None:
    """Assert that the overview, the list of jobs and the command line count the same, and HTML shows these numbers."""
    overview = {each["state"]: each["count"] for each in browser.json("/")["states"]}
    assert list(overview) == [state.value for state in State]
    assert overview == browser.json("/jobs")["states"]
    page = browser.page("/").text
    for state, count in overview.items():
        assert f"{count} {state}" in page
    store = ["--store", sample.app.conf.onejob_store, "--namespace", sample.app.conf.onejob_namespace]
    printed = CliRunner().invoke(onejob.cli.main, [*store, "jobs", "list", "--count", "--json"])
    assert printed.exit_code == 0, printed.output
    counted = json.loads(printed.stdout)
    assert {state: counted["by_state"].get(state, 0) for state in overview} == overview


def agree_on_groups(browser: Browser, api: TestClient) -> None:
    """Assert that both count the same duplicates and the same groups of dead letters."""
    for by in ("task", "submitter", "identity"):
        shown, listed = (
            browser.json("/duplicates", by=by)["groups"],
            api.get("/duplicates/summary", params={"by": by, "limit": 50}).json(),
        )
        assert shown
        for ours, theirs in zip(shown, listed, strict=True):
            assert (ours["name"], ours["runs_saved"], ours["seconds_saved"], ours["redelivered"]) == (
                theirs["name"], theirs["runs_saved"], theirs["seconds_saved"], theirs["redelivered"],
            )  # fmt: skip
            assert {name: count for name, count in theirs["counts"].items() if count} == {
                name: ours[name] for name in theirs["counts"] if ours[name]
            }
            assert ours["total"] == sum(theirs["counts"].values())
    assert [
        {name: value for name, value in group.items() if name != "open"} for group in browser.json("/dead")["groups"]
    ] == api.get("/dead/groups").json()


def agree_on_job(browser: Browser, api: TestClient, job_id: str) -> None:
    """Assert that both say the same of one job, its history and its duplicates."""
    shown, listed = browser.json(f"/jobs/{job_id}"), api.get(f"/jobs/{job_id}").json()
    shared = shown["job"].keys() & listed.keys() - {"error"}
    assert {"id", "state", "result", "progress"} <= shared
    assert {name: shown["job"][name] for name in shared} == {name: listed[name] for name in shared}
    explained = api.get(f"/jobs/{job_id}/explanation").json()
    assert [timeless(each) for each in shown["sentences"]] == [timeless(each) for each in explained["sentences"]]
    assert shown["stuck"] == explained["stuck"]
    history = api.get(f"/jobs/{job_id}/history").json()
    assert [(each["at"], each["event"], each["detail"]) for each in shown["history"]] == [
        (each["at"], each["event"], each["detail"]) for each in history
    ]
    duplicates = api.get(f"/jobs/{job_id}/duplicates").json()
    assert [each["at"] for each in reversed(shown["duplicates"])] == [each["at"] for each in duplicates]


def timeless(sentence: str) -> str:
    """Return a sentence without the times in it, which pages show in the zone of the viewer, and which go on."""
    exact = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z| UTC)", "<time>", sentence)
    return re.sub(r"\d+ (d|h|min|s)\b", "<duration>", exact)


def test_times_are_in_the_zone_of_the_viewer(browser: Browser, sample: Sample) -> None:
    """Pages show times in the zone that the browser names, and JSON has them in UTC."""
    path = f"/jobs/{sample.named['crashed']}"
    browser.client.cookies.set("onejob_zone", "Asia/Kolkata")
    assert " IST" in browser.page(path).source
    assert browser.json(path)["job"]["created_at"].endswith("Z")
    for name in ("../../etc/passwd", "No/Where", "x" * 500, "%00", "posix"):
        browser.client.cookies.set("onejob_zone", name)
        assert " UTC" in browser.page(path).source
