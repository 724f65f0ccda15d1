"""The client finds the jobs that the command line, HTTP and the pages find, and pages of them by the same cursors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, get_args, get_type_hints
from urllib.parse import urlencode

import pytest
from celery import Celery
from pydantic_core import to_json
from starlette.testclient import TestClient

import onejob
from onejob.api import create_app
from onejob.client import Failure
from onejob.client.filters import Filters, OperationName, StateName
from onejob.client.operation import Operation
from onejob.jobs.blocks import Block, BlockKind
from onejob.jobs.lifecycle import State
from onejob.jobs.timestamps import format_timestamp
from onejob.ledger.job_filters import FILTERS
from onejob.ledger.ledger import Ledger
from tests.api.conftest import LOCAL
from tests.cases import for_each
from tests.cli.command import Shell
from tests.conftest import every_store
from tests.fundamentals.shop import order
from tests.limited import CUSTOMER, crowd
from tests.operation_cases import completed, failed, queued, running
from tests.stores.support import StoreAddress

PAUSE = Block(id="p-1", kind=BlockKind.PAUSE, queue="slow", where={})
LATER = timedelta(days=1)


@pytest.fixture
def http(app: Celery) -> Iterator[TestClient]:
    with TestClient(create_app(app), **LOCAL) as client:
        yield client


@pytest.fixture
def shell(store_address: StoreAddress) -> Shell:
    return Shell(("--store", store_address.url, "--namespace", store_address.namespace))


def fill(ledger: Ledger) -> None:
    """Have a job in each state but one, and some with a submitter or a tag."""
    for make in (queued, running, completed, failed):
        make(ledger)
    ledger.cancel(queued(ledger).id)
    ledger.submit(order(42, submitter="ann"))
    ledger.submit(order(43, tag_lines="\nimport\n"))
    ledger.park(ledger.submit(order(44)).job, ledger.add_block(PAUSE))
    crowd(ledger)


def cases(ledger: Ledger, client: onejob.Client) -> list[dict[str, Any]]:
    """Return filters of every kind, each of which some jobs match and others do not."""
    newest, *_, oldest = client.find_all()
    return [
        {}, {"state": "queued"}, {"state": ["completed", State.FAILED]}, {"task": "shop.invoice"}, {"task": "none"},
        {"argument": "42"}, {"error": "ValueError"}, {"submitter": "ann"}, {"submitter": ""}, {"tag": "import"},
        {"pause": PAUSE.id}, {"room": CUSTOMER}, {"room": "customer=7"},
        {"queue": "none"}, {"worker": "north"}, {"identity": ledger.get(oldest.id).identity},
        {"since": newest.created_at}, {"until": newest.created_at}, {"since": oldest.created_at, "state": "running"},
        {"until": newest.created_at.astimezone(timezone(timedelta(hours=5)))},
    ]  # fmt: skip


def words(filters: dict[str, Any]) -> list[tuple[str, str]]:
    """Return filters as texts, as a URL or a command has them."""
    pairs = (
        (name, each) for name, value in filters.items() for each in (value if isinstance(value, list) else [value])
    )
    return [
        (name, format_timestamp(each.astimezone(UTC)) if isinstance(each, datetime) else each) for name, each in pairs
    ]


@every_store
def test_every_front_end_finds_the_same_jobs(
    client: onejob.Client, ledger: Ledger, http: TestClient, shell: Shell
) -> None:
    """For the same filters Python, HTTP and the command line have the same jobs in the same order, and count them."""
    fill(ledger)
    given = cases(ledger, client)
    assert {name for each in given for name in each} == {each.name for each in FILTERS}
    for filters in given:
        found = [job.id for job in client.find(**filters).jobs]
        asked = words(filters)
        assert found == [job["id"] for job in http.get(f"/jobs?{urlencode(asked)}").json()["jobs"]], filters
        assert found == shell.ids(*(f"--{name}={text}" for name, text in asked)), filters
        assert client.count(**filters).total == len(found), filters
    assert len(client.find().jobs) == len([*client.find_all()]) == 11


@every_store
def test_a_job_has_the_fields_of_http(client: onejob.Client, ledger: Ledger, http: TestClient, app: Celery) -> None:
    """`get`, `find` and a result return the public view of a job, whose fields and values are those of HTTP."""
    job = failed(ledger)
    shown = client.get(job.id)
    assert client.find().jobs == [shown] == [onejob.AsyncResult(job.id, app=app).job]
    assert json.loads(to_json(asdict(shown))) == http.get(f"/jobs/{job.id}").json()
    assert shown.error == Failure(type="ValueError", message="no")
    assert shown.state is State.FAILED
    assert isinstance(shown.created_at, datetime)
    assert {shown} == {client.get(job.id)}


@every_store
def test_pages_are_joined_by_their_cursors(client: onejob.Client, ledger: Ledger, http: TestClient) -> None:
    """Pages of each size have all jobs once, and the last one says so; HTTP goes on from their cursors."""
    jobs = [queued(ledger).id for _ in range(7)][::-1]
    for limit in (1, 3, 7, 8):
        page = client.find(limit=limit, state="queued")
        found = [job.id for job in page.jobs]
        while page.next is not None:
            assert len(page.jobs) == limit
            page = client.find(limit=limit, cursor=page.next, state="queued")
            found += [job.id for job in page.jobs]
        assert found == jobs, limit
    cursor = client.find(limit=3).next
    assert [job["id"] for job in http.get("/jobs", params={"cursor": cursor}).json()["jobs"]] == jobs[3:]


def test_all_jobs_are_iterated_over_whatever_is_submitted(client: onejob.Client, ledger: Ledger) -> None:
    """`find_all` reads page after page, and yields no job twice that was there when it began, and no newer one."""
    jobs = [queued(ledger).id for _ in range(120)][::-1]
    found = []
    for job in client.find_all(state="queued"):
        found.append(job.id)
        if len(found) == 50:
            queued(ledger)
    assert found == jobs


def test_jobs_are_counted_up_to_a_limit(client: onejob.Client, ledger: Ledger) -> None:
    """A count is exact and has every state; with a limit it stops there, and says that it is not complete."""
    for make in (queued, queued, running):
        make(ledger)
    count = client.count()
    assert count.total == 3
    assert count.is_complete
    assert count.by_state == dict.fromkeys(State, 0) | {State.QUEUED: 2, State.RUNNING: 1}
    assert client.count(limit=2, task="shop.invoice").total == 2
    assert not client.count(limit=2).is_complete
    assert client.count(limit=9).is_complete


def test_a_duration_is_a_time_before_now(client: onejob.Client, ledger: Ledger) -> None:
    """`timedelta` counts back from the clock of the ledger; None selects every job."""
    job = queued(ledger)
    assert [each.id for each in client.find(since=timedelta(hours=1), task=None).jobs] == [job.id]
    assert client.find(until=timedelta(hours=1)).jobs == []
    assert client.find(since=datetime.now(UTC) + LATER).jobs == []


def test_the_filters_have_types() -> None:
    """What type checkers know of filters, states and operations is what there is."""
    assert [*get_type_hints(Filters)] == [each.name for each in FILTERS]
    assert {*get_args(StateName)} == {*map(str, State)}
    assert {*get_args(OperationName)} == {*map(str, Operation)}


@for_each("given, kind, text", [
    ({"taks": "x"}, TypeError, "'taks' is no filter of jobs: did you mean task?"),
    ({"colour": "x"}, TypeError, "the filters are state, task, argument"),
    ({"task": 7}, TypeError, "the filter task is a text, not 7"),
    ({"state": "done"}, ValueError, "the filter state='done' is one of queued, running"),
    ({"state": ["queued", "done"]}, ValueError, "or a list of these"),
    ({"state": 7}, ValueError, "the filter state=7 is one of"),
    ({"since": "1h"}, TypeError, "the filter since is a datetime, or a timedelta before now, not '1h'"),
    ({"until": datetime(2026, 1, 1)}, ValueError, "has no time zone: write datetime\\(..., tzinfo=UTC\\)"),
    ({"limit": 0}, ValueError, "limit=0 is a number of jobs from 1 to 1000"),
    ({"limit": 1001}, ValueError, "limit=1001 is"), ({"limit": "5"}, ValueError, "limit='5' is"),
    ({"cursor": "page 2"}, ValueError, "the cursor is invalid: use the `next` of a page"),
])  # fmt: skip
def test_a_wrong_filter_is_named(
    client: onejob.Client, given: dict[str, Any], kind: type[Exception], text: str
) -> None:
    """A filter that is misspelled, or whose value cannot be meant, raises an error that says what to write."""
    with pytest.raises(kind, match=text):
        client.find(**given)
