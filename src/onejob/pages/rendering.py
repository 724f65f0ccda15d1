"""Renders the data of a page as HTML, JSON or CSV; with charts and static files."""

import csv
import hashlib
import io
import json
import mimetypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from functools import cache, lru_cache, partial
from importlib.resources import files
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlencode
from zoneinfo import ZoneInfo

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from onejob.api.api_keys import Role
from onejob.jobs.public_view import short_id
from onejob.jobs.spreadsheets import guard_cell
from onejob.jobs.timestamps import duration_text, format_timestamp
from onejob.pages.access import CSRF_FIELD, User, read_cookies
from onejob.pages.context import Context
from onejob.pages.page_request import PageRequest

ZONE_COOKIE = "onejob_zone"
"""The cookie in which a browser names its time zone."""
NO_FILTER = frozenset({"cursor", "limit", "format"})
"""The parameters of a list that select no jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The data of a page: JSON values, and times as `datetime`."""

    template: str
    title: str
    data: dict[str, Any]
    rows: str = ""
    """The name of the list in `data` for CSV; "" if the page is no list."""
    status: int = 200
    outcome: str = "done"
    """The outcome of an action, for the audit log: "done", or the slug of a problem."""
    has_scripts: bool = True
    live: str = ""
    """The subject that is watched for changes: `ledger`, or `job:` and an id; "" if the page does not change."""
    built_at: float | None = None
    """The time at which it was built, on the store's clock, like all its times."""


class Redirect(NamedTuple):
    """A redirect to another page of this dashboard, and the notice that it shows."""

    path: str
    notice: str = ""


class View(NamedTuple):
    """A page: its name, its path, the function that builds it, and the role that may see it."""

    name: str
    path: str
    build: Callable[[Context, PageRequest], Page | Redirect]
    role: Role = Role.READ

    def show(self, context: Context, query: QueryParams, path: Mapping[str, str], zone: tzinfo) -> Page | Redirect:
        """Return the page for the parameters of its URL and its path. Raises `Problem` for an invalid parameter."""
        now = context.ledger.read_clock()
        page = self.build(context, PageRequest(query, now, path, zone))
        return page if isinstance(page, Redirect) else replace(page, built_at=now)


def job_path(job_id: str) -> str:
    """Return the path of the page of a job."""
    return f"/jobs/{_segment(job_id)}"


def _segment(text: str) -> str:
    """Return a text as one segment of a path: a browser would follow the ".." of an id with slashes."""
    return quote(text, safe="")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("onejob.pages"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "duration": duration, "number": "{:,}".format, "pretty": pretty, "short": short_id, "percent": "{:.1%}".format,
        "clock": lambda at, zone, pattern: at.astimezone(zone).strftime(pattern), "segment": _segment,
    }  # fmt: skip
    environment.globals |= {"bars": draw_bars, "timeline": draw_timeline, "static_version": static_version()}
    return environment


def render_html(
    page: Page, request: Request, user: User | None, *, token: str, notice: str = "", has_login: bool = False
) -> Response:
    """Render a page as HTML; `user`: None before the login. `notice`: the result of the last action.

    `token`: the token of its forms.
    """
    base, zone, given = request.scope.get("root_path", ""), zone_of(request), request.query_params.multi_items()
    path = quote(request.scope["path"].removeprefix(base) or "/")
    here = path + (f"?{request.url.query}" if request.url.query else "")

    def url(target: str, /, **parameters: Any) -> str:
        return _with_query(base + target, parameters.items())

    def link(**changed: Any) -> str:
        """Return the URL of this page with other parameters; None removes one."""
        return _with_query(base + path, [*(each for each in given if each[0] not in changed), *changed.items()])

    text = _environment().get_template(page.template).render(
        **page.data, page=page, user=user, base=base, path=path, here=here, zone=zone, url=url,
        link=link, when=partial(_when, zone), notice=notice, has_login=has_login,
        page_query=request.query_params, page_filter=urlencode([each for each in given if each[0] not in NO_FILTER]),
        csrf_field=CSRF_FIELD, csrf_token=token, is_get=request.method == "GET",
    )  # fmt: skip
    return HTMLResponse(text, page.status)


def render_json(page: Page) -> Response:
    """Render the data of a page as JSON. A number that JSON does not have, such as NaN, becomes a text."""
    text = json.dumps({"title": page.title, **page.data}, default=_plain)
    text = json.dumps(json.loads(text, parse_constant=str), ensure_ascii=False, indent=2)
    content = text.encode(errors="backslashreplace")  # JSON escapes a lone surrogate in the same way
    return Response(content, page.status, media_type="application/json")


def render_csv(page: Page) -> Response:
    """Render the list of a page as CSV (RFC 4180). A quote precedes text that a spreadsheet would execute."""
    rows = page.data[page.rows]
    output = io.StringIO()
    writer = csv.writer(output)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    writer.writerow(columns)
    writer.writerows([_cell(row.get(name)) for name in columns] for row in rows)
    headers = {"content-disposition": f'attachment; filename="onejob-{page.rows}.csv"'}
    return Response(output.getvalue(), page.status, headers, "text/csv; charset=utf-8")


def pretty(value: object) -> str:
    """Return a value as indented JSON."""
    return json.dumps(value, ensure_ascii=False, indent=2, default=_plain)


def zone_of(request: Request) -> tzinfo:
    """Return the time zone of the viewer, which the page's script has stored in a cookie; UTC without the cookie."""
    return _zone(unquote(next(iter(read_cookies(request, ZONE_COOKIE)), ""))[:64])


@lru_cache(256)
def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name) if name else UTC
    except (ValueError, OSError, KeyError):  # not a name, not the name of a file, not the name of a zone
        return UTC


def _plain(value: object) -> str:
    return format_timestamp(value) if isinstance(value, datetime) else str(value)


def _cell(value: object) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=_plain).strip('"')
    return text if isinstance(value, int | float) else guard_cell(text)


def _with_query(path: str, parameters: Iterable[tuple[str, Any]]) -> str:
    given = [(name, value) for name, value in parameters if value is not None and value != ""]
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


def _when(zone: tzinfo, at: datetime | None) -> str:
    """Return a time in the viewer's zone; the page's script makes it relative, and its title is exact."""
    if at is None:
        return ""
    local = at.astimezone(zone)
    exact = local.strftime("%Y-%m-%d %H:%M:%S.") + f"{local.microsecond // 1000:03d}" + local.strftime(" %Z")
    markup = '<time datetime="{}" title="{}">{}</time>'
    return Markup(markup).format(format_timestamp(at), exact, local.strftime("%b %d, %H:%M:%S"))  # noqa: S704 - constant


def duration(seconds: float | None) -> str:
    """Return a number of seconds as people read it; "-" without one."""
    if seconds is None:
        return "-"
    if not seconds:
        return "0 s"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else duration_text(seconds)  # noqa: PLR2004 - a minute


WIDTH, HEIGHT = 720.0, 120.0
"""The size of the coordinate system of a bar chart; the style sheet gives its size on the page."""
GAP = 0.18
"""The gap between two bars, as a share of a bar's width."""
SPAN_WIDTH = 1000.0
SMALLEST_SPAN = 3.0
"""The minimum width of a span, so that short spans can be seen."""


class Bar(NamedTuple):
    """A part of a stacked bar: its rectangle, and the series that colours it."""

    x: float
    y: float
    width: float
    height: float
    series: str
    title: str = ""


def draw_bars(rows: Sequence[Mapping[str, Any]], series: Sequence[str], labels: Sequence[str]) -> dict[str, Any]:
    """Return a chart with a stacked bar for each row, of the row's numbers by the names in `series`.

    `labels`: the text of each row, which becomes the title of the transparent `columns` over its bar.
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
        parts = ", ".join(f"{number:,.0f} {name.replace('_', ' ')}" for name, number in numbers if number) or "nothing"
        columns.append(Bar(round(index * step, 2), 0.0, round(step, 2), HEIGHT, "column", f"{label}: {parts}"))
    return {"bars": bars, "columns": columns, "top": top, "width": WIDTH, "height": HEIGHT}


def draw_timeline(spans: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]) -> dict[str, list[Bar]]:
    """Return `bars` of spans (`begin`, `end`, `kind`, `label`) and `marks` of events (`at`, `label`) on one axis."""
    times = [each[name] for each in spans for name in ("begin", "end")] + [each["at"] for each in events]
    if not times:
        return {"bars": [], "marks": []}
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
    marks = [
        Bar(x_of(event["at"]), 0.0, 0.0, 24.0, "event", ": ".join(filter(None, (event["label"], event["detail"]))))
        for event in events
    ]
    return {"bars": bars, "marks": marks}


CACHED = "public, max-age=31536000, immutable"
mimetypes.add_type("text/javascript", ".js")  # the type in Python from 3.12 on, whatever the system's table has


@cache
def static_version() -> str:
    """Return a digest of all static files, which is a part of their URLs."""
    contents = sorted((each.name, each.read_bytes()) for each in (files("onejob.pages") / "static").iterdir())
    return hashlib.sha256(b"".join(content for _, content in contents)).hexdigest()[:12]


class VersionedFiles(StaticFiles):
    """The files below `/static/{version}`. A file of another version, as during a rolling deployment, is not cached."""

    def __init__(self) -> None:
        super().__init__(packages=[("onejob.pages", "static")])

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Respond with a file. Raises `HTTPException`."""
        response = await super().get_response(path, scope)
        if scope["path_params"]["version"] == static_version():
            response.headers["cache-control"] = CACHED
        return response
