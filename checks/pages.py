"""The pages: links lead somewhere, generated pages and tables are current, nothing speaks of somebody's machine."""

from __future__ import annotations

import re
from dataclasses import fields
from posixpath import basename, dirname, normpath
from typing import TYPE_CHECKING, Any

from celery import Task, signals
from celery.app.defaults import NAMESPACES, flatten

from checks.project import ROOT, check, differences, line_of
from hatch_build import absolute
from onejob.api.problems import PROBLEM_TYPES
from onejob.celery.option_declarations import CELERY_OPTIONS, TASK_OPTIONS
from onejob.config import NAMES, Settings
from onejob.observability.metrics import SERIES
from onejob.webhooks.settings import WebhookSettings
from website.generated import GENERATED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checks.project import Project

REPOSITORY = re.compile(r"https://github\.com/onejob/onejob(?:/(?:blob|tree)/main/|(?=$|#))")
"""What begins the absolute address of a file of the project, or of the project itself."""
RAW = "https://raw.githubusercontent.com/onejob/onejob/main/"
TARGET = re.compile(r"(?:\]\(|(?:src|srcset|href)=\")([^)\s\"]+)(?=[)\"])")
"""Where a link or a picture of a page leads."""
LINK = re.compile(r"(?<!!)\[[^\]\n]+\]\(([^)\s]+)\)")
FOREIGN = {
    "a folder of somebody's machine": re.compile(r"(?<![\w.$}])/(?:home|root|work|tmp|Users|private)/\w"),
    "a drive of somebody's machine": re.compile(r"(?<!\w)[A-Z]:\\+(?:Users|Documents)"),
    "an address in a private network": re.compile(
        r"(?<![\d.])(?:10\.\d{1,3}|192\.168|172\.(?:1[6-9]|2\d|3[01]))(?:\.\d{1,3}){2}(?![\d.]|/\d)"
    ),
    "a package index": re.compile(r"(?<!no-emit-)\b(?:index-url|find-links|trusted-host)(?=[\s=:])"),
    "a number in somebody's tracker": re.compile(r"(?i)\b(?:issue|bug|ticket|pull request|pr|fixes|closes|see) #\d"),
    "a merge that was not finished": re.compile(r"^(?:<{7}|>{7}) "),
}
_ANY = "|".join(each.pattern.removeprefix("(?i)") for each in FOREIGN.values())
ANY_FOREIGN = re.compile(_ANY, re.IGNORECASE | re.MULTILINE)
"""Finds the files to look at line by line."""
SETTINGS, PROBLEMS = "docs/reference/settings.md", "docs/reference/problems.md"
FEATURES = "docs/reference/celery.md"
README_BYTES = 8000
PROSE_LINE = 160
"""How long a line of prose may be, without what cannot be broken."""
UNBREAKABLE = re.compile(r"\]\([^)]*\)|`[^`]{100,}`")
"""The target of a link, and long code."""
OF_CELERY = re.compile(r"(?:beat|broker|control|event|result|task|worker)_")
OTHERS = frozenset({*vars(signals), "task_id"})
"""Names of signals, and of an option of a call, that begin as settings of Celery do."""
OBSERVABILITY = "docs/operations/observability.md"
FINDING = re.compile(r"#!.+\n# .+?, seen \d{4}-\d\d-\d\d\.\n# Expected: .+?\n# Happens: .+?\n# Means: ", re.DOTALL)
"""How a finding begins."""


@check
def own_words(project: Project) -> Iterator[str]:
    """The project speaks of itself alone: no line tells on whose machine, or among which tools, it was written."""
    for place, text in project.files.items():
        if not ANY_FOREIGN.search(text):
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            for reason, pattern in FOREIGN.items():
                if pattern.search(line):
                    yield f"{place}:{number}: {reason}: {line.strip()[:100]}"


@check
def links(project: Project) -> Iterator[str]:
    """A link from one page to another file of the project finds it."""
    for place, text in project.under("", ".md").items():
        for target in LINK.findall(text):
            own = REPOSITORY.match(target)
            if not own and re.match(r"[a-z]+:|#", target):
                continue
            named = (REPOSITORY.sub("", target) if own else target).partition("#")[0]
            if not project.has(normpath(named if own else f"{dirname(place)}/{named}").lstrip("/")):
                yield f"{place}:{line_of(text, f']({target})')}: there is no {target}"


@check
def readme(project: Project) -> Iterator[str]:
    """The README is short, begins with two commands, works in a clone, and is absolute in the package's metadata."""
    text = project["README.md"]
    for target in sorted({*TARGET.findall(text)}):
        if REPOSITORY.match(target) or target.startswith(RAW):
            yield f"README.md:{line_of(text, target)}: the link {target} is not relative"
        elif not re.match(r"[a-z]+:|#", target) and not project.has(target.partition("#")[0]):
            yield f"README.md:{line_of(text, target)}: there is no {target}"
    for target in TARGET.findall(absolute(text, ROOT)):
        if not target.startswith("https://"):
            yield f"README.md:{line_of(text, target)}: the link {target} is not absolute in the metadata"
    if re.findall(r"^make (\w+)", text.partition("\n```sh\n")[2].partition("```")[0], re.MULTILINE) != ["demo", "test"]:
        yield "README.md:1: the first block of commands is not `make demo` and `make test`"
    if (size := len(text.encode())) > README_BYTES:
        yield f"README.md:1: {size} bytes, and at most {README_BYTES}: the rest belongs to pages of docs/"


@check
def index(project: Project) -> Iterator[str]:
    """The index of docs/ leads to every page of docs/, or to its folder; a section's pages are in its folder."""
    linked = {*LINK.findall(project["docs/README.md"])}
    for place in project.under("docs/", ".md"):
        page = place.removeprefix("docs/")
        if not page.endswith("README.md") and not {page, page.partition("/")[0]} & linked:
            yield f"docs/README.md:1: no link to {page}"
    for part in project["docs/README.md"].split("\n## ")[1:]:
        folder = part.partition("\n")[0].lower()
        for target in LINK.findall(part):
            if not target.startswith("../") and target.partition("/")[0] != folder:
                yield f"docs/README.md:{line_of(project['docs/README.md'], target)}: {target} is not in docs/{folder}"


@check
def prose_lines(project: Project) -> Iterator[str]:
    """A line of prose ends with its sentence, or at a clause of a long one; tables, code and pictures are exempt."""
    for place, text in project.under("", ".md").items():
        if place.startswith("src/"):
            continue  # texts of the demo
        fenced = False
        for number, line in enumerate(text.splitlines(), start=1):
            fenced ^= line.lstrip().startswith("```")
            prose = UNBREAKABLE.sub("", line)
            if not fenced and len(prose) > PROSE_LINE and not line.lstrip().startswith(("|", "<", "![")):
                yield f"{place}:{number}: {len(prose)} characters: break the line after a sentence or a clause"


@check
def decisions(project: Project) -> Iterator[str]:
    """A decision has its status and its date below its title, so that a reader can tell history from rule."""
    for place, text in project.under("docs/decisions/", ".md").items():
        if not re.match(r"# .+\n\nStatus: (?:accepted|replaced by .+), \d{4}-\d\d-\d\d\.", text):
            yield f"{place}:3: begin with `Status: accepted, YYYY-MM-DD.`, or `Status: replaced by ..., YYYY-MM-DD.`"


@check
def findings(project: Project) -> Iterator[str]:
    """Each finding says what was expected, what happens, what that means; its folder's page has a row."""
    rows = {*LINK.findall(project["findings/README.md"])}
    for place, text in project.under("findings/", ".sh").items():
        name = basename(place)
        if name == "lib.sh":
            continue
        if not FINDING.match(text):
            yield f"{place}:2: begin with the versions, `seen` and the date, then Expected, Happens, Means"
        if name not in rows:
            yield f"findings/README.md:1: no row for {name}"


@check
def requests_with_keys(project: Project) -> Iterator[str]:
    """Each curl line of the guides that requests a route of the API has the header with the key."""
    for place in ("README.md", *project.under("docs/guides/", ".md")):
        for number, line in enumerate(project[place].splitlines(), start=1):
            if "$ curl" in line and '-H "authorization: Bearer $KEY"' not in line:
                yield f"{place}:{number}: a request without the key"


@check
def generated(project: Project) -> Iterator[str]:
    """A page or a diagram that is made from the code is what the code makes."""
    for place, make in GENERATED.items():
        if project.files.get(f"docs/{place}") != make():
            yield f"docs/{place}:1: not current; run `python -m website generate`"


@check
def settings_page(project: Project) -> Iterator[str]:
    """docs/reference/settings.md has every setting and every option of a task, no other, and the numbers by default."""
    text = project[SETTINGS]
    rows = {
        name: cell
        for cells, cell in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (.*?) \|", text, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", cells)
    }
    defaults: dict[str, Any] = {f"onejob_{field.name}": field.default for field in fields(Settings)}
    defaults |= {f"onejob_webhook_{field.name}": field.default for field in fields(WebhookSettings)}
    known = defaults.keys() | {f"onejob_{name}" for name in NAMES} | {*TASK_OPTIONS}
    listed = {name for name in rows if name.islower()}
    for name in sorted(known ^ listed):
        yield f"{SETTINGS}:{line_of(text, f'`{name}`')}: {name} is {'missing' if name in known else 'unknown'}"
    for name, value in defaults.items():
        if isinstance(value, int | float) and name in rows:
            shown = str(value) if isinstance(value, bool) else f"{value:g}" if value < 1e6 else str(int(value))
            if shown not in rows[name].replace(",", ""):
                yield f"{SETTINGS}:{line_of(text, f'`{name}`')}: the default of {name} is {shown}"


@check
def series_page(project: Project) -> Iterator[str]:
    """The table of series in docs/operations/observability.md has each one with its kind and labels, in their order."""
    text = project[OBSERVABILITY]
    table = text.partition("| series |")[2].split("\n\n", 1)[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    found = [(row[0].strip("`"), row[1], tuple(re.findall(r"`(\w+)`", row[2]))) for row in cells]
    wanted = [(name, series.kind.value, series.labels) for name, series in SERIES.items()]
    if found != wanted:
        wrong = next((row for row in wanted if row not in found), found[-1:])
        yield f"{OBSERVABILITY}:{line_of(text, '| series |')}: these are not the series of the code: {wrong}"


@check
def features_page(project: Project) -> Iterator[str]:
    """docs/reference/celery.md names every setting of Celery and every option and method of its tasks, and no other."""
    text = project[FEATURES]
    settings = {str(row[0]) for row in flatten(NAMESPACES)}
    of_tasks = {name for name in dir(Task) if not name.startswith("_")} | CELERY_OPTIONS
    named = {word for span in re.findall(r"`([^`\n]+)`", text) for word in re.findall(r"[\w*]+", span)}
    named |= {name.removeprefix("task_") for name in named}  # the option has the row of its setting
    groups = tuple(name.removesuffix("*") for name in named if name.endswith("_*"))
    for name in sorted(settings | of_tasks):
        if name not in named and not (name in settings and name.startswith(groups)):
            yield f"{FEATURES}:1: {name} of Celery has no row, and is in no list"
    for name in sorted(each for each in named if OF_CELERY.match(each)):
        if not any(each.startswith(name.removesuffix("*")) for each in settings | OTHERS):
            yield f"{FEATURES}:{line_of(text, f'`{name}')}: Celery has no {name}"


@check
def problems_page(project: Project) -> Iterator[str]:
    """The table of docs/reference/problems.md has each problem type with its status, and no other."""
    rows = [line.split("|") for line in project[PROBLEMS].splitlines() if line.startswith("| `")]
    found = {(row[1].strip(" `"), int(row[2])) for row in rows}
    wanted = {(name, kind.status) for name, kind in PROBLEM_TYPES.items()}
    yield from differences(f"{PROBLEMS}:1", "problem types", sorted(found), sorted(wanted))
