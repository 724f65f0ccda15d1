"""The filters of jobs that every front end offers: the pages, the command line and the HTTP API."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from onejob.jobs.lifecycle import State
from onejob.jobs.limits import PARKED_BY_LIMIT
from onejob.jobs.query import Query


class Filter(NamedTuple):
    """A filter of jobs: a query parameter and a field of a body, an input of a form, and an option of a command."""

    name: str
    help: str
    field: str
    """The field of `Query` that the filter sets."""
    kind: type = str
    """`str` for a text, `float` for a time in seconds, `State` for any number of states."""
    reveals: bool = False
    """Whether the jobs that the filter finds reveal values in them."""


FILTERS = (
    Filter("state", "Only jobs in this state; may be repeated.", "states", State),
    Filter("task", "Only jobs of this task.", "task"),
    Filter(
        "argument",
        "Only with this text in an argument, or name=value, which may go on: 4 finds 42.",
        "arguments",
        reveals=True,
    ),
    Filter("error", "Only with this text in the reason, e.g. the name of an exception.", "reason", reveals=True),
    Filter("submitter", "Only jobs that this submitter submitted first.", "submitter"),
    Filter("tag", "Only jobs that have this tag.", "tag"),
    Filter("queue", "Only jobs of this queue.", "queue"),
    Filter("worker", "Only jobs whose latest run is, or was, on this worker.", "node"),
    Filter("pause", "Only jobs that wait for the end of this pause.", "parked_on"),
    Filter("room", "Only jobs that wait for room on this key of a limit: customer=42.", "parked_on", reveals=True),
    Filter("identity", "Only jobs of this identity, as `onejob identity` prints it.", "identity", reveals=True),
    Filter("since", "Submitted at this time or later: 2026-01-31T12:00:00Z.", "since", float),
    Filter("until", "Submitted before this time.", "until", float),
)
"""The filters that every front end offers, combined with AND."""
PARTS_OF_TEXTS = frozenset({"argument", "error"})
"""The filters that look for a part of a text, of which the empty one is a part of each."""
AUDITED = frozenset({
    "operation", "scope", "all", "dry_run", "force", "forget_steps", "limit", "identity", "error_type",
    "limit_key", "value", *(each.name for each in FILTERS if not each.reveals),
})  # fmt: skip
"""The fields whose values the audit log has, also within a filter. Of others, which may quote arguments, only names."""
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[3457][0-9a-f]{3}-[89ab][0-9a-f]{3}-(?P<last>[0-9a-f]{12})")
"""A UUID of a version whose last twelve digits are random or a hash: 1 and 6 have there what all of a host have."""


def query_of(given: Mapping[str, Any], **more: Any) -> Query:
    """Return the query with filters by name (None: it selects all) and `more` fields, which take precedence."""
    values = {each.field: given[each.name] for each in FILTERS if given.get(each.name) is not None}
    if given.get("room"):
        values["parked_on"] = PARKED_BY_LIMIT + given["room"] + (given.get("pause") or "")  # no job waits for both
    if "states" in values:
        values["states"] = frozenset(map(State, values["states"]))
    if "arguments" in values:
        values["arguments"] = argument_text(values["arguments"])
    return Query(**values | more)


def has_condition(given: Iterable[tuple[str, Any]]) -> bool:
    """Return whether filters by name leave out any job."""
    return any(
        value is not None and value != [] and not (value == "" and name in PARTS_OF_TEXTS) for name, value in given
    )


def audit_text(fields: Iterable[tuple[str, Any]]) -> str:
    """Return a selection of jobs as text for the audit log: values of `AUDITED`, of other fields names and numbers."""
    texts = (f"{name}={_text(value)}" if name.removeprefix("filter.") in AUDITED else name for name, value in fields)
    return " ".join(text if count == 1 else f"{text} ({count})" for text, count in Counter(texts).items())


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def argument_text(text: str) -> str:
    """Return the part of the JSON of a job's arguments that a person looks for, for `Query.arguments`.

    `name=value` looks for a keyword argument whose value JSON has itself: not a time, a decimal or a UUID object, which
    their texts alone find. A value that is no JSON is the beginning of a text; one that is a number
    is the beginning of a number, since stores look for a part of a text. Anything else is a part of any text among the
    arguments. A UUID is stored as a text with dashes, or as an object whose digits have none: for a random one, or a
    hash, its last digits find both.
    """
    if uuid := _UUID.fullmatch(text):
        return uuid["last"]
    name, equals, value = text.partition("=")
    if not (equals and name.isidentifier()):
        return json.dumps(text)[1:-1]
    try:
        parsed = json.dumps(json.loads(value, parse_constant=_refuse_constant))
    except (ValueError, RecursionError):
        parsed = json.dumps(value)[:-1]
    return f"{json.dumps(name)}: {parsed}"


def _refuse_constant(name: str) -> Any:
    """Raise `ValueError`: NaN and infinities are no JSON."""
    raise ValueError(name)
