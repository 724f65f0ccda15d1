"""The diagrams of the pages: the idea, the lifecycle from its rules, a submission; in the reader's colours."""

from __future__ import annotations

from html import escape
from typing import NamedTuple

from onejob.jobs.lifecycle import FINAL, RULES, State

STYLE = """<style>
svg { color-scheme: light dark; font: 15px system-ui, sans-serif; }
.back { fill: #ffffff; } .box { fill: #f3f4f6; stroke: #6b7280; } .end { fill: #e0e7ff; stroke: #4f46e5; }
.line { fill: none; stroke: #4b5563; stroke-width: 1.4; } .open { stroke-dasharray: 5 4; } .head { fill: #4b5563; }
text { fill: #111827; } .name { font-weight: 600; font-size: 17px; }
.code { font-family: ui-monospace, monospace; }
.note { fill: #4b5563; } .on { paint-order: stroke; stroke: #ffffff; stroke-width: 5px; }
@media (prefers-color-scheme: dark) {
.back { fill: #0e1116; } .box { fill: #1f2430; stroke: #9ca3af; } .end { fill: #25285a; stroke: #818cf8; }
.line { stroke: #9ca3af; } .head { fill: #9ca3af; } text { fill: #e5e7eb; }
.note { fill: #9ca3af; } .on { stroke: #0e1116; }
}
</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"
orient="auto-start-reverse">
<path class="head" d="M0 0 8 4 0 8z"/></marker></defs>"""
WIDTH, HEIGHT = 150, 44
PLACES = {
    State.QUEUED: (130, 110), State.RUNNING: (440, 265), State.RETRYING: (130, 420),
    State.COMPLETED: (850, 110), State.CANCELED: (850, 265), State.FAILED: (850, 420),
}  # fmt: skip
"""The centre of each state."""


class Route(NamedTuple):
    """How one arrow goes, and where its label stands."""

    path: str
    x: int
    y: int


ROUTES = {
    (State.QUEUED, State.RUNNING): Route("M205 120 L400 241", 325, 180),
    (State.RUNNING, State.QUEUED): Route("M365 262 C250 240 180 200 150 134", 200, 215),
    (State.RUNNING, State.RETRYING): Route("M365 274 C250 292 180 330 150 396", 195, 325),
    (State.RETRYING, State.RUNNING): Route("M205 405 L400 289", 320, 350),
    (State.RUNNING, State.COMPLETED): Route("M480 243 L773 120", 640, 170),
    (State.RUNNING, State.CANCELED): Route("M515 258 L773 258", 640, 252),
    (State.RUNNING, State.FAILED): Route("M480 287 L773 404", 690, 352),
    (State.RETRYING, State.CANCELED): Route("M205 416 C480 400 560 276 773 274", 405, 396),
    (State.RETRYING, State.FAILED): Route("M205 432 L773 432", 490, 428),
    (State.QUEUED, State.CANCELED): Route("M150 88 V50 H960 V265 H927", 555, 55),
    (State.QUEUED, State.FAILED): Route("M55 110 H25 V480 H850 V444", 490, 485),
    (State.FAILED, State.QUEUED): Route("M925 425 H990 V22 H110 V86", 555, 27),
}
"""The arrow between two states. A rule that needs one that is not here cannot be drawn."""
LANES = {"submitter": 90, "ledger (store)": 370, "broker": 610, "worker": 860}
STEPS = (
    ("submitter", "ledger (store)", "submit: is the identity held?"),
    ("ledger (store)", "ledger (store)", "a durable job: queued"),
    ("ledger (store)", "submitter", "admitted: the id of the job"),
    ("submitter", "broker", "message: a hint with the id"),
    ("submitter", "ledger (store)", "the same submission again"),
    ("ledger (store)", "submitter", "attached: the same id"),
    ("broker", "worker", "message"),
    ("worker", "ledger (store)", "claim"),
    ("ledger (store)", "worker", "running: a lease and a token"),
    ("broker", "worker", "the message once more"),
    ("worker", "ledger (store)", "claim: refused, the job runs"),
    ("worker", "ledger (store)", "heartbeats renew the lease"),
    ("worker", "ledger (store)", "complete with the token: result, identity released"),
    ("submitter", "ledger (store)", "get: completed, the result"),
)


def lifecycle() -> str:
    """Return the state machine as SVG: an arrow for each pair of states that transitions lead between."""
    arrows: dict[tuple[State, State], list[str]] = {}
    fenced: dict[tuple[State, State], bool] = {}
    for transition, rule in RULES.items():
        for source in State:
            if source in rule.sources and rule.target is not None:
                arrows.setdefault((source, rule.target), []).append(str(transition))
                fenced[source, rule.target] = rule.fenced
    drawn = [_arrow(ROUTES[pair], ", ".join(names), fenced=fenced[pair]) for pair, names in arrows.items()]
    boxes = [_box(x, y, str(state), "end" if state in FINAL else "box") for state, (x, y) in PLACES.items()]
    legend = "solid: a run makes it, with its token; dashed: submitters, operators and the sweeper"
    note = f'<text class="note" x="40" y="520">{legend}</text>'
    return _svg(1010, 535, "The states of a job and the transitions between them", [*drawn, *boxes, note])


def submission() -> str:
    """Return a submission, a duplicate, a claim and the end of a job as SVG."""
    bottom = 110 + 38 * len(STEPS)
    lines = [f'<path class="line open" d="M{x} 66 V{bottom}"/>' for x in LANES.values()]
    boxes = [_box(x, 44, name, "box") for name, x in LANES.items()]
    steps = [_message(110 + 38 * number, *step) for number, step in enumerate(STEPS)]
    return _svg(960, bottom + 16, "A submission, its duplicate, and the run of the job", [*lines, *boxes, *steps])


def idea() -> str:
    """Return the home page's picture as SVG: two clicks, one job in the ledger, one run, one id for both."""
    boxes = [_box(95, 75, "first click", "box"), _box(95, 205, "second click", "box"), _box(585, 140, "one run", "end")]
    ledger = [
        '<rect class="end" x="280" y="40" width="130" height="200" rx="8"/>',
        _text(345, 108, "ledger", "name"),
        _text(345, 145, "one job", "note"),
        _text(345, 172, "id 7f3a", "code"),
    ]
    clicks = [_exchange(172, 278, y, "invoice(42)", "id 7f3a") for y in (75, 205)]
    run = _exchange(412, 508, 140, "claim", "result")
    title = "Two clicks, one job in the ledger, one run; both clicks get the same id"
    return _svg(680, 280, title, [*boxes, *ledger, *clicks, run])


def _svg(width: int, height: int, title: str, parts: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">\n<title>{title}</title>'
    return "\n".join(
        [head, STYLE, f'<rect class="back" width="{width}" height="{height}" rx="8"/>', *parts, "</svg>\n"]
    )


def _box(x: int, y: int, name: str, kind: str) -> str:
    place = f'x="{x - WIDTH // 2}" y="{y - HEIGHT // 2}" width="{WIDTH}" height="{HEIGHT}"'
    return f'<rect class="{kind}" {place} rx="8"/>\n{_text(x, y + 5, name, "name")}'


def _arrow(route: Route, label: str, *, fenced: bool) -> str:
    kind = "line" if fenced else "line open"
    return f'<path class="{kind}" d="{route.path}" marker-end="url(#head)"/>\n{_text(route.x, route.y, label, "on")}'


def _exchange(start: int, end: int, y: int, question: str, answer: str) -> str:
    middle = (start + end) // 2
    there = Route(f"M{start} {y - 10} H{end}", middle, y - 18)
    back = Route(f"M{end} {y + 10} H{start}", middle, y + 30)
    return f"{_arrow(there, question, fenced=True)}\n{_arrow(back, answer, fenced=False)}"


def _message(y: int, source: str, target: str, text: str) -> str:
    start, end = LANES[source], LANES[target]
    if start == end:
        path, middle = f"M{start} {y - 8} h26 v14 h-22", start + 40
        loop = f'<path class="line" d="{path}" marker-end="url(#head)"/>'
        return f'{loop}\n<text x="{middle}" y="{y + 4}">{escape(text)}</text>'
    inset = 4 if end > start else -4
    path = f"M{start} {y} L{end - inset} {y}"
    return f'<path class="line" d="{path}" marker-end="url(#head)"/>\n{_text((start + end) // 2, y - 6, text, "on")}'


def _text(x: int, y: int, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="middle">{escape(text)}</text>'
