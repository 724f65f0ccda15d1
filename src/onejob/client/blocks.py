"""Pauses and strikes, as every front end makes them: what they may select, and for how long."""

from __future__ import annotations

import re
from collections.abc import Mapping
from inspect import Parameter
from secrets import token_hex

from celery import Celery

from onejob.celery.option_declarations import did_you_mean
from onejob.celery.submission.options import tasks_of
from onejob.errors import InvalidBlockError
from onejob.jobs.blocks import Block, BlockKind

NOTE_LIMIT = 200
"""How many characters a note may have, which is a part of the reason of each job that the block matches."""
TEXT_LIMIT = 256
"""How many characters the name of a task or a queue, a path, or a value may have."""
WHERE_LIMIT = 8
"""How many arguments a block may name."""
_PATH = re.compile(r"[^\W\d]\w*(\.[^.\s=]+)*")
"""A path into the arguments: the name of one, and members."""


def new_block(
    app: Celery | None, kind: BlockKind, *, task: str = "", queue: str = "", where: Mapping[str, str] | None = None,
    until: float | None = None, note: str = "", created_by: str = "",
) -> Block:  # fmt: skip
    """Return a block that selects jobs by task, by queue and by arguments, combined with AND.

    `where`: values as texts by path into the arguments, as in `unique_on`. `until`: when the block ends by itself, in
    seconds since the epoch; None: never. Raises `InvalidBlockError` for one that selects nothing, a strike without a
    task, and an argument or a task that the app does not have.
    """
    block = Block(
        id=f"{kind[0]}-{token_hex(4)}", kind=kind, task=task, queue=queue, where=dict(where or {}), until=until,
        note=" ".join(note.split()), created_by=created_by,
    )  # fmt: skip
    _check_lengths(block)
    if not (task or queue or block.where):
        raise InvalidBlockError(f"a {kind} that selects every job is refused: name a task, a queue, or an argument")
    if kind is BlockKind.STRIKE and not task:
        raise InvalidBlockError("a strike makes jobs fail, and so it names their task")
    if app is not None and task:
        _check_task(app, task, block.where)
    return block


def _check_lengths(block: Block) -> None:
    """Raise `InvalidBlockError` for a text that is too long, too many arguments, and a path that is none."""
    texts = (("the task", block.task), ("the queue", block.queue), *block.where.items())
    for name, text in (*texts, *(("a path", path) for path in block.where)):
        if len(text) > TEXT_LIMIT:
            raise InvalidBlockError(f"{name} has {len(text)} characters; at most {TEXT_LIMIT} are allowed")
    if len(block.note) > NOTE_LIMIT:
        raise InvalidBlockError(f"the note has {len(block.note)} characters; at most {NOTE_LIMIT} are allowed")
    if len(block.where) > WHERE_LIMIT:
        raise InvalidBlockError(f"{len(block.where)} arguments are named; at most {WHERE_LIMIT} are allowed")
    for path in block.where:
        if not _PATH.fullmatch(path):
            raise InvalidBlockError(f"{path!r} is no path into arguments: write customer=42 or order.customer=42")


def _check_task(app: Celery, task: str, where: Mapping[str, str]) -> None:
    """Raise `InvalidBlockError` unless the app has the task, and the task the arguments."""
    tasks = tasks_of(app)
    if task not in tasks:
        hint = did_you_mean(task, tasks) or f"; it has: {', '.join(tasks) or 'none'}"
        raise InvalidBlockError(f"the app has no onejob task named {task!r}{hint}")
    parameters = tasks[task]._onejob.identifier.signature.parameters
    if any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values()):
        return
    for path in where:
        if (root := path.partition(".")[0]) not in parameters:
            hint = did_you_mean(root, parameters) or f"; it has: {', '.join(parameters) or 'none'}"
            raise InvalidBlockError(f"task {task!r} has no argument named {root!r}{hint}")


def parse_where(texts: tuple[str, ...] | list[str]) -> dict[str, str]:
    """Return the values by path of texts such as "customer=42". Raises `InvalidBlockError`."""
    found: dict[str, str] = {}
    for text in texts:
        path, equals, value = text.partition("=")
        if not equals:
            raise InvalidBlockError(f"{text!r} names no value: write customer=42")
        if path in found:
            raise InvalidBlockError(f"{path!r} is named twice, and no job has both values")
        found[path] = value
    return found


def shown_text(where: Mapping[str, str], *, task: str = "", queue: str = "", **_: str) -> str:
    """Return a block's selection as text for the audit log: of arguments, which may be secret, only the paths."""
    named = (("task", task), ("queue", queue))
    return " ".join([*(f"{name}={text}" for name, text in named if text), *where])
