"""The calls that the page of a job has to copy make the same submission."""

import ast
import json
import shlex
import string
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from unittest.mock import Mock
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from onejob.celery.messages.payload import decode, encode
from onejob.jobs.model import JobRow
from onejob.jobs.text_limits import TextLimits
from onejob.jobs.transitions import new_job
from onejob.pages.job import curl_call, python_call
from tests.cases import for_each
from tests.stores.support import not_none, submission

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
ZONES = st.sampled_from([None, UTC, timezone(timedelta(hours=5, minutes=30))])
RICH = (
    PLAIN
    | st.datetimes(timezones=ZONES)
    | st.dates()
    | st.times()
    | st.uuids()
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.binary(max_size=10)
)
NAMES = st.text(string.ascii_letters, min_size=1, max_size=8)
BASE = "http://localhost:8000/v1/"


def job_of(args: list[Any], kwargs: dict[str, Any], task: str = "shop.invoice") -> JobRow:
    payload = encode(task, args, kwargs, TextLimits())
    return replace(new_job(submission(), now=0.0, wake_after=0.0, is_sent=False), task=task, payload=payload)


@given(args=st.lists(RICH, max_size=3), kwargs=st.dictionaries(NAMES, RICH, max_size=3), task=TEXTS.filter(bool))
def test_python_text_makes_the_same_call(args: list[Any], kwargs: dict[str, Any], task: str) -> None:
    """The Python text, executed with `app` alone, submits the task with the arguments that a worker gets."""
    job = job_of(args, kwargs, task)
    text, app, message = python_call(job), Mock(tasks={task: Mock()}), decode(job.payload)
    exec(compile(ast.parse(text), "text", "exec"), {"app": app})  # noqa: S102 - the text under test
    app.tasks[task].apply_async.assert_called_once_with(args=message.args, kwargs=message.kwargs)


@given(args=st.lists(PLAIN, max_size=2), kwargs=st.dictionaries(NAMES, PLAIN, max_size=3), task=TEXTS.filter(bool))
def test_shell_text_sends_the_same_json(args: list[Any], kwargs: dict[str, Any], task: str) -> None:
    """A shell splits the command into the URL, the headers and one body, which has the call's JSON."""
    names = [f"{name} of the task" for name in "ab"]
    text = not_none(curl_call(job_of(args, kwargs, task), BASE, parameters=names))
    assert text.isprintable()
    assert text.isascii()
    words = shlex.split(text)
    body = json.loads(words.pop())
    assert words == [
        "curl", "-s", "-H", "authorization: Bearer $KEY", "-H", "content-type: application/json",
        "http://localhost:8000/v1/jobs", "-d",
    ]  # fmt: skip
    assert body == {"task": task, "kwargs": dict(zip(names, args, strict=False)) | kwargs}


@for_each("value", [datetime(2026, 1, 31, tzinfo=UTC), date(2026, 1, 31), time(12), UUID(int=1), Decimal(1), b"x"])
def test_what_json_has_not_cannot_be_sent(value: Any) -> None:
    """A call with a value that JSON has not, or with positional arguments that have no names, has no request."""
    assert curl_call(job_of([], {"value": value}), BASE) is None
    assert curl_call(job_of([1, 2], {}), BASE, parameters=["only"]) is None
