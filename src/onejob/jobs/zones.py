"""Time zones as intervals of one UTC offset, which are read from the zone by conversions from UTC alone.

So any `tzinfo` gives the same answers as `zoneinfo`, whatever it makes of local times that do not exist or exist twice.
Times are whole seconds since the epoch; a local time is the same number for the clock on the wall: UTC plus the offset.
The zone None is the local time of this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple, TypeVar

from onejob.jobs.durations import DAY

Found = TypeVar("Found")
LOCAL = "local-time"
"""The name of the local time of a machine."""
RULES_YEARS = 5
"""The years by which `rules_of` rounds down the present year; it covers twice as many years from there on."""
_BLOCK = 2**25
"""The seconds for which a zone is read at once: somewhat more than a year."""
_MARGIN = 2 * DAY
"""How far before a block a zone is read, since a time that was skipped or repeated lies at most a day before."""


class Segment(NamedTuple):
    """A time in which a zone has one offset: from `begin` until before `end`; until `begin` its offset was `before`.

    A segment may end without a change of the offset: zones are read piece by piece.
    """

    begin: int
    end: int
    offset: int
    before: int


def segment_at(zone: tzinfo | None, at: int) -> Segment:
    """Return the segment of a zone that contains a time."""
    segments = _segments(zone, at // _BLOCK)
    return next(each for each in reversed(segments) if each.begin <= at)


def moment_of(zone: tzinfo | None, local: int) -> int:
    """Return the UTC seconds of a local time, by the rules of RFC 5545 (3.3.5).

    A local time that exists twice means the first of both. A local time that does not exist has the offset from before
    the gap: where 02:00 is followed by 03:00, 02:30 is 03:30.
    """
    segment = segment_at(zone, local - int(DAY))
    while local - segment.offset >= segment.end:
        segment = segment_at(zone, segment.end)
    exists = local - segment.offset >= segment.begin
    return local - (segment.offset if exists else segment.before)


def name_of(zone: tzinfo | None) -> str:
    """Return the name of a zone, such as `Europe/Berlin`, without spaces."""
    return LOCAL if zone is None else "".join(str(getattr(zone, "key", None) or zone).split())


def rules_of(zone: tzinfo | None, now: float) -> str:
    """Return a digest of the offsets of a zone in the years around `now`; "" for a zone whose offset never changes.

    It is equal for zones that have the same offset at any time from a year that `RULES_YEARS` divides on, for
    twice as many years.
    """
    return _digest(zone, datetime.fromtimestamp(now, UTC).year // RULES_YEARS * RULES_YEARS)


def _once(read: Callable[[tzinfo | None, int], Found]) -> Callable[[tzinfo | None, int], Found]:
    """Return `read` with a cache of its results by zone; a zone without a hash, as in dateutil, is read each time."""
    kept = lru_cache(maxsize=4096)(read)

    def read_once(zone: tzinfo | None, number: int) -> Found:
        try:
            return kept(zone, number)
        except TypeError:
            return read(zone, number)

    return read_once


@_once
def _digest(zone: tzinfo | None, year: int) -> str:
    begin, end = (int(datetime(each, 1, 1, tzinfo=UTC).timestamp()) for each in (year, year + 2 * RULES_YEARS))
    changes = [f"{each.begin} {each.offset}" for each in _changes(zone, begin, end)]
    text = "\n".join([str(segment_at(zone, begin).offset), *changes])
    return sha256(text.encode()).hexdigest()[:8] if changes else ""


def _changes(zone: tzinfo | None, begin: int, end: int) -> Iterator[Segment]:
    segment = segment_at(zone, begin)
    while segment.end < end:
        segment = segment_at(zone, segment.end)
        if segment.offset != segment.before:
            yield segment


@_once
def _segments(zone: tzinfo | None, block: int) -> tuple[Segment, ...]:
    """Return the segments of a block, in order; two changes within one day are taken for one, or for none."""
    begin, end = block * _BLOCK - int(_MARGIN), (block + 1) * _BLOCK
    offset = before = _offset(zone, begin)
    found: list[Segment] = []
    for day in range(begin, end, int(DAY)):
        last = min(day + int(DAY), end) - 1
        after = _offset(zone, last)
        if after != offset:
            change = _change(zone, day - 1, last, after)
            found.append(Segment(begin, change, offset, before))
            begin, before, offset = change, offset, after
    return (*found, Segment(begin, end, offset, before))


def _change(zone: tzinfo | None, low: int, high: int, after: int) -> int:
    """Return the first second, after `low` and until `high`, from which on a zone has the offset `after`."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _offset(zone, middle) == after else (middle, high)
    return high


def _offset(zone: tzinfo | None, at: int) -> int:
    offset = datetime.fromtimestamp(at, UTC).astimezone(zone).utcoffset()
    return 0 if offset is None else int(offset.total_seconds())
