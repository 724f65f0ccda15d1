"""What a test reads in a page of the dashboard: its text, its links and its forms."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser


@dataclass
class HtmlForm:
    """A form: where it is sent to, how, and the fields that it has before a person changes them."""

    action: str
    method: str
    fields: list[tuple[str, str]] = field(default_factory=list)

    def hidden(self, name: str) -> str:
        """Return the value of a field."""
        return dict(self.fields)[name]


class HtmlPage(HTMLParser):
    """The parsed page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.source = text
        self.words: list[str] = []
        self.links: list[str] = []
        self.forms: list[HtmlForm] = []
        self.feed(text)

    @property
    def text(self) -> str:
        """The text between the tags."""
        return " ".join(" ".join(self.words).split())

    def form(self, action: str) -> HtmlForm:
        """Return the first form that is sent to a path."""
        return next(form for form in self.forms if form.action == action)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a link, a form or a field."""
        given = {name: value or "" for name, value in attrs}
        if tag == "a":
            self.links.append(given.get("href", ""))
        elif tag == "form":
            self.forms.append(HtmlForm(given.get("action", ""), given.get("method", "get")))
        elif tag == "input" and given.get("type") == "hidden" and self.forms:
            self.forms[-1].fields.append((given["name"], given["value"]))

    def handle_data(self, data: str) -> None:
        """Note a text."""
        self.words.append(data)
