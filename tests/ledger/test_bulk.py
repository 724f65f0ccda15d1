"""Bulk operations: every selected job is processed once, in bounded portions, and refusals stop nothing."""

from dataclasses import replace
from typing import Any

import pytest

from onejob.errors import NoDeadLetterError, StoreUnavailableError
from onejob.jobs.lifecycle import State
from onejob.jobs.model import JobRow
from onejob.jobs.query import Query
from onejob.ledger import bulk
from onejob.ledger.bulk import NOT_REACHED, BulkResult, Selection, bulk_apply
from onejob.ledger.reader import JobReader, Visibility
from tests.cases import for_each
from tests.conftest import every_store
from tests.ledger.harness import LedgerHarness
from tests.stores.support import UNKNOWN, submit

QUEUED = Query(states=frozenset({State.QUEUED}), limit=1000)


@pytest.fixture
def ids(harness: LedgerHarness) -> list[str]:
    """Return the ids of seven waiting jobs, newest first, some of which were submitted at the same time."""
    for number in range(7):
        harness.clock.advance(number % 2)
        submit(harness.store, f"job-{number}")
    return [job.id for job in harness.store.find(QUEUED)]


def after(result: BulkResult, query: Query = QUEUED) -> Query:
    """Return the query of what follows a portion."""
    assert result.next is not None
    return replace(query, before=result.next.created_at, before_id=result.next.job_id)


@every_store
@pytest.mark.parametrize(("page_size", "limit"), [(1, 1), (2, 3), (3, 7), (2, 1000), (200, 3)])
def test_portions_cover_each_job_once(
    harness: LedgerHarness, ids: list[str], monkeypatch: pytest.MonkeyPatch, page_size: int, limit: int
) -> None:
    """Portion after portion, each matching job is processed once, newest first, although the operation changes it."""
    monkeypatch.setattr(bulk, "PAGE_SIZE", page_size)
    query, portions = replace(QUEUED, limit=limit), []
    while True:
        result = bulk_apply(harness.ledger, Selection(query=query), lambda job: harness.ledger.cancel(job.id))
        portions.append(result.done)
        if result.next is None:
            break
        query = after(result, query)
    assert [job_id for portion in portions for job_id in portion] == ids
    assert {len(portion) for portion in portions[:-1]} <= {limit}
    assert harness.ledger.find(QUEUED) == []


def test_later_jobs_are_left_alone(harness: LedgerHarness, ids: list[str]) -> None:
    """Jobs that are submitted after the preview or during the operation are not touched."""
    query = replace(QUEUED, until=harness.clock.advance(1.0), limit=4)
    submit(harness.store, "after-the-preview")

    def act(job: JobRow) -> None:
        submit(harness.store, f"during-{job.id}")
        harness.ledger.cancel(job.id)

    first = bulk_apply(harness.ledger, Selection(query=query), act)
    rest = bulk_apply(harness.ledger, Selection(query=after(first, query)), act)
    assert first.done + rest.done == ids
    left = {job.id for job in harness.ledger.find(QUEUED)}
    assert left == {"after-the-preview", *(f"during-{job_id}" for job_id in ids)}


def test_a_portion_can_end_early(harness: LedgerHarness, ids: list[str]) -> None:
    """A portion ends when the caller says so, with at least one job; the next one continues there. Ids are refused."""
    seen: list[str] = []
    result = bulk_apply(harness.ledger, Selection(query=QUEUED), lambda job: seen.append(job.id), is_over=lambda: True)
    assert seen == result.done == ids[:1]
    assert after(result).before_id == ids[0]
    by_id = bulk_apply(
        harness.ledger, Selection(job_ids=ids[:3]), lambda job: seen.append(job.id), is_over=lambda: True
    )
    assert (by_id.done, by_id.refused, by_id.next) == (ids[:1], dict.fromkeys(ids[1:3], NOT_REACHED), None)
    refused = bulk_apply(harness.ledger, Selection(job_ids=[UNKNOWN, ids[0]]), lambda _: None, is_over=lambda: True)
    assert (refused.done, [*refused.refused], refused.refused[ids[0]]) == ([], [UNKNOWN, ids[0]], NOT_REACHED)


@every_store
@pytest.mark.parametrize("window", [1, 2, 1000])
def test_a_portion_without_a_job_can_end_early(
    harness: LedgerHarness, ids: list[str], monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    """A portion ends after a window in which no job matches, and the next one continues there: none is left out."""
    monkeypatch.setattr("onejob.ledger.search.WINDOW", window)
    found = harness.store.find(Query(task="app.add", limit=1000))
    query, done = replace(QUEUED, task="app.add"), list[str]()
    empty = bulk_apply(harness.ledger, Selection(query=replace(query, task="none")), print, is_over=lambda: True)
    assert empty.done == []
    assert (empty.next is None) == (window == 1000)
    for _ in range(2 * len(ids)):
        result = bulk_apply(harness.ledger, Selection(query=query), print, dry_run=True, is_over=lambda: True)
        done += result.done
        if result.next is None:
            break
        query = after(result, query)
    assert done == [job.id for job in found] == ids


def test_a_predicate_selects(harness: LedgerHarness, ids: list[str]) -> None:
    """With a predicate only the jobs that it selects are processed and count for the limit."""
    selection = Selection(query=replace(QUEUED, limit=2), matches=lambda job: job.id in {ids[1], ids[4], ids[5]})
    result = bulk_apply(harness.ledger, selection, lambda job: harness.ledger.cancel(job.id))
    assert result.done == [ids[1], ids[4]]
    last = bulk_apply(
        harness.ledger, replace(selection, query=after(result)), lambda job: harness.ledger.cancel(job.id)
    )
    assert (last.done, last.next) == ([ids[5]], None)


def test_refusals_stop_nothing(harness: LedgerHarness) -> None:
    """By id, in the given order and once each: a job that is refused or missing is listed with its reason."""
    failed, waiting = harness.reach(State.FAILED, "failed").id, harness.submit("waiting").id
    chosen = Selection(job_ids=[UNKNOWN, waiting, failed, waiting])
    result = bulk_apply(harness.ledger, chosen, lambda job: harness.ledger.redrive(job.id))
    assert (result.done, list(result.refused), result.next) == ([failed], [UNKNOWN, waiting], None)
    assert "queued" in result.refused[waiting]
    assert harness.read(failed).state is State.QUEUED


def test_a_dry_run_checks_and_changes_nothing(harness: LedgerHarness) -> None:
    """A dry run calls the check and not the action."""
    harness.reach(State.FAILED, "failed")
    harness.submit("waiting")

    def check(job: JobRow) -> None:
        if job.state is not State.FAILED:
            raise NoDeadLetterError(job.id, job.state)

    def act(job: JobRow) -> None:
        raise AssertionError(job.id)

    result = bulk_apply(harness.ledger, Selection(query=Query()), act, check=check, dry_run=True)
    assert (result.done, list(result.refused)) == (["failed"], ["waiting"])


def test_an_unavailable_store_ends_it(harness: LedgerHarness, ids: list[str]) -> None:
    """An unavailable store is raised at once, since the whole can be repeated."""
    seen: list[str] = []

    def act(job: JobRow) -> None:
        seen.append(job.id)
        raise StoreUnavailableError

    with pytest.raises(StoreUnavailableError):
        bulk_apply(harness.ledger, Selection(query=QUEUED), act)
    assert seen == ids[:1]


def test_only_visible_jobs_are_selected(
    harness: LedgerHarness, ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that sees some jobs selects these, on whichever pages they are; others look like unknown ids."""
    monkeypatch.setattr(bulk, "PAGE_SIZE", 2)
    reader = JobReader(harness.store, Visibility(predicate=lambda job: job.id == ids[5]))
    assert bulk_apply(reader, Selection(query=QUEUED), str, dry_run=True).done == [ids[5]]
    result = bulk_apply(reader, Selection(job_ids=[ids[0]]), str, dry_run=True)
    assert (result.done, list(result.refused)) == ([], [ids[0]])


def test_jobs_are_read_light(harness: LedgerHarness, ids: list[str]) -> None:
    """An action on the jobs of a query gets them without their large fields."""
    payloads: list[str] = []
    bulk_apply(harness.ledger, Selection(query=QUEUED), lambda job: payloads.append(job.payload))
    assert (len(payloads), set(payloads)) == (len(ids), {""})


@for_each("wrong", [{}, {"job_ids": []}, {"job_ids": ["a"], "query": QUEUED}])
def test_nothing_is_selected_by_accident(wrong: dict[str, Any]) -> None:
    """A selection has ids or a query, and not both."""
    with pytest.raises(ValueError, match="give job ids or a filter"):
        Selection(**wrong)
