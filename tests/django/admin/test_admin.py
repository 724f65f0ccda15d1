"""The jobs in Django's admin: lists, pages, operations, permissions and logs; and the commands of `manage.py`."""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.parse import urlencode
from uuid import uuid4

from onejob.celery.submission.options import tasks_of
from onejob.jobs.lifecycle import State
from onejob.jobs.model import JobRow
from onejob.jobs.query import Query
from onejob.ledger.job_filters import FILTERS
from onejob.ledger.ledger import Ledger
from onejob.pages.actions import PORTION
from tests.cases import for_each
from tests.django.admin.conftest import Shop
from tests.django.admin.staff import STAFF, on_every_store
from tests.operation_cases import (
    ERROR,
    NEEDED,
    OPERATION_CASES,
    OperationCase,
    completed,
    followed,
    keyed,
    queued,
    running,
    unnotified,
)
from tests.pages.browser import HtmlPage
from tests.submissions import submission_of

LIST = "/admin/onejob/job/"
PREVIEW, RUN = f"{LIST}bulk/preview/", f"{LIST}bulk/run/"
LOG = """
from django.contrib.admin.models import LogEntry
print(json.dumps([(e.user.username, e.action_flag, e.object_id, e.change_message) for e in LogEntry.objects.all()]))
"""

COMMANDS = """
from io import StringIO
from django.core.management import call_command
call_command("check", fail_level="WARNING")
call_command("makemigrations", check_changes=True, dry_run=True)
dumps = [StringIO(), StringIO()]
call_command("dumpdata", stdout=dumps[0])
call_command("dumpdata", use_base_manager=True, stdout=dumps[1])
print(json.dumps(['"onejob.job"' in each.getvalue() for each in dumps]))
"""

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

MISCONFIGURED = """
import logging
from django.contrib.auth.models import User
from django.contrib.messages import get_messages
from django.test import Client
from django.test.utils import override_settings
logging.disable()
client = Client(headers={"host": "127.0.0.1"})
client.force_login(User.objects.get(username="root"))
with override_settings(ONEJOB_CELERY_APP="nowhere:app"):
    found = [client.post(path, {"operation": "cancel", "id": "x"}) for path in json.loads(sys.argv[1])]
print(json.dumps([[each.status_code, *{*map(str, get_messages(each.wsgi_request))}] for each in found]))
"""


def change(job_id: str) -> str:
    return f"{LIST}{job_id}/change/"


def made(shop: Shop, make: Callable[[Ledger], JobRow]) -> JobRow:
    """Return a job in the state that a case needs; if it can run again, of a task that the shop has."""
    ledger, study_plan = shop.sample.ledger, shop.sample.app.tasks["shop.study_plan"]
    if make in {keyed, followed, unnotified}:
        return make(ledger)
    if make is queued:
        return ledger.get(study_plan.apply_async(kwargs={"project": uuid4().hex}, countdown=3600).id)
    run = shop.sample.start(ledger.get(shop.job("case")))
    if make is running:
        return run
    return ledger.complete(run, "1") if make is completed else ledger.fail(run, ERROR, "no")


@on_every_store
def test_the_list_shows_and_filters_jobs(shop: Shop) -> None:
    """The list shows jobs newest first, has a field for each filter that every front end offers, and goes to an id."""
    named = shop.sample.named
    with shop.login("rita") as rita:
        assert "Jobs" in rita.page("/admin/").text
        page = rita.page(LIST)
        assert {change(named[name]) for name in ("queued", "running", "failed")} <= set(page.links)
        filtered = {
            "state=failed&since=1h": {"failed"}, "task=shop.index_document": {"queued"},
            "submitter=ben%40example.org&since=1h": {"canceled"}, "queue=none": set(),
            "state=running&argument=project%3Drunning": {"running"},
        }  # fmt: skip
        for query, names in filtered.items():
            links = {link for link in rita.page(f"{LIST}?{query}").links if link.endswith("/change/")}
            assert links == {change(named[name]) for name in names}, query
        assert "/ops/jobs/jobs?state=failed" in rita.page(f"{LIST}?state=failed").links, "the same on the dashboard"
        given = "state=queued&task=shop.index_document&since=1h&until=2030-01-01T00:00:00Z"
        source = rita.page(f"{LIST}?{given}").source
        assert [each.name for each in FILTERS if f'name="{each.name}"' not in source] == []
        assert rita.get(f"{LIST}?q={named['failed']}").headers["location"] == change(named["failed"])
        assert rita.get(f"{LIST}?q=running").headers["location"] == f"{LIST}?argument=running"
        assert rita.get(f"{LIST}?state=none").status_code == 422


def test_the_list_goes_on_page_by_page(shop: Shop) -> None:
    """Every job of the ledger is on exactly one page of the list."""
    seen, query = [], "limit=20"
    with shop.login("rita") as rita:
        while query:
            links = rita.page(f"{LIST}?{query}").links
            seen += [link for link in links if link.endswith("/change/")]
            query = next((link[1:] for link in links if link.startswith("?") and "cursor=" in link), "")
    assert len(seen) == len(set(seen)) == sum(shop.sample.ledger.count_states(limit=10_000).values())


def test_the_page_of_a_job_shows_its_life(shop: Shop) -> None:
    """The page of a job, to which a short URL leads, has its values, steps, attempts, duplicates and webhooks."""
    named = shop.sample.named
    with shop.login("rita") as rita:
        double = rita.page(change(named["double"])).text
        for text in ('"order_id": 4711', '"sent": true', "web:checkout", "Duplicates (4)", "example.org/hooks"):
            assert text in double, text
        failed = rita.page(change(named["failed"]))
        assert all(text in failed.text for text in ("order 66 has no billing address", "Traceback"))
        assert f"/ops/jobs/jobs/{named['failed']}" in failed.links, "the same on the dashboard"
        crashed = rita.page(change(named["crashed"])).text
        assert "its lease expired" in crashed
        assert "Steps kept" in crashed
        page = change(named["double"])
        assert rita.get(page.removesuffix("change/")).headers["location"] == page
        missing = rita.get(change("unknown"))
        assert missing.status_code == 404
        assert "unknown" in missing.text


def test_a_page_of_another_origin_gets_no_page(shop: Shop) -> None:
    """A page of another origin, whose requests have the cookie of Django on a sibling host, gets no list and no job."""
    with shop.login("rita") as rita:
        for path in (LIST, change(shop.sample.named["failed"]), "/ops/jobs/jobs"):
            for site, status in (("same-site", 403), ("same-origin", 200)):
                headers = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors"}
                assert rita.client.get(path, headers=headers).status_code == status, path


def test_an_id_may_have_any_character(shop: Shop) -> None:
    """A job whose id has slashes, spaces and markup has a page, and can be canceled there."""
    job_id = 'a/b c_2F<b>"&?#'
    shop.sample.app.tasks["shop.study_plan"].apply_async(kwargs={"project": job_id}, task_id=job_id)
    with shop.login("olga") as olga:
        link = olga.get(f"{LIST}?{urlencode({'q': job_id})}").headers["location"]
        page = olga.page(link)
        assert "<b>" not in page.source
        olga.submit(page, link.replace("/change/", "/operate/"), operation="cancel")
    assert shop.sample.ledger.get(job_id).state == "canceled"


@on_every_store
@for_each("case", [*OPERATION_CASES, *NEEDED])
def test_an_operation_is_passed_on_and_recorded(shop: Shop, case: OperationCase) -> None:
    """Each operation changes its job and refuses another, and says so; the history and the audit log name the user."""
    ledger = shop.sample.ledger
    job, other = made(shop, case.accepted), made(shop, case.refused)
    with shop.login("olga") as olga:
        done, refused = (olga.post(f"{LIST}{each.id}/operate/", operation=case.operation) for each in (job, other))
        assert refused.headers["location"] == change(other.id)
        assert done.headers["location"] == (LIST if case.state is None else change(job.id))
        notices = olga.notice(done)
    assert case.why in notices
    assert ledger.get(other.id) == other
    if case.state is None:
        assert ledger.get_or_none(job.id) is None
    else:
        assert f"the job is {case.state} now" in notices
        assert ledger.get(job.id).state is case.state
        assert ledger.history(job.id)[-1].detail == f"{case.reason} in the admin by olga"
    entries = [(each.actor, each.source, each.action, each.target, each.outcome) for each in ledger.audit(limit=2)]
    by = ("olga", "admin", "operate")
    assert entries == [(*by, other.id, case.problem), (*by, job.id, "done")]


def test_the_form_of_a_job_has_what_can_be_done(shop: Shop) -> None:
    """A job's form runs it now, a deletion is confirmed first, and Django's log names the user."""
    run, job, ended = made(shop, running), made(shop, queued), made(shop, completed)
    with shop.login("olga") as olga:
        assert "Cancel and kill the run" in olga.page(change(run.id)).text
        page = olga.page(change(job.id))
        assert "the job is queued now" in olga.notice(
            olga.submit(page, f"{LIST}{job.id}/operate/", operation="run_now")
        )
        assert "1 job will be deleted" in olga.submit(olga.page(change(ended.id)), PREVIEW, operation="delete").text
    assert shop.sample.ledger.get_or_none(ended.id) is not None
    assert [entry for entry in shop.project.script(LOG) if entry[2] == job.id] == [["olga", 2, job.id, "Run now"]]


def test_what_still_needs_a_job_is_shown_before_it_is_deleted(shop: Shop) -> None:
    """A job that something needs is not deleted: the page says why, and its other form deletes it; Django logs that."""
    kept = made(shop, keyed)
    with shop.login("olga") as olga:
        page = olga.submit(olga.page(change(kept.id)), PREVIEW, operation="delete")
        assert "answers its idempotency key until" in page.text
        assert "No job that matches can be deleted" in page.text
        forced = olga.submit(HtmlPage(page.text), PREVIEW)
        assert "1 job will be deleted" in forced.text
        assert "1 deleted." in olga.submit(HtmlPage(forced.text), RUN).text
    assert shop.sample.ledger.get_or_none(kept.id) is None
    assert shop.project.script(LOG)[0][3] == "Force delete"


@for_each("name", ["root", *STAFF])
def test_who_may_not_operate_cannot(shop: Shop, name: str) -> None:
    """Staff without the permission has no buttons, and its forms are refused; a customer sees the login only."""
    job_id = shop.job("kept")
    if name in {"root", "eve", "olga"}:
        with shop.login(name) as user:
            user.post(f"{LIST}{job_id}/operate/", operation="cancel")
        assert shop.sample.ledger.get(job_id).state == "canceled"
        return
    with shop.login(name) as viewer:
        expected = 200 if STAFF[name] else 403
        assert viewer.get(LIST).status_code == viewer.get(change(job_id)).status_code == expected
        if STAFF[name]:
            assert {form.action for form in viewer.page(change(job_id)).forms} == {"/admin/logout/"}
            assert 'name="operation"' not in viewer.get(LIST).text
        for path in (f"{LIST}{job_id}/operate/", PREVIEW, RUN):
            assert viewer.post(path, operation="cancel", id=job_id).status_code == 403
    assert shop.sample.ledger.get(job_id).state == "queued"
    if STAFF[name]:
        refused = next(each for each in shop.sample.ledger.audit(limit=20) if each.actor == name)
        assert (refused.source, refused.outcome) == ("admin", "forbidden")
    with shop.login("ann") as ann:
        for answer in (ann.get(LIST), ann.post(RUN, operation="delete", scope="matching")):
            assert answer.headers["location"].startswith("/admin/login/")


def test_a_form_needs_the_token_of_django(shop: Shop) -> None:
    """A form without the token of its browser is refused, a link does nothing, and a wrong form is explained."""
    job_id = shop.job("forged")
    with shop.login("olga") as olga:
        for path in (f"{LIST}{job_id}/operate/", PREVIEW, RUN):
            assert olga.post(path, token="x" * 64, operation="cancel", id=job_id).status_code == 403
            assert olga.get(f"{path}?operation=cancel&id={job_id}").status_code == 405
        assert "The operation must be one of" in olga.notice(olga.post(PREVIEW, id="x"))
        assert "elect 1 to 1000 jobs" in olga.notice(olga.post(PREVIEW, operation="cancel"))
        assert "NUL" in olga.notice(olga.post(PREVIEW, operation="cancel", id="a\x00b"))
    assert shop.sample.ledger.get(job_id).state == "queued"


def test_a_wrong_setting_is_a_message(shop: Shop) -> None:
    """An action in a project whose settings name no Celery app responds with a message, as for any other error."""
    for status, notice in shop.project.script(MISCONFIGURED, [f"{LIST}any/operate/", PREVIEW, RUN]):
        assert (status, notice) == (302, "an unexpected error occurred on the server")


@on_every_store
def test_many_jobs_are_canceled_after_a_confirmation(shop: Shop) -> None:
    """A selection is shown with its number first, then done, and is one entry of each log."""
    chosen = [shop.job("chosen") for _ in range(3)]
    with shop.login("olga") as olga:
        page = olga.page(f"{LIST}?state=queued&argument=chosen")
        confirm = olga.post(
            PREVIEW, [*page.form(PREVIEW).fields, *(("id", each) for each in chosen[:2])][1:], operation="cancel"
        )
        assert "2 jobs will be canceled" in confirm.text
        assert {shop.sample.ledger.get(each).state for each in chosen} == {"queued"}
        done = olga.submit(type(page)(confirm.text), RUN)
        assert "2 canceled." in done.text
    assert [shop.sample.ledger.get(each).state for each in chosen] == ["canceled", "canceled", "queued"]
    entry = shop.sample.ledger.audit(limit=1)[0]
    assert (entry.actor, entry.source, entry.action) == ("olga", "admin", "bulk")
    assert shop.project.script(LOG)[0][1:] == [2, None, "Cancel"]


def test_many_jobs_are_canceled_in_portions(shop: Shop) -> None:
    """An operation on more jobs than a portion has goes on by a button, or a script, until all are done."""
    task = tasks_of(shop.sample.app)["shop.study_plan"]
    projects = ({"project": f"portion-{number}"} for number in range(PORTION + 200))
    shop.sample.ledger.submit_many([submission_of(task, each, source="http") for each in projects])
    with shop.login("olga") as olga:
        page = olga.page(f"{LIST}?state=queued&argument=portion-")
        confirm = olga.submit(page, PREVIEW, operation="cancel", scope="matching")
        assert f"{PORTION + 200} jobs will be canceled" in confirm.text
        first = olga.submit(type(page)(confirm.text), RUN)
        while "so far" in first.text:
            assert "/static/onejob/continue.js" in first.text
            first = olga.submit(type(page)(first.text), RUN)
        assert f"{PORTION + 200} canceled." in first.text
        assert "requestSubmit" in olga.get("/static/onejob/continue.js").text
    assert shop.sample.ledger.find(Query(states=frozenset({State.QUEUED}), arguments="portion-")) == []


def test_django_finds_no_rows_of_jobs(shop: Shop) -> None:
    """The model without a table disturbs neither the checks nor the migrations nor a dump of the data."""
    assert shop.project.script(COMMANDS) == [False, False]


# --- manage.py onejob -----------------------------------------------------------------------------------------------


@on_every_store
def test_manage_has_the_commands(shop: Shop) -> None:
    """Jobs are listed, explained and canceled in the project's ledger, wherever that is, with the words of `onejob`."""
    job_id, other = shop.job("command"), shop.job("command")
    listing = ["jobs", "list", "--state", "queued", "--argument", "command", "--json"]
    calls = [listing, ["why", job_id], ["jobs", "cancel", job_id], ["jobs", "cancel", job_id]]
    listed, why, canceled, refused = shop.project.script(CALLS, calls)
    assert {job["id"] for job in json.loads(listed[1])} == {job_id, other}
    assert why[0] == 0
    assert job_id in why[1]
    assert canceled[0] == 0, canceled
    assert f"{job_id} is canceled" in canceled[1], canceled
    assert refused[0] == 1
    assert f"job {job_id} is canceled" in refused[1]
    assert shop.sample.ledger.get(job_id).state == "canceled"


def test_errors_are_those_of_manage(shop: Shop) -> None:
    """What is wrong is a `CommandError` with one sentence, and the exit code of the command."""
    unknown, wrong, option, found = shop.project.script(
        CALLS, [["why", "unknown"], ["nothing"], ["jobs", "list", "--state", "odd"], ["dead", "redrive", "unknown"]]
    )
    assert unknown[0] == 1
    assert "no job has the id 'unknown'" in unknown[1]
    assert wrong[0] == 2
    assert "No such command 'nothing'" in wrong[1]
    assert option[0] == 2
    assert "Usage: manage.py onejob jobs list" in option[1]
    assert found[0] == 1
    shown = shop.project.manage("onejob", "why", "unknown", "--settings", "shop.settings", code=1)
    assert shown.startswith("CommandError: no job has the id 'unknown'")
    assert "Usage: manage.py onejob" in shop.project.manage("onejob", "--help")
