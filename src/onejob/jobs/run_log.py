"""The log of a run: the end of what its body has logged, as lines of text."""

from __future__ import annotations

from dataclasses import dataclass

LOG_LIMIT = 65_536
"""How many characters of each attempt's log are kept: the last ones."""
CUT = "[...]\n"
"""The first line of a log that has lost its beginning."""
HELD = "its body held the event loop for"
"""The words of a line in the log of a run whose body has kept all other coroutines of its worker waiting."""


@dataclass(frozen=True, slots=True)
class RunLog:
    """The log of one attempt of a job."""

    attempt: int
    text: str
    """Lines that end with a newline, at most `LOG_LIMIT` characters; older ones are gone, and `CUT` says so."""


def holds_in(log: RunLog) -> list[str]:
    """Return the times and places in a log at which the body held the event loop, such as `2.3 s at shop.py:41`."""
    return [line.partition(HELD)[2].strip() for line in log.text.splitlines() if HELD in line]


def end_of_log(text: str) -> str:
    """Return the last lines of a text that fit in a log, after `CUT` if that are not all."""
    if len(text) <= LOG_LIMIT:
        return text
    end = text[-(LOG_LIMIT - len(CUT)) :]
    first = end.find("\n") + 1
    return CUT + (end[first:] or end)
