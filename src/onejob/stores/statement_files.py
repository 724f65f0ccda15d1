"""Loads a store's statement files: one statement per file, or several, each under a heading `-- name: ...`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from importlib.resources import files

from onejob.jobs.model import LARGE_FIELDS, Job, Submission
from onejob.jobs.records import REDELIVERED
from onejob.stores.protocol import DUPLICATE_LIMIT, HISTORY_LIMIT, LOOK_INTERVAL, OTHER_SUBMITTERS, WINDOW_OVER

FRAGMENTS = "fragments"
"""The file with fragments, which are inserted into statements where their names stand in braces."""
CONSTANTS: dict[str, int | float | str] = {
    "history_limit": HISTORY_LIMIT, "duplicate_limit": DUPLICATE_LIMIT, "window_over": WINDOW_OVER,
    "other_submitters": OTHER_SUBMITTERS, "redelivered": REDELIVERED, "look_interval": LOOK_INTERVAL,
}  # fmt: skip
"""What statements have as fragments with the same names."""
JOB_COLUMNS = ", ".join(field.name for field in fields(Job))
"""The fragment `job_columns`: the columns of a job, in the order of its fields."""
LIGHT_COLUMNS = ", ".join(f"'' as {each.name}" if each.name in LARGE_FIELDS else each.name for each in fields(Job))
"""The fragment `light_columns`: the same, with the large ones empty."""
_OTHER_NAMES = {"nonce": "submission_nonce", "canvas": "canvas_pending"}
NEW_JOB = {
    each.name: column
    for each in fields(Submission)
    if (column := _OTHER_NAMES.get(each.name, each.name)) in Job.__dataclass_fields__
}
"""The fields of a submission that its new job has, with the columns for them: the fragment `new_job_columns`."""
NEW_VALUES = (
    "payload", "options", "route", "retries", "crashes", "published", "publish_error", "cancel", "canvas_pending",
    "reason",
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
    fragments = {name: repr(constant) for name, constant in CONSTANTS.items()}
    fragments |= {"job_columns": JOB_COLUMNS, "light_columns": LIGHT_COLUMNS}
    fragments |= {"new_job_columns": ", ".join(NEW_JOB.values()), **more}
    texts: dict[str, str] = {}
    for file in files(package).iterdir():
        stem = file.name.removesuffix(suffix)
        if stem != file.name:
            file_text, *named = _HEADING.split(file.read_text(encoding="utf-8"))
            for name, text in zip(named[::2] or [stem], named[1::2] or [file_text], strict=True):
                (fragments if stem == FRAGMENTS else texts).update(_variants_of(name, text))
    for found in (fragments, texts):  # each fragment may use those before it
        for name, text in found.items():
            found[name] = _FRAGMENT.sub(lambda match: fragments[match[1]], text)
    return texts


def _variants_of(name: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield a statement, and its variants, each of which has a fragment, after which it is named, for `{narrowed}`."""
    statement = _COMMENT.sub("", text).strip()
    yield name, _CHARGED.sub("", statement)
    for fragment in " ".join(_VARIANTS.findall(text)).split():
        yield f"{name}_{fragment}", _CHARGED.sub(r"\1", statement).replace("{narrowed}", f"{{{fragment}}}")
