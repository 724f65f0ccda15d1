"""Searching for jobs in bounded steps: without an index few of many jobs may match."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from onejob.jobs.lifecycle import State
from onejob.jobs.model import JobRow
from onejob.jobs.query import Query
from onejob.ledger.cursor import Cursor
from onejob.ledger.reader import JobReader

WINDOW = 2_500
"""The approximate number of jobs that a search reads between two checks whether its time is over."""
PAYLOAD_WINDOW = 500
"""The approximate number of jobs for a search that reads their payloads, each of which may be large."""
PAGE_SIZE = 200
"""The number of jobs that are read at a time."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A page of a search, and the place where the next page begins; `after` and `searched_to` are None at the end."""

    jobs: Sequence[JobRow]
    after: JobRow | None = None
    """The job to continue after (`before`, `before_id`): the last job of a full page."""
    searched_to: float | None = None
    """The time back to which all jobs were searched, to continue from (`until`), if the time was over."""

    def next_cursor(self, limit: int) -> Cursor | None:
        """Return where the page after the first `limit` jobs begins, if one more was searched for; None: nowhere."""
        last = self.jobs[limit - 1] if len(self.jobs) > limit else self.after
        if last is not None:
            return Cursor(last.created_at, last.id)
        return None if self.searched_to is None else Cursor(self.searched_to, "")


def search(ledger: JobReader, query: Query, *, is_over: Callable[[], bool]) -> SearchResult:
    """Return a page of the jobs of a query, newest first; its `offset` is ignored.

    Without an index, the search reads about `WINDOW` jobs at a time and stops when the page is full, or `is_over`
    returns True. Each call searches one window at least. If `Visibility.predicate` leaves out jobs, the job to continue
    after may be one of these.
    """
    found: list[JobRow] = []
    for window, since in windows(ledger, query):
        after = _read_window(ledger, window, found, is_over)
        if after is not None:
            return SearchResult(found, after=after)
        if since is not None and is_over():
            return SearchResult(found, searched_to=since)
    return SearchResult(found)


def windows(ledger: JobReader, query: Query) -> Iterator[tuple[Query, float | None]]:
    """Yield the query by windows, newest first, each with the time back to which it goes (None: the last window).

    A window has about `WINDOW` jobs of an index, of which few may match. A query that its index answers alone is one
    window. The `offset` is ignored.
    """
    rest, size = replace(query, offset=0), WINDOW if query.arguments is None else PAYLOAD_WINDOW
    while (since := None if ledger.is_indexed(rest) else ledger.edge(rest, skip=size)) is not None:
        yield replace(rest, since=since), since
        rest = replace(rest, until=since, before=None, before_id=None)
    yield rest, None


def _read_window(ledger: JobReader, window: Query, found: list[JobRow], is_over: Callable[[], bool]) -> JobRow | None:
    """Append jobs of a window until the page is full; return the job to continue after, None at the window's end."""
    position = window
    while True:
        jobs, last = ledger.find_page(replace(position, limit=window.limit - len(found)))
        found += jobs
        if last is None or len(found) == window.limit or is_over():
            return last
        position = replace(position, before=last.created_at, before_id=last.id)


def read_window(ledger: JobReader, window: Query, page_size: int = PAGE_SIZE) -> Iterator[JobRow]:
    """Yield each job of a window once, newest first, without `LARGE_FIELDS`, a page at a time, whatever changes.

    The `offset` of the window applies to its first page.
    """
    page = replace(window, light=True, limit=page_size)
    while True:
        jobs, last = ledger.find_page(page)
        yield from jobs
        if last is None:
            return
        page = replace(page, offset=0, before=last.created_at, before_id=last.id)


def iterate_jobs(ledger: JobReader, query: Query, page_size: int = PAGE_SIZE) -> Iterator[JobRow]:
    """Yield the jobs of a query as `read_window` does, as one window; its `offset` is ignored."""
    return read_window(ledger, replace(query, offset=0), page_size)


@dataclass(frozen=True, slots=True)
class Count:
    """The number of jobs that match, and whether all jobs were searched."""

    count: int
    is_complete: bool


def count_matching(ledger: JobReader, query: Query, *, limit: int, is_over: Callable[[], bool]) -> Count:
    """Count the jobs of a query, newest first, in the windows of `search`, until there are `limit`, or `is_over`."""
    by_state, is_complete = count_states(ledger, query, limit=limit, is_over=is_over)
    return Count(sum(by_state.values()), is_complete=is_complete)


def count_states(
    ledger: JobReader, query: Query, *, limit: int, is_over: Callable[[], bool]
) -> tuple[dict[State, int], bool]:
    """Count the jobs of a query by state, as `count_matching` does; return also whether all jobs were searched."""
    by_state = dict.fromkeys(State, 0)
    for window, since in windows(ledger, query):
        found = ledger.counts(window, limit=limit - sum(by_state.values()))
        by_state = {state: count + found[state] for state, count in by_state.items()}
        if sum(by_state.values()) >= limit or (since is not None and is_over()):
            return by_state, False
    return by_state, True
