"""Loads a store's statement files: one statement per file, or several, each under a heading `-- name: ...`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from onejob.jobs.blocks import PARKED_SECONDS
from onejob.jobs.costs import COST_DAYS
from onejob.jobs.limits import PARKED_BY_LIMIT
from onejob.jobs.model import LARGE_FIELDS, REDELIVERED, JobRow, Submission
from onejob.stores.protocol import (
    DUPLICATE_LIMIT,
    HAS_EXPIRED,
    HISTORY_LIMIT,
    LOOK_INTERVAL,
    OTHER_SUBMITTERS,
    WINDOW_OVER,
)

FRAGMENTS = "fragments"
"""The folder of fragments, which replace their names in braces in statements."""
CONSTANTS: dict[str, int | float | str] = {
    "history_limit": HISTORY_LIMIT, "duplicate_limit": DUPLICATE_LIMIT, "window_over": WINDOW_OVER,
    "has_expired": HAS_EXPIRED, "other_submitters": OTHER_SUBMITTERS, "redelivered": REDELIVERED,
    "look_interval": LOOK_INTERVAL, "cost_days": COST_DAYS, "parked_by_limit": PARKED_BY_LIMIT,
    "parked_seconds": PARKED_SECONDS,
}  # fmt: skip
"""The constants that statements insert as fragments, by their names."""
JOB_COLUMNS = ", ".join(field.name for field in fields(JobRow))
"""The fragment `job_columns`: the columns of a job, in the order of its fields."""
LIGHT_COLUMNS = ", ".join(f"'' as {each.name}" if each.name in LARGE_FIELDS else each.name for each in fields(JobRow))
"""The fragment `light_columns`: the columns of a job with the `LARGE_FIELDS` empty."""
_OTHER_NAMES = {"nonce": "submission_nonce", "canvas": "canvas_pending"}
NEW_JOB = {
    each.name: column
    for each in fields(Submission)
    if (column := _OTHER_NAMES.get(each.name, each.name)) in JobRow.__dataclass_fields__ and column != "parked_on"
}
"""The fields of a submission that its new job has, with their columns: the fragment `new_job_columns`.

`parked_on` is none: only a job that holds its identity is parked at first, since others wait for another job.
"""
NEW_VALUES = (
    "payload", "options", "route", "retries", "crashes", "published", "publish_error", "cancel", "canvas_pending",
    "reason", "parked_on", "limit_keys",
)  # fmt: skip
"""The fields of a change that are values for the columns of the same names, unless they are None."""
_HEADING = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_VARIANTS = re.compile(r"^-- variants: (.*)\n", re.MULTILINE)
_CHARGED = re.compile(r"/\* charged:(.*?)\*/", re.DOTALL)
"""A part of a statement that only its variant `charged` has, for submissions with quotas."""
_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)
_FRAGMENT = re.compile(r"\{(\w+)\}")


@cache
def statements(package: str, suffix: str, **more: str) -> dict[str, str]:
    """Return a package's statements by name, without header comments; `more`: further fragments, by name."""
    folder = files(package)
    fragments = {name: repr(constant) for name, constant in CONSTANTS.items()}
    fragments |= {"job_columns": JOB_COLUMNS, "light_columns": LIGHT_COLUMNS}
    fragments |= {"new_job_columns": ", ".join(NEW_JOB.values()), **more, **_read(folder / FRAGMENTS, suffix)}
    return {name: _fill(text, fragments) for name, text in _read(folder, suffix).items()}


def _read(folder: Traversable, suffix: str) -> dict[str, str]:
    """Return the texts in the files of a folder, by name; none of a folder that does not exist."""
    texts: dict[str, str] = {}
    for file in folder.iterdir() if folder.is_dir() else ():
        stem = file.name.removesuffix(suffix)
        if stem != file.name:
            file_text, *named = _HEADING.split(file.read_text(encoding="utf-8"))
            for name, text in zip(named[::2] or [stem], named[1::2] or [file_text], strict=True):
                texts.update(_variants_of(name, text))
    return texts


def _fill(text: str, fragments: Mapping[str, str]) -> str:
    """Return a text with fragments in place of their names in braces, also in the fragments themselves."""
    return _FRAGMENT.sub(lambda match: _fill(fragments[match[1]], fragments), text)


def _variants_of(name: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield a statement, and its variants, each of which has a fragment, after which it is named, for `{narrowed}`."""
    statement = _COMMENT.sub("", text).strip()
    yield name, _CHARGED.sub("", statement)
    for fragment in " ".join(_VARIANTS.findall(text)).split():
        yield f"{name}_{fragment}", _CHARGED.sub(r"\1", statement).replace("{narrowed}", f"{{{fragment}}}")
