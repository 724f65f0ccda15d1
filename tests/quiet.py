"""What no test lets pass unannounced: an error in a worker's log, and a job that was lost, sent or run once more."""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol

import pytest

from onejob.celery.messages.payload import REPLACED
from onejob.jobs.lifecycle import Transition
from onejob.jobs.query import Query

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterator, Mapping
    from pathlib import Path

    from onejob.jobs.history import Entry
    from onejob.jobs.model import JobRow
    from onejob.ledger.ledger import Ledger

RUN_ENDS = frozenset({Transition.CRASH, Transition.DEAD_LETTER, Transition.RELEASE, Transition.RETRY})
"""The transitions that end a run without its result."""
HEALING = RUN_ENDS | {
    Transition.PUBLISH, Transition.UNPUBLISHABLE, Transition.NOTIFY_CANVAS, Transition.CANVAS_ABANDONED,
}  # fmt: skip
"""The transitions after which a job is sent or runs once more, or is given up."""
LOOK = (Transition.RELEASE, REPLACED)
"""The event and the detail of a replaced job that looks for the end of its replacement: no body has run, or runs again.

The first look is after a second: whether it finds the end depends on the machine.
"""
HEALED = ("published again", "could not be sent", "did not accept")
"""What a publication says of itself that is not the first one, or that failed."""
KILLED = "exited with 'signal 9 (SIGKILL)'"
"""What the log of a prefork worker says of a child that was killed."""
_RECORD = re.compile(r"^\[\d{4}-\d\d-\d\d [\d:,]+: (?P<level>[A-Z]+)/", re.MULTILINE)
_ERRORS = ("Traceback (most recent call last)", "Exception ignored in", "Exception in thread")


class Trouble(NamedTuple):
    """What a test must announce: a transition of a job, or a record of a worker's log (then `event` is "")."""

    event: str
    text: str


class Watched(Protocol):
    """What runs workers: a test that uses it is checked."""

    def troubles(self) -> Iterator[Trouble]:
        """Yield the troubles since the last call."""
        ...


_watched: list[Watched] = []
_last_marks: list[pytest.Mark] = []


def watch(watched: Watched) -> None:
    """Check each test for the troubles of this, until `unwatch`."""
    _watched.append(watched)


def unwatch(watched: Watched) -> None:
    """End the checks of what is closed."""
    _watched[:] = [each for each in _watched if each is not watched]


def provokes(*events: Transition, logs: Collection[str] = (), because: str) -> pytest.MarkDecorator:
    """Announce the healing transitions, and texts of the errors in logs, that a test provokes."""
    assert HEALING.issuperset(events), f"these need no announcement: {set(events) - HEALING}"
    return pytest.mark.provokes(*events, logs=logs, because=because)


def assert_quiet(item: pytest.Item) -> None:
    """Assert that what runs workers has no trouble that the test does not announce."""
    found = unannounced(item)
    assert not found, "not announced by `provokes`:\n" + "\n".join(found)


def unannounced(item: pytest.Item) -> list[str]:
    """Return the troubles since the last call that a test does not announce."""
    marks = [*item.iter_markers("provokes")]
    both = [*marks, *_last_marks]  # a worker may log an error a moment after the end of the test
    _last_marks[:] = marks
    events = {event for mark in marks for event in mark.args}
    texts = [text for mark in both for text in mark.kwargs["logs"]]
    return [
        trouble.text
        for watched in _watched
        for trouble in watched.troubles()
        if not (trouble.event in events if trouble.event else any(text in trouble.text for text in texts))
    ]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Check each test that passes; the troubles of one that fails are not those of the next one."""
    try:
        yield
    except BaseException:
        with suppress(Exception):  # the test may have failed because what it watches cannot be read
            unannounced(item)
        raise
    assert_quiet(item)


class LogReader:
    """Reads the errors of a growing log, each once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = 0

    def troubles(self) -> Iterator[Trouble]:
        """Yield the new records that are errors or have a traceback."""
        text = self._path.read_text(errors="replace") if self._path.exists() else ""
        new, self._seen = text[self._seen :], len(text)
        starts = [match.start() for match in _RECORD.finditer(new)]
        for start, end in pairwise([0, *starts, len(new)]):
            record = new[start:end]
            match = _RECORD.match(record)
            level = match["level"] if match else ""
            if level in {"ERROR", "CRITICAL"} or any(error in record for error in _ERRORS):
                yield Trouble("", record)


class JobReader:
    """Reads the histories of a ledger's jobs, each job once: when a test has ended, so have its jobs."""

    def __init__(self, ledger: Callable[[], Ledger]) -> None:
        self._ledger = ledger
        self._seen: set[str] = set()

    def troubles(self, runs_ended: Mapping[str, int]) -> Iterator[Trouble]:
        """Yield the healing transitions of the new jobs, for each without so many that ended a run on purpose."""
        ledger = self._ledger()
        for job in ledger.find(Query(limit=10_000)):
            if job.id not in self._seen:
                self._seen.add(job.id)
                healed = [*_healed(ledger, job)]
                yield from [each for each in healed if each.event in RUN_ENDS][runs_ended.get(job.id, 0) :]
                yield from (each for each in healed if each.event not in RUN_ENDS)


def _healed(ledger: Ledger, job: JobRow) -> Iterator[Trouble]:
    for before, entry in pairwise(ledger.history(job.id)):
        if entry.event not in HEALING or (entry.event, entry.detail) == LOOK:
            continue
        if entry.event != Transition.PUBLISH or _heals(job, before, entry):
            yield Trouble(entry.event, f"job {job.id} of {job.task}: {entry}")


def _heals(job: JobRow, before: Entry, publication: Entry) -> bool:
    """Return whether a sweep published what had been sent, or had to: what is due by a date is sent within a lease."""
    return any(text in publication.detail for text in HEALED) or publication.at - before.at >= job.lease
