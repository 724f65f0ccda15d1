"""A browser without scripts: it visits pages of a dashboard, keeps its cookies and sends forms; and what it reads."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

from celery import Celery
from httpx2 import Response
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from onejob.api.api_keys import KeyFile
from onejob.pages import dashboard
from onejob.pages.sessions import Sessions
from tests.api.conftest import LOCAL
from tests.pages.sample import Sample


@dataclass
class HtmlForm:
    """A form: where it is sent to, how, and the fields that it has before a person changes them."""

    action: str
    method: str
    fields: list[tuple[str, str]] = field(default_factory=list)

    def hidden(self, name: str) -> str:
        return dict(self.fields)[name]


class HtmlPage(HTMLParser):
    """The parsed page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.source = text
        self.words: list[str] = []
        self.links: list[str] = []
        self.elements: list[set[str]] = []
        """The tag of each element, and the names of its attributes."""
        self.forms: list[HtmlForm] = []
        self.feed(text)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def form(self, action: str) -> HtmlForm:
        return next(form for form in self.forms if form.action == action)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.elements.append({tag, *given})
        if tag == "a":
            self.links.append(given.get("href", ""))
        elif tag == "form":
            self.forms.append(HtmlForm(given.get("action", ""), given.get("method", "get")))
        elif tag == "input" and given.get("type") == "hidden" and self.forms:
            self.forms[-1].fields.append((given["name"], given["value"]))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


TOKEN = re.compile(r'name="csrf_token" value="([^"]*)"')
BASE = "/ops"
"""Where the tests mount the dashboard."""
SAME_ORIGIN = {"sec-fetch-site": "same-origin"}


def mounted(app: Celery, **options: Any) -> ASGIApp:
    return Starlette(routes=[Mount(BASE, dashboard(app, **options))])


def browser_of(sample: Sample, role: str = "edit", **options: Any) -> Browser:
    """Return a new browser of ann, who has this role unless options say otherwise."""
    return Browser(mounted(sample.app, **({"authorize": lambda _request: ("ann", role)} | options)))


def session_of(sample: Sample, keys: KeyFile, text: str) -> str:
    """Return a session of a key, whether or not it may have one, as another process would make it."""
    key = keys.find(text)
    return Sessions(keys, lambda: sample.ledger).issue(key) if key else ".".join(["0" * 16, "1", "name", "0" * 64])


class Browser:
    """A browser at a dashboard below `base`."""

    def __init__(self, app: ASGIApp, base: str = BASE, **where: Any) -> None:
        self.base = base
        self.client = TestClient(app, raise_server_exceptions=False, follow_redirects=False, **(LOCAL | where))

    def get(self, path: str, headers: Mapping[str, str] | None = None, /, **parameters: Any) -> Response:
        return self.client.get(self.base + path, params=parameters or None, headers=headers)

    def page(self, path: str, /, **parameters: Any) -> HtmlPage:
        response = self.get(path, **parameters)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "text/html; charset=utf-8"
        return HtmlPage(response.text)

    def json(self, path: str, /, **parameters: Any) -> Any:
        response = self.get(path, **parameters, format="json")
        assert (response.status_code, response.headers["content-type"]) == (200, "application/json"), response.text
        return response.json()

    def csv(self, path: str, /, **parameters: Any) -> list[dict[str, str]]:
        response = self.get(path, **parameters, format="csv")
        assert (response.status_code, response.headers["content-type"]) == (200, "text/csv; charset=utf-8")
        return list(csv.DictReader(io.StringIO(response.text, newline=""), strict=True))

    def token(self) -> str:
        """Return the token of this browser's forms, from the page that is quickest to make."""
        pages = (self.get(path).text for path in ("/jobs?task=none", "/login"))
        return next((found[1] for found in map(TOKEN.search, pages) if found), "")

    def post(self, path: str, /, *more: tuple[str, str], headers: Any = SAME_ORIGIN, **fields: str) -> Response:
        """Send a form, with the token of this browser unless another one is given."""
        token = {} if "csrf_token" in fields else {"csrf_token": self.token()}
        pairs = [*(token | fields).items(), *more]
        return self.post_pairs(path, pairs, headers)

    def posted(self, path: str, /, *more: tuple[str, str], status: int = 200, **fields: str) -> HtmlPage:
        """Send a form, and return the page that answers it with this status."""
        response = self.post(path, *more, **fields)
        assert response.status_code == status, response.text
        return HtmlPage(response.text)

    def post_pairs(
        self, path: str, pairs: Sequence[tuple[str, str]], headers: Mapping[str, str] = SAME_ORIGIN
    ) -> Response:
        """Send exactly these fields."""
        data: dict[str, list[str]] = {}
        for name, value in pairs:
            data.setdefault(name, []).append(value)
        return self.client.post(self.base + path, data=data, headers=dict(headers))

    def submit(self, page: HtmlPage, action: str, **fields: str) -> Response:
        form = page.form(self.base + action)
        return self.post_pairs(action, [*form.fields, *fields.items()])
