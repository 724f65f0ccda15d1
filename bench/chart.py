"""The chart of the README: how many operations each contender does while plain Celery does one, as an SVG."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PATH = Path(__file__).parents[1] / "docs" / "images" / "bench.svg"
PANELS = {
    "submit": ("submit", "Submit a new job"),
    "duplicate": ("submit", "Submit a duplicate"),
    "bulk": ("submit", "Submit 500 jobs at once"),
    "run": ("run", "Run a job that does nothing"),
}
"""Each kind of operation: the stage that measures it, and the title of its panel."""
WIDTH, PANEL, LABEL, BAR, GAP, TOP = 860, 420, 200, 14, 4, 58
STYLE = """
  text { font: 12px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
  .title { font-size: 15px; font-weight: 600 } .head { font-weight: 600 } .note { fill: #59636e }
  .own { fill: #1a7f64 } .other { fill: #8c959f } .one { stroke: #1f2328; stroke-dasharray: 3 3 }
  .spread { stroke: #1f2328 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .note { fill: #9198a1 } .own { fill: #3fb68b } .other { fill: #6e7681 }
    .one, .spread { stroke: #e6edf3 }
  }
"""

Result = dict[str, Any]


def write(found: dict[str, Any], path: Path) -> None:
    """Write the chart of some results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(svg(found), encoding="utf-8")


def svg(found: dict[str, Any]) -> str:
    """Return the chart of some results."""
    panels = {kind: _results(found, kind) for kind in PANELS}
    rows = [max(len(panels[kind]) for kind in pair) for pair in (("submit", "duplicate"), ("bulk", "run"))]
    tops = [TOP, TOP + rows[0] * (BAR + GAP) + 46]
    height = tops[1] + rows[1] * (BAR + GAP) + 40
    drawn = [
        line
        for number, (kind, results) in enumerate(panels.items())
        for line in _panel(PANELS[kind][1], results, number % 2 * (PANEL + 20), tops[number // 2])
    ]
    text = escape(described(panels))
    about = found["about"]
    note = f"Median of {about['options']['rounds']} interleaved rounds, lines: quartiles; {about['system']}"
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="t d">',
        '<title id="t">Operations per second, compared with plain Celery</title>',
        f'<desc id="d">{text}</desc>',
        f"<style>{STYLE}</style>",
        '<text class="title" x="0" y="18">Operations per second; plain Celery is 1, the dashed line</text>',
        *drawn,
        f'<text class="note" x="0" y="{height - 8}">{escape(note)}</text>',
        "</svg>\n",
    ])  # fmt: skip


def described(panels: dict[str, list[Result]]) -> str:
    """Return the numbers of the chart as a sentence for each panel."""
    return " ".join(
        f"{PANELS[kind][1]}: " + ", ".join(f"{one['contender']} {one['ratio'][1]:.2f}" for one in results) + "."
        for kind, results in panels.items()
        if results
    )


def _results(found: dict[str, Any], kind: str) -> list[Result]:
    rows = [row for row in found.get(PANELS[kind][0], ()) if row["kind"] == kind and row.get("ratio")]
    return sorted(rows, key=lambda row: -row["ratio"][1])


def _panel(title: str, results: Sequence[Result], left: int, top: int) -> Iterator[str]:
    """Yield the elements of one panel."""
    if not results:
        return
    room = PANEL - LABEL - 60
    scale = room / max(one["ratio"][1] for one in results)
    yield f'<text class="head" x="{left}" y="{top - 12}">{title}</text>'
    line, bottom = left + LABEL + scale, top + len(results) * (BAR + GAP)
    yield f'<line class="one" x1="{line:.1f}" x2="{line:.1f}" y1="{top - 4}" y2="{bottom}"/>'
    for number, one in enumerate(results):
        yield from _bar(one, left + LABEL, top + number * (BAR + GAP), scale, room)


def _bar(one: Result, left: int, top: int, scale: float, room: int) -> Iterator[str]:
    low, middle, high = one["ratio"]
    kind = "own" if one["contender"].startswith("onejob") else "other"
    y = top + BAR / 2
    yield f'<text text-anchor="end" x="{left - 6}" y="{top + 11}">{escape(one["contender"])}</text>'
    yield f'<rect class="{kind}" x="{left}" y="{top}" width="{middle * scale:.1f}" height="{BAR}" rx="2"/>'
    end = min(high * scale, room + 8)
    yield f'<line class="spread" x1="{left + low * scale:.1f}" x2="{left + end:.1f}" y1="{y}" y2="{y}"/>'
    yield f'<text x="{left + max(middle * scale, end) + 5:.1f}" y="{top + 11}">{middle:.2f}</text>'
