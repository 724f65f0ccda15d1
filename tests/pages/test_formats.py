"""The formats of pages, their static files and headers, and that all front ends say the same."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

import onejob.cli.commands
from onejob.api import create_app
from onejob.jobs.lifecycle import State
from onejob.jobs.timestamps import format_timestamp
from onejob.pages import endpoints
from onejob.pages.rendering import static_version
from tests.api.conftest import LOCAL, problem
from tests.browser.hostile import FORMULA, attack
from tests.cases import for_each
from tests.conftest import on_every_store
from tests.pages.browser import Browser, browser_of
from tests.pages.sample import Sample

ROOT = Path(__file__).parents[2]
LISTS = {
    "/jobs": "jobs", "/duplicates": "groups", "/dead": "groups", "/tasks": "tasks", "/workers": "workers",
    "/audit": "entries", "/schedules": "entries",
}  # fmt: skip
GROWING = {"runs", "runs_per_minute", "is_late"}
"""The columns whose values change from request to request."""


def test_every_page_has_json_and_every_list_csv(browser: Browser, sample: Sample) -> None:
    """Each page links its JSON, each list its CSV (RFC 4180) with the same rows, in which no cell is a formula."""
    attacked = attack(sample, FORMULA)
    sample.app.conf.beat_schedule = {attacked.name: {"task": "shop.daily_report", "schedule": 60}}
    browser.post("/bulk/run", scope="matching", operation="run_now", filter="")  # an entry of the audit log
    for path in (*LISTS, "/", "/palette"):
        page, content = browser.page(path), browser.json(path)
        assert f"/ops{path}?format=json" in page.links
        assert content["title"] in page.text
        if path not in LISTS:
            continue
        assert f"/ops{path}?format=csv" in page.links
        rows, table = content[LISTS[path]], browser.csv(path)
        assert [list(row) for row in table] == [list(dict.fromkeys(name for row in rows for name in row))] * len(rows)
        for cells, row in zip(table, rows, strict=True):
            for name, value in row.items():
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                plain = cells[name].replace("'", "")
                assert plain == ("" if value is None else text).replace("'", "") or name in GROWING
        found = [cell for row in table for cell in row.values()]
        assert [cell for cell in found if cell.startswith(("=", "+", "-", "@", "\t", "\r"))] == []
        assert f"'{attacked.name}" in {cell[: len(FORMULA) + 1] for cell in found}, path
    for text in TEXTS:
        sample.ledger.cancel(sample.submit("shop.study_plan", project=text).job.id, reason=text)
    response = browser.get("/jobs", format="csv", limit="50")
    assert response.headers["content-disposition"] == 'attachment; filename="onejob-jobs.csv"'
    rows = list(csv.DictReader(io.StringIO(response.text, newline=""), strict=True))
    assert {*TEXTS.values()} <= {row["reason"] for row in rows[: len(TEXTS)]}
    assert not [cell for row in rows for cell in row.values() if cell and cell[0] in "=+-@\t\r\n"]
    assert re.search("[^\r]\n[^\r]", response.text.replace("newline \n end", "")) is None


TEXTS = {
    '=HYPERLINK("http://evil")': """'=HYPERLINK("http://evil")""", "+1": "'+1", "-1": "'-1", "@SUM(A1)": "'@SUM(A1)",
    "\t1": "'\t1", "plain": "plain", 'quote " comma , newline \n end': 'quote " comma , newline \n end', "ключ": "ключ",
    "\uff1d1": "'\uff1d1", "\uff0b1": "'\uff0b1", "\uff0d1": "'\uff0d1", "\uff20a": "'\uff20a", " =1": "' =1",
    "x;=1+1": "x;'=1+1", "x\t -1": "x\t' -1", "a=b-c": "a=b-c",
}  # fmt: skip
"""Texts, and what a cell has for them."""


@for_each("path, status, kind", [
    ("/jobs?state=lost&format=json", 422, "invalid-request"), ("/jobs/unknown?format=json", 404, "job-not-found"),
    ("/nowhere?format=json", 404, "not-found"), ("/audit?before=x&format=json", 422, "invalid-request"),
    ("/operate/x?format=json", 405, "method-not-allowed"),
])  # fmt: skip
def test_an_error_in_json_is_a_problem(browser: Browser, path: str, status: int, kind: str) -> None:
    """For those who ask for JSON every error is a problem; a format that a page does not have is a 422 page."""
    problem(browser.client.get(f"/ops{path}"), status, kind)
    for other, format_ in (("/jobs", "xml"), ("/", "csv"), ("/palette", "csv"), ("/jobs", "")):
        response = browser.get(other, format=format_)
        assert response.status_code == 422
        assert "the parameter format" in response.text
    for other, allowed in (
        ("/edit/x", "GET, HEAD, POST"), ("/jobs", "GET, HEAD"),
        *((path, "POST") for path in ("/operate/x", "/bulk/run", "/schedules/x")),
    ):  # fmt: skip
        response = browser.client.put(f"/ops{other}")
        assert (response.status_code, response.headers["allow"]) == (405, allowed)


def test_what_json_does_not_have_is_shown(browser: Browser, sample: Sample) -> None:
    """A lone surrogate or a NaN in the arguments of an error is an escape or a text in JSON, and breaks no format."""
    run = sample.start(sample.submit("shop.study_plan", project="odd").job)
    sample.ledger.fail(run, json.dumps({"type": "E", "message": "", "args": ["a\udcff.txt", math.nan]}), "E")
    error = browser.json(f"/jobs/{run.id}")["job"]["error"]
    assert error["args"] == ["a\udcff.txt", "NaN"]
    for path in (f"/jobs/{run.id}", "/jobs", "/dead"):
        browser.page(path)
    browser.csv("/jobs")


def test_times_are_in_the_zone_of_the_viewer(browser: Browser, sample: Sample) -> None:
    """Pages show times in the zone that the browser names, and JSON has them in UTC."""
    path = f"/jobs/{sample.named['crashed']}"
    browser.client.cookies.set("onejob_zone", "Asia/Kolkata")
    assert " IST" in browser.page(path).source
    assert browser.json(path)["job"]["created_at"].endswith("Z")
    for name in ("../../etc/passwd", "No/Where", "x" * 500, "%00", "posix"):
        browser.client.cookies.set("onejob_zone", name)
        assert " UTC" in browser.page(path).source


# --- static files and headers -----------------------------------------------------------------------------------------

HTMX_SHA256 = "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130"
SCRIPT = "text/javascript; charset=utf-8"
NAMES = {
    "dashboard.js": SCRIPT, "theme.js": SCRIPT, "htmx.min.js": SCRIPT, "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
}  # fmt: skip


OTHER_FILES = (
    "none.js", "..", "%2e%2e", "../app.py", "..%2fapp.py", "..%2f..%2fapp.py", "%2fetc%2fpasswd", "style.css%00", "",
    "....//app.py", "STYLE.CSS", "style.css%2f..%2f..%2fapp.py",
)  # fmt: skip


def test_static_files_are_cached_for_ever(browser: Browser) -> None:
    """Each file, of which one is the published script, may be cached under the version of all; no other is served."""
    assert {each.name for each in (files("onejob.pages") / "static").iterdir()} == NAMES.keys()
    links = re.findall(r'(?:src|href)="(/ops/static/[^"]+)"', browser.page("/").source)
    assert {link.rpartition("/")[2] for link in links} == NAMES.keys()
    for link in links:
        response = browser.client.get(link)
        assert response.status_code == 200
        assert response.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert response.headers["content-type"] == NAMES[link.rpartition("/")[2]]
    other = browser.get("/static/another/style.css")
    assert (other.status_code, other.headers["cache-control"]) == (200, "no-store")
    for name in OTHER_FILES:
        response = browser.client.get(f"/ops/static/{static_version()}/{name}", follow_redirects=True)
        assert response.status_code == 404 or "<main" in response.text
        assert "def " not in response.text
    served = browser.get(f"/static/{static_version()}/htmx.min.js").content
    assert hashlib.sha256(served).hexdigest() == HTMX_SHA256
    documented = (ROOT / "SECURITY.md").read_text()
    assert [text for text in ("htmx 4.0.1", "0BSD", HTMX_SHA256) if text not in documented] == []


ERRORS = {"/jobs/unknown": 404, "/nowhere": 404, "/jobs?limit=1": 422, "/static/x/none.js": 404, "/operate/x": 405}
OTHERS = ("/", "/jobs?format=json", "/jobs?format=csv", "/jobs/unknown?format=json", "/find?q=x")


def test_every_response_is_guarded(browser: Browser, sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages, formats, files, errors and redirects forbid inline scripts, framing, sniffing, embedding and caching.

    So does the response when even the page of an error cannot be made, which reveals nothing.
    """

    def fail(*_args: Any, **_options: Any) -> None:
        raise RuntimeError("password=hunter2")

    responses = {path: browser.client.get(f"/ops{path}") for path in (*OTHERS, *ERRORS)}
    assert {path: responses[path].status_code for path in ERRORS} == ERRORS
    responses["redirect"] = browser.post(f"/operate/{sample.named['failed']}", operation="redrive")
    responses["refused"] = browser.post("/bulk/run", csrf_token="")
    responses["preview"] = browser.post("/bulk/preview", operation="delete", scope="matching")
    responses["file"] = browser.get(f"/static/{static_version()}/style.css")
    monkeypatch.setattr(endpoints, "render_html", fail)
    responses["broken"] = broken = browser.get("/jobs")
    assert broken.status_code == 500
    assert "hunter2" not in broken.text
    for path, response in responses.items():
        (policy,) = response.headers.get_list("content-security-policy")
        assert "default-src 'none'" in policy, path
        assert "frame-ancestors 'none'" in policy, path
        assert "unsafe" not in policy, path
        assert len(response.headers.get_list("referrer-policy")) == 1, path
        assert response.headers["x-content-type-options"] == "nosniff", path
        assert response.headers["cross-origin-resource-policy"] == "same-origin", path
        assert (response.headers["cache-control"] == "no-store") is (path != "file"), path


# --- three front ends -------------------------------------------------------------------------------------------------

HALF = format_timestamp(time.time() - 12 * 3600)
FILTERS: tuple[dict[str, Any], ...] = (
    {}, {"state": ["failed", "canceled"]}, {"submitter": "cron"}, {"argument": "order_id=66"}, {"queue": "default"},
    {"task": "shop.send_invoice"}, {"worker": "south@web-2"}, {"tag": "a & b"}, {"error": "BILLING"}, {"since": HALF},
    {"until": HALF}, {"task": "shop.send_invoice", "submitter": "cron", "error": "billing", "until": HALF},
)  # fmt: skip


@on_every_store
def test_the_front_ends_agree(any_sample: Sample) -> None:
    """The dashboard, the HTTP API and the command line say the same of jobs, counts, groups and duplicates."""
    browser, api = browser_of(any_sample), TestClient(create_app(any_sample.app), **LOCAL)
    agree_on_jobs(browser, api)
    agree_on_counts(browser, any_sample)
    agree_on_groups(browser, api)
    for name in ("crashed", "double", "retrying", "failed", "canceled"):
        agree_on_job(browser, api, any_sample.named[name])


def agree_on_jobs(browser: Browser, api: TestClient) -> None:
    """Assert that both lists have the same jobs, with the same values of the fields that both have."""
    identity = browser.json("/jobs", argument="order_id=4711")["jobs"][0]["identity"]
    for each in (*FILTERS, {"identity": identity}):
        shown = browser.json("/jobs", limit="200", **each)
        listed = api.get("/jobs", params={"limit": 200, "count": True, **each}).json()
        assert shown["jobs"] or len(each) > 1
        assert shown["matching"] == {"count": listed["total"], "is_complete": True}
        for ours, theirs in zip(shown["jobs"], listed["jobs"], strict=True):
            shared = ours.keys() & theirs.keys() - {"arguments"}
            assert {"id", "state", "reason", "created_at", "run_at", "error", "duplicate_count"} <= shared
            assert {name: ours[name] for name in shared} == {name: theirs[name] for name in shared}


def agree_on_counts(browser: Browser, sample: Sample) -> None:
    """Assert that the overview, the list of jobs and the command line count the same, and HTML shows these numbers."""
    overview = {each["state"]: each["count"] for each in browser.json("/")["states"]}
    assert list(overview) == [state.value for state in State]
    assert overview == browser.json("/jobs")["states"]
    text = browser.page("/").text
    assert [state for state, count in overview.items() if f"{count} {state}" not in text] == []
    store = ["--store", sample.app.conf.onejob_store, "--namespace", sample.app.conf.onejob_namespace]
    printed = CliRunner().invoke(onejob.cli.commands.main, [*store, "jobs", "list", "--count", "--json"])
    assert printed.exit_code == 0, printed.output
    counted = json.loads(printed.stdout)
    assert {state: counted["by_state"].get(state, 0) for state in overview} == overview


def agree_on_groups(browser: Browser, api: TestClient) -> None:
    """Assert that both count the same duplicates and the same groups of dead letters."""
    for by in ("task", "submitter", "identity"):
        shown = browser.json("/duplicates", by=by)["groups"]
        listed = api.get("/duplicates/summary", params={"by": by, "limit": 50}).json()
        assert shown
        for ours, theirs in zip(shown, listed, strict=True):
            figures = ("name", "runs_saved", "seconds_saved", "redelivered")
            assert [ours[name] for name in figures] == [theirs[name] for name in figures]
            assert {name: ours[name] for name in theirs["counts"]} == theirs["counts"]
            assert ours["total"] == sum(theirs["counts"].values())
    (task,) = (each for each in api.get("/activity").json()["tasks"] if each["seconds_saved"])
    (saved,) = (each for each in browser.json("/")["saved"]["task"] if each["name"] == task["task"])
    assert (saved["runs"], saved["seconds"]) == (task["duplicates_prevented"], task["seconds_saved"])
    groups = browser.json("/dead")["groups"]
    assert all(group.pop("since") and group.pop("group") for group in groups)
    assert groups == api.get("/dead/groups").json()["groups"]


def agree_on_job(browser: Browser, api: TestClient, job_id: str) -> None:
    """Assert that both say the same of one job, its history and its duplicates."""
    shown, listed = browser.json(f"/jobs/{job_id}"), api.get(f"/jobs/{job_id}").json()
    shared = shown["job"].keys() & listed.keys() - {"error"}
    assert {"id", "state", "result", "progress"} <= shared
    assert {name: shown["job"][name] for name in shared} == {name: listed[name] for name in shared}
    explained, history, duplicates = (
        api.get(f"/jobs/{job_id}/{each}").json() for each in ("explanation", "history", "duplicates")
    )
    assert [timeless(each) for each in shown["sentences"]] == [timeless(each) for each in explained["sentences"]]
    assert shown["stuck"] == explained["stuck"]
    facts = ("at", "event", "detail")
    assert [[each[name] for name in facts] for each in shown["history"]] == [
        [each[name] for name in facts] for each in history
    ]
    assert [each["at"] for each in reversed(shown["duplicates"])] == [each["at"] for each in duplicates]


def timeless(sentence: str) -> str:
    """Return a sentence without the times in it, which pages show in the zone of the viewer, and which go on."""
    exact = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z| UTC)", "<time>", sentence)
    return re.sub(r"\d+ (d|h|min|s)\b", "<duration>", exact)
