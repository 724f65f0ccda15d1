"""Jobs as rows: a row of the fragment `job_columns` has the fields of a job in their order, mostly as they are."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from onejob.jobs.lifecycle import State
from onejob.jobs.model import Cancel, Job

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_CONVERTERS: dict[str, Callable[[Any], object]] = {"State": State, "Cancel": Cancel, "bool": bool}
"""The types of fields that a row has not as they are, and that are not None."""
_CONVERTED = [(index, _CONVERTERS[str(f.type)]) for index, f in enumerate(fields(Job)) if str(f.type) in _CONVERTERS]
_OPTIONAL_TEXTS = [index for index, field in enumerate(fields(Job)) if str(field.type) == "str | None"]
_NAMES = [field.name for field in fields(Job)]


def job_of(row: Sequence[Any]) -> Job:
    """Return the job of a row."""
    values = list(row)
    for index, convert in _CONVERTED:
        values[index] = convert(values[index])
    for index in _OPTIONAL_TEXTS:
        values[index] = values[index] or None
    return Job(**dict(zip(_NAMES, values, strict=True)))
