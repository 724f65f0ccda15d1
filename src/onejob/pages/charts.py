"""The geometry of the charts: the templates draw it as inline SVG, which needs no style attribute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

WIDTH, HEIGHT = 720.0, 120.0
"""The size of the coordinate system of a bar chart; the style sheet gives its size on the page."""
GAP = 0.18
"""The share of a bar's width that is left between two."""
SPAN_WIDTH = 1000.0
SMALLEST_SPAN = 3.0
"""How wide a span is drawn at least, so that short ones can be seen."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One part of a stacked bar: its rectangle, and the series that colours it."""

    x: float
    y: float
    width: float
    height: float
    series: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class BarChart:
    """A bar chart: its parts, a transparent column over each bar with a title, and the largest sum."""

    bars: list[Bar]
    columns: list[Bar]
    top: float
    width: float = WIDTH
    height: float = HEIGHT


def draw_bars(rows: Sequence[Mapping[str, Any]], series: Sequence[str], labels: Sequence[str]) -> BarChart:
    """Return stacked bars: one for each row, of the numbers that it has by the names in `series`.

    `labels`: the text of each row, which becomes the title of its column.
    """
    top = max((sum(float(row.get(name) or 0) for name in series) for row in rows), default=0.0)
    step = WIDTH / max(len(rows), 1)
    bars, columns = [], []
    for index, (row, label) in enumerate(zip(rows, labels, strict=True)):
        x, base = round(index * step + step * GAP / 2, 2), HEIGHT
        numbers = [(name, float(row.get(name) or 0)) for name in series]
        for name, number in numbers:
            if number:
                height = round(number / top * HEIGHT, 2)
                base -= height
                bars.append(Bar(x, round(base, 2), round(step * (1 - GAP), 2), height, name))
        parts = ", ".join(f"{number:g} {name.replace('_', ' ')}" for name, number in numbers if number) or "nothing"
        columns.append(Bar(round(index * step, 2), 0.0, round(step, 2), HEIGHT, "column", f"{label}: {parts}"))
    return BarChart(bars, columns, top)


@dataclass(frozen=True, slots=True)
class Lane:
    """One line of a timeline: rectangles of spans, and marks of events."""

    bars: list[Bar]
    marks: list[Bar]


def draw_timeline(spans: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]) -> Lane:
    """Return the picture of spans (`begin`, `end`, `kind`, `label`) and events (`at`, `label`) on one axis of time."""
    times = [each[name] for each in spans for name in ("begin", "end")] + [each["at"] for each in events]
    if not times:
        return Lane([], [])
    begin, end = min(times), max(times)
    length = max(float((end - begin).total_seconds()), 1e-6)

    def x_of(at: datetime) -> float:
        return round(float((at - begin).total_seconds()) / length * SPAN_WIDTH, 2)

    bars = [
        Bar(
            min(x_of(span["begin"]), SPAN_WIDTH - SMALLEST_SPAN), 0.0,
            max(x_of(span["end"]) - x_of(span["begin"]), SMALLEST_SPAN), 24.0, span["kind"], span["label"],
        )
        for span in spans
    ]  # fmt: skip
    marks = [Bar(x_of(event["at"]), 0.0, 0.0, 24.0, "event", _title(event)) for event in events]
    return Lane(bars, marks)


def _title(event: Mapping[str, Any]) -> str:
    return f"{event['label']}: {event['detail']}" if event["detail"] else str(event["label"])
