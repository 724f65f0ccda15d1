"""Pages of jobs are bounded in bytes, and counts in jobs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from onejob.api import job_pages
from onejob.jobs.lifecycle import State
from tests.http.conftest import problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onejob.jobs.records import Query
    from tests.http.conftest import Shop

LARGE = "a" * 100_000


def _completed(shop: Shop, count: int, result: str = LARGE) -> list[str]:
    """Complete jobs with this result and a progress, and return their ids, newest first."""
    ids: list[str] = []
    for number in range(count):
        job = shop.claimed(shop.post("invoice", {"order_id": number}).json()["job"]["id"])
        shop.ledger.report(job, '{"done": 1}')
        ids.insert(0, shop.ledger.complete(job, json.dumps(result)).id)
    return ids


def _page(shop: Shop, path: str = "/jobs", **params: Any) -> dict[str, Any]:
    response = shop.client.get(path, params=params)
    assert response.status_code == 200, response.text
    page: dict[str, Any] = response.json()
    return page | {"size": len(response.content)}


def test_a_list_has_large_fields_only_on_request(shop: Shop) -> None:
    """A listed job has its result and progress only if `include` names them, and is otherwise as on its own route."""
    (job_id,) = _completed(shop, 1)
    whole = shop.client.get(f"/jobs/{job_id}").json()
    for include in ([], ["result"], ["progress"], ["result", "progress"]):
        expected = {name: value for name, value in whole.items() if name not in {"result", "progress"} - set(include)}
        assert _page(shop, include=include)["jobs"] == [expected]
    problem(shop.client.get("/jobs?include=arguments"), 422, "invalid-request")


def test_dead_letters_have_large_fields_only_on_request(shop: Shop) -> None:
    """The list of dead letters leaves out the same fields as the list of jobs, and has them on request."""
    job_id = shop.post("invoice", {"order_id": 1}).json()["job"]["id"]
    shop.ledger.report(shop.claimed(job_id), '{"done": 1}')
    shop.ledger.fail(shop.ledger.get(job_id), '{"type": "ValueError", "message": "no", "traceback": ""}', "no")
    (job,) = _page(shop, "/dead")["jobs"]
    assert {"result", "progress"} & set(job) == set()
    assert _page(shop, "/dead", include="progress")["jobs"] == [job | {"progress": {"done": 1}}]


def test_a_page_is_bounded_in_bytes(shop: Shop) -> None:
    """A page ends when its jobs have a megabyte, and the pages together have every job once, in order."""
    ids = _completed(shop, 25)
    seen: list[str] = []
    cursor: dict[str, Any] = {}
    pages = 0
    while True:
        page = _page(shop, include="result", limit=200, **cursor)
        assert page["size"] <= job_pages.PAGE_BYTES + 1000
        assert {job["result"] for job in page["jobs"]} == {LARGE}
        seen += [job["id"] for job in page["jobs"]]
        pages += 1
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    assert seen == ids
    assert pages == 3


def test_a_page_has_at_least_one_job(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is larger than a page may be is a page of its own."""
    monkeypatch.setattr(job_pages, "PAGE_BYTES", 1000)
    ids = _completed(shop, 2)
    first = _page(shop, include="result")
    last = _page(shop, include="result", cursor=first["next"])
    assert [job["id"] for page in (first, last) for job in page["jobs"]] == ids
    assert last["next"] is None


def test_a_list_reads_no_large_fields(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `include` neither arguments nor results are read; with it, those of a few jobs at a time."""
    _completed(shop, 20)
    find, get_many, read = shop.ledger.find, shop.ledger.store.get_many, []

    def find_light(query: Query) -> Any:
        assert query.light
        return find(query)

    def get_some(job_ids: Sequence[str]) -> Any:
        read.append(len(job_ids))
        return get_many(job_ids)

    monkeypatch.setattr(shop.ledger, "find", find_light)
    monkeypatch.setattr(shop.ledger.store, "get_many", get_some)
    _page(shop)
    assert read == []
    _page(shop, include="result")
    assert read == [job_pages.READ_AT_ONCE] * 2


def test_a_job_that_is_purged_meanwhile_stays_listed(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is purged while the results of its page are read is listed without its result."""
    ids = _completed(shop, 3)
    get_many = shop.ledger.store.get_many
    monkeypatch.setattr(
        shop.ledger.store, "get_many", lambda job_ids: get_many([each for each in job_ids if each != ids[1]])
    )
    jobs = _page(shop, include="result")["jobs"]
    assert [(job["id"], job["result"]) for job in jobs] == [(ids[0], LARGE), (ids[1], None), (ids[2], LARGE)]


@pytest.mark.parametrize(("limit", "expected"), [(2, (2, True)), (3, (3, True)), (4, (3, False))])
def test_counts_are_capped(shop: Shop, monkeypatch: pytest.MonkeyPatch, limit: int, expected: tuple[int, bool]) -> None:
    """A count covers the newest matching jobs up to a limit, and says whether there may be more."""
    _completed(shop, 3, "x")
    monkeypatch.setattr(job_pages, "COUNT_LIMIT", limit)
    page = _page(shop, count=True, limit=1)
    assert (page["total"], page["total_is_capped"]) == expected
    assert page["by_state"] == dict.fromkeys(State, 0) | {"completed": expected[0]}
