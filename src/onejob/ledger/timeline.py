"""The history of a job as spans of time, for a picture: its waits and its runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from onejob.jobs.history import ORIGINS, Entry
from onejob.jobs.lifecycle import RULES, WAITING, Transition
from onejob.jobs.model import JobRow


class SpanKind(StrEnum):
    """The kind of a span."""

    WAITING = "waiting"
    RUNNING = "running"
    EVENT = "event"
    """A point in time."""


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time in the life of a job, in seconds since the epoch on the store's clock."""

    kind: SpanKind
    begin: float
    end: float | None
    """The end of the span; None if it has not ended; equal to `begin` for a point in time."""
    label: str
    """The state of a waiting job ("delayed" before it is due), how a run ended ("running" if it has not), or the name
    of an event."""
    detail: str = ""
    attempt: int = 0
    node: str = ""


RUN_LABELS = {
    Transition.COMPLETE: "completed",
    Transition.FAIL: "failed",
    Transition.RETRY: "retried",
    Transition.RELEASE: "released",
    Transition.REPLACE: "replaced",
    Transition.CRASH: "lost",
    Transition.DEAD_LETTER: "lost",
    Transition.ABANDON: "canceled",
}
"""The labels of ended runs, by the transition that ended them."""
_RULES = {str(event): rule for event, rule in RULES.items()}
"""The rules by event; a newer version may have written events without a rule, in a rolling deployment."""
LEASE_EXPIRED = "lease expired"
UNRECORDED = "not recorded"
"""The label of the time of runs that the history, which has a limit, no longer has."""


def build_timeline(job: JobRow, history: Sequence[Entry], now: float) -> list[Span]:
    """Return the spans of a job, by their beginnings; `history` as `Ledger.history` returns it, oldest first.

    `now`: the time on the store's clock. Spans of one job do not overlap, except with events.
    """
    builder = _Builder()
    for entry in history:
        builder.add(entry)
    if (span := builder.open) is not None:
        if span.kind is SpanKind.WAITING and job.state in WAITING and job.run_at > now:
            span = replace(span, label="delayed")
        elif span.kind is SpanKind.RUNNING and job.lease_until is not None and job.lease_until <= now:
            span = replace(span, label=LEASE_EXPIRED)
        builder.spans.append(span)
    return sorted(builder.spans, key=lambda span: (span.begin, span.kind is not SpanKind.EVENT))


class _Builder:
    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.open: Span | None = None

    def add(self, entry: Entry) -> None:
        """Add an entry: it ends a span, begins one, or is an event."""
        rule = _RULES.get(entry.event)
        if entry.event == Transition.CLAIM:
            self._close(entry.at)
            self._open(SpanKind.RUNNING, "running", entry)
        elif entry.event in ORIGINS:
            self._open(SpanKind.WAITING, str(entry.state), entry)
        elif rule is not None and rule.fenced and rule.target is not None:
            is_recorded = self.open is not None and self.open.kind is SpanKind.RUNNING
            label = RUN_LABELS[Transition(entry.event)] if is_recorded else UNRECORDED
            self._close(entry.at, label, entry.detail)
            if not entry.state.final:
                self._open(SpanKind.WAITING, str(entry.state), entry)
        else:
            self.spans.append(Span(SpanKind.EVENT, entry.at, entry.at, entry.event, entry.detail, entry.attempt))
            if rule is not None and rule.target is not None:
                self._close(entry.at)
            if entry.event == Transition.REDRIVE:
                self._open(SpanKind.WAITING, str(entry.state), entry)

    def _open(self, kind: SpanKind, label: str, entry: Entry) -> None:
        self.open = Span(kind, entry.at, None, label, entry.detail, entry.attempt, entry.node)

    def _close(self, at: float, label: str | None = None, detail: str | None = None) -> None:
        span, self.open = self.open, None
        if span is not None:
            end = max(at, span.begin)  # a clock may be set back
            label, detail = label or span.label, span.detail if detail is None else detail
            self.spans.append(replace(span, end=end, label=label, detail=detail))
