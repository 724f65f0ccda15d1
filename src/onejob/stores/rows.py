"""Jobs and changes as rows of a SQL database."""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

from onejob.jobs.lifecycle import State
from onejob.jobs.model import Cancel, Change, Job
from onejob.jobs.records import row_implies_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

COLUMNS = tuple(field.name for field in fields(Job))
_TYPES = [str(field.type) for field in fields(Job)]
_CONVERTERS: dict[str, Callable[[Any], object]] = {
    "State": {state.value: state for state in State}.__getitem__,  # at a fraction of the cost of State(value)
    "Cancel": {cancel.value: cancel for cancel in Cancel}.__getitem__,
    "bool": bool,
}
"""The types of fields that a row has in another form, and that are not None."""
_CONVERTED = [(index, _CONVERTERS[kind]) for index, kind in enumerate(_TYPES) if kind in _CONVERTERS]
_OPTIONAL_TEXTS = [index for index, kind in enumerate(_TYPES) if kind == "str | None"]
_by_column = itemgetter(*COLUMNS)

_COMPLETION = (
    "job_id", "request_id", "token", "keeps_identity", "identity_for", "identity_until", "wake_after", "published",
    "publish_error", "result", "reason",
)  # fmt: skip
"""The fields of a change that `complete.sql` applies, besides its target."""
_OTHERS = {
    each.name: each.default
    for each in fields(Change)
    if each.name not in {*_COMPLETION, "target", "identity", "event", "sources", "ends", "detail"}
}
_completion, _others = attrgetter(*_COMPLETION), attrgetter(*_OTHERS)
_NO_OTHERS = tuple(_OTHERS.values())


def job_of(row: Sequence[Any]) -> Job:
    """Return the job of a row that has its fields in their order."""
    values = list(row)
    for index, convert in _CONVERTED:
        values[index] = convert(values[index])
    for index in _OPTIONAL_TEXTS:
        values[index] = values[index] or None
    return Job(**dict(zip(COLUMNS, values, strict=True)))


def job_in(row: Mapping[str, Any]) -> Job:
    """Return the job of a row by column, which may have other columns, too."""
    return job_of(_by_column(row))


def completion_of(change: Change) -> dict[str, Any] | None:
    """Return the values for `complete.sql`; None for a change that does more than every completion of a run."""
    only_ends = change.ends and change.token and row_implies_entry(change) and _others(change) == _NO_OTHERS
    if not only_ends or change.target is None:
        return None
    return dict(zip(_COMPLETION, _completion(change), strict=True)) | {"target": change.target.value}
