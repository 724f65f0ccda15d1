"""The project speaks of itself alone: no file tells on whose machine, or among which tools, it was written."""

from __future__ import annotations

import re

from tests.cases import for_each
from tests.project.tree import Text, texts

FOREIGN = {
    "a folder of somebody's machine": re.compile(r"(?<![\w.$}])/(?:home|root|work|tmp|Users|private)/\w"),
    "a drive of somebody's machine": re.compile(r"(?<!\w)[A-Z]:\\+(?:Users|Documents)"),
    "an address in a private network": re.compile(
        r"(?<![\d.])(?:10\.\d{1,3}|192\.168|172\.(?:1[6-9]|2\d|3[01]))(?:\.\d{1,3}){2}(?![\d.])"
    ),
    "a package index": re.compile(r"(?<!no-emit-)\b(?:index-url|find-links|trusted-host)(?=[\s=:])"),
    "a number in somebody's tracker": re.compile(r"(?i)\b(?:issue|bug|ticket|pull request|pr|fixes|closes|see) #\d"),
    "a merge that was not finished": re.compile(r"^(?:<{7}|>{7}) "),
}


def foreign(text: Text) -> list[str]:
    """Return the lines of a file that speak of something else than the project, each with its reason."""
    return [
        f"{text.place}:{number}: {reason}: {line.strip()[:100]}"
        for number, line in enumerate(text.lines, start=1)
        for reason, pattern in FOREIGN.items()
        if pattern.search(line)
    ]


def test_every_file_speaks_of_the_project_alone() -> None:
    """No line names a machine's folders, a private network, a package index or a tracker's number."""
    read = list(texts())
    assert "pyproject.toml" in {text.place for text in read}
    assert [line for text in read for line in foreign(text)] == []


@for_each(
    "line, reason",
    [
        ("open('{}home/ann/ledger.db')", "folder"),
        ("cd {}tmp/trial", "folder"),
        ("C:{}Users", "drive"),
        ("redis://192.168{}1.7:6379", "network"),
        ("--index{}url=example", "index"),
        ("Fixes #{}12", "tracker"),
    ],
)
def test_foreign_words_are_seen(line: str, reason: str) -> None:
    """Each kind of foreign word is found, wherever it stands in a line."""
    filler = {"folder": "/", "drive": "\\", "network": ".", "index": "-", "tracker": ""}[reason]
    found = foreign(Text("x.py", (line.format(filler),)))
    assert len(found) == 1
    assert reason in found[0]


@for_each("line", ["sqlite:////var/lib/app/ledger.db", "127.0.0.1", "colour: #123456", "src/home/x"])
def test_own_words_are_left_alone(line: str) -> None:
    """A path that any machine may have, the loopback address and a colour are no one's secret."""
    assert foreign(Text("x.py", (line,))) == []
