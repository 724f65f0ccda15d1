"""The page of pauses and strikes, and the forms that make and end them."""

from collections.abc import Mapping
from typing import Any

from onejob.api.problems import Problem
from onejob.client.blocks import parse_where
from onejob.jobs.blocks import Block, BlockKind
from onejob.jobs.public_view import fields_of
from onejob.jobs.timestamps import parse_time, seconds_of
from onejob.pages.access import Form, User
from onejob.pages.context import Context
from onejob.pages.page_request import PageRequest
from onejob.pages.rendering import Page, Redirect, View


def _build_blocks(context: Context, _request: PageRequest) -> Page:
    operator = context.operator()
    blocks = [_row(context, each) for kind in BlockKind for each in operator.list_blocks(kind)]
    return Page(
        template="blocks.html", title="Pauses and strikes", data={"blocks": blocks}, rows="blocks", live="ledger"
    )


def _row(context: Context, block: Block) -> dict[str, Any]:
    """Return the fields of a block; where the values of jobs are redacted, only the names of arguments are shown."""
    where = [path if context.redact else f"{path}={text}" for path, text in block.where.items()]
    return fields_of(block) | {"kind": block.kind.value, "where": where}


def make_block(context: Context, user: User, form: Form, _path: Mapping[str, str]) -> Redirect:
    """Pause or strike the jobs that a form selects. Raises `Problem`, and as `Operator.block` does."""
    operator, where = context.operator(user), form.text("where").split()
    kind = _kind_in(form)
    try:
        until = seconds_of(parse_time(text), operator.ledger.read_clock(), 1) if (text := form.text("until")) else None
    except ValueError as error:
        raise Problem("invalid-request", str(error)) from error
    block = operator.block(
        kind, task=form.text("task"), queue=form.text("queue"), where=parse_where(where), until=until,
        note=form.text("note"),
    )  # fmt: skip
    done = "Paused" if kind is BlockKind.PAUSE else "Struck"
    return Redirect(BLOCKS.path, f"{done}: {_shown(context, block)}.")


def end_block(context: Context, user: User, form: Form, path: Mapping[str, str]) -> Redirect:
    """End a pause or a strike. Raises `Problem`, and `BlockNotFoundError`."""
    kind = _kind_in(form)
    block = context.operator(user).end_block(path["block_id"], kind)
    done = "Resumed" if kind is BlockKind.PAUSE else "Lifted"
    return Redirect(BLOCKS.path, f"{done}: {_shown(context, block)}.")


def _kind_in(form: Form) -> BlockKind:
    """Return the kind that a form names. Raises `Problem` for another text."""
    try:
        return BlockKind(form.text("kind"))
    except ValueError as error:
        raise Problem("invalid-request", str(error)) from error


def _shown(context: Context, block: Block) -> str:
    return block.id if context.redact else block.selection


BLOCKS = View("blocks", "/blocks", _build_blocks)
