"""Bulk operations: every selected job is processed once, in bounded portions, and refusals stop nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from onejob.errors import NoDeadLetterError, StoreUnavailableError
from onejob.jobs.lifecycle import State
from onejob.jobs.records import Query
from onejob.jobs.visibility import Visibility
from onejob.ledger import bulk
from onejob.ledger.bulk import NOT_REACHED, BulkResult, Selection, bulk_apply
from onejob.ledger.reader import JobReader
from tests.contract.support import UNKNOWN, ManualClock, read, steps_to, submit

if TYPE_CHECKING:
    from onejob.jobs.model import Job
    from onejob.ledger.ledger import Ledger
    from onejob.stores.protocol import Store

QUEUED = Query(states=frozenset({State.QUEUED}), limit=1000)


@pytest.fixture
def ids(store: Store, clock: ManualClock) -> list[str]:
    """Return the ids of seven waiting jobs, newest first, some of which were submitted at the same time."""
    made = []
    for number in range(7):
        clock.advance(number % 2)
        made.append(submit(store, f"job-{number}").id)
    return [job.id for job in store.find(QUEUED)]


@pytest.mark.parametrize("page_size", [1, 2, 3, 200])
@pytest.mark.parametrize("limit", [1, 3, 7, 1000])
def test_portions_cover_each_job_once(
    ledger: Ledger, ids: list[str], monkeypatch: pytest.MonkeyPatch, page_size: int, limit: int
) -> None:
    """Portion after portion, each matching job is processed once, newest first, although the operation changes it."""
    monkeypatch.setattr(bulk, "PAGE_SIZE", page_size)
    query, portions = replace(QUEUED, limit=limit), []
    while True:
        result = bulk_apply(ledger, Selection(query=query), lambda job: ledger.cancel(job.id))
        portions.append(result.done)
        if result.next is None:
            break
        query = replace(query, before=result.next.created_at, before_id=result.next.job_id)
    assert [job_id for portion in portions for job_id in portion] == ids
    assert {len(portion) for portion in portions[:-1]} <= {limit}
    assert ledger.find(QUEUED) == []


def test_later_jobs_are_left_alone(ledger: Ledger, store: Store, ids: list[str], clock: ManualClock) -> None:
    """Jobs that are submitted after the preview or during the operation are not touched."""
    query = replace(QUEUED, until=clock.advance(1.0), limit=4)
    submit(store, "after-the-preview")

    def act(job: Job) -> None:
        submit(store, f"during-{job.id}")
        ledger.cancel(job.id)

    first = bulk_apply(ledger, Selection(query=query), act)
    assert first.next is not None
    rest = replace(query, before=first.next.created_at, before_id=first.next.job_id)
    assert first.done + bulk_apply(ledger, Selection(query=rest), act).done == ids
    assert {job.id for job in ledger.find(QUEUED)} == {"after-the-preview", *(f"during-{job_id}" for job_id in ids)}


def test_a_portion_can_end_early(ledger: Ledger, ids: list[str]) -> None:
    """A portion ends when the caller says so, with at least one job; the next one continues there. Ids are refused."""
    seen: list[str] = []
    result = bulk_apply(ledger, Selection(query=QUEUED), lambda job: seen.append(job.id), is_over=lambda: True)
    assert seen == result.done == ids[:1]
    assert result.next is not None
    assert result.next.job_id == ids[0]
    by_id = bulk_apply(ledger, Selection(job_ids=ids[:3]), lambda job: seen.append(job.id), is_over=lambda: True)
    assert (by_id.done, by_id.refused, by_id.next) == (ids[:1], dict.fromkeys(ids[1:3], NOT_REACHED), None)


def test_a_predicate_selects(ledger: Ledger, ids: list[str]) -> None:
    """With a predicate only the jobs that it selects are processed and count for the limit."""
    selection = Selection(query=replace(QUEUED, limit=2), matches=lambda job: job.id in {ids[1], ids[4], ids[5]})
    result = bulk_apply(ledger, selection, lambda job: ledger.cancel(job.id))
    assert result.done == [ids[1], ids[4]]
    assert result.next is not None
    rest = replace(QUEUED, before=result.next.created_at, before_id=result.next.job_id)
    last = bulk_apply(ledger, replace(selection, query=rest), lambda job: ledger.cancel(job.id))
    assert (last.done, last.next) == ([ids[5]], None)


def test_refusals_stop_nothing(ledger: Ledger, store: Store) -> None:
    """By id, in the given order and once each: a job that is refused or missing is listed with its reason."""
    failed, waiting = steps_to(store, "failed", State.FAILED).id, submit(store, "waiting").id
    result = bulk_apply(
        ledger, Selection(job_ids=[UNKNOWN, waiting, failed, waiting]), lambda job: ledger.redrive(job.id)
    )
    assert (result.done, list(result.refused), result.next) == ([failed], [UNKNOWN, waiting], None)
    assert "queued" in result.refused[waiting]
    assert read(store, failed).state is State.QUEUED


def test_a_dry_run_checks_and_changes_nothing(ledger: Ledger, store: Store) -> None:
    """A dry run calls the check and not the action."""
    steps_to(store, "failed", State.FAILED)
    submit(store, "waiting")

    def check(job: Job) -> None:
        if job.state is not State.FAILED:
            raise NoDeadLetterError(job.id, job.state)

    def act(job: Job) -> None:
        raise AssertionError(job.id)

    result = bulk_apply(ledger, Selection(query=Query()), act, check=check, dry_run=True)
    assert (result.done, list(result.refused)) == (["failed"], ["waiting"])


def test_an_unavailable_store_ends_it(ledger: Ledger, ids: list[str]) -> None:
    """An unavailable store is raised at once, since the whole can be repeated."""
    seen: list[str] = []

    def act(job: Job) -> None:
        seen.append(job.id)
        raise StoreUnavailableError

    with pytest.raises(StoreUnavailableError):
        bulk_apply(ledger, Selection(query=QUEUED), act)
    assert seen == ids[:1]


def test_only_visible_jobs_are_selected(store: Store, ids: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that sees some jobs selects these, on whichever pages they are; others look like unknown ids."""
    monkeypatch.setattr(bulk, "PAGE_SIZE", 2)
    reader = JobReader(store, Visibility(predicate=lambda job: job.id == ids[5]))
    assert bulk_apply(reader, Selection(query=QUEUED), str, dry_run=True).done == [ids[5]]
    result = bulk_apply(reader, Selection(job_ids=[ids[0]]), str, dry_run=True)
    assert (result.done, list(result.refused)) == ([], [ids[0]])


def test_jobs_are_read_light(ledger: Ledger, ids: list[str]) -> None:
    """An action on the jobs of a query gets them without their large fields."""
    payloads: list[str] = []
    bulk_apply(ledger, Selection(query=QUEUED), lambda job: payloads.append(job.payload))
    assert (len(payloads), set(payloads)) == (len(ids), {""})


def test_nothing_is_selected_by_accident() -> None:
    """A selection has ids or a query, and not both."""
    choices: list[dict[str, Any]] = [{}, {"job_ids": []}, {"job_ids": ["a"], "query": QUEUED}]
    for wrong in choices:
        with pytest.raises(ValueError, match="give job ids or a filter"):
            Selection(**wrong)
    assert BulkResult() == BulkResult([], {}, None)
