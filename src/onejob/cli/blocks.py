"""The commands on pauses and strikes: `pause`, `resume`, `pauses`, `strike`, `lift` and `strikes`."""

from datetime import timedelta
from typing import Any

import click

from onejob.cli.access import TIME, Access, access, audited, json_access, together
from onejob.cli.printing import echo, print_list
from onejob.client.blocks import parse_where, shown_text
from onejob.jobs.blocks import Block, BlockKind
from onejob.jobs.public_view import fields_of
from onejob.jobs.timestamps import local_text, seconds_of

COLUMNS = ("id", "task", "queue", "where", "until", "note", "made at", "made")
_ENDS = "When it ends by itself: 2026-01-31T12:00:00Z, or in a duration such as 2h.  [default: never]"
options = together(
    click.option("--queue", default="", help="Only jobs of this queue."),
    click.option("--where", multiple=True, help="Only jobs with this argument: customer=42. May be repeated."),
    click.option("--until", type=TIME, help=_ENDS),
    click.option("--note", default="", help="Why, for people: a part of the reason of each job."),
)


@click.command()
@click.option("--task", default="", help="Only jobs of this task.")
@options
@access
def pause(access: Access, /, **selection: Any) -> None:
    """Pause jobs: none that matches starts until the pause ends. Running jobs are left alone."""
    made = _block(access, BlockKind.PAUSE, **selection)
    echo(f"Paused: {made.selection}. End it with: onejob resume {made.id}")


@click.command()
@click.argument("pause_id", metavar="ID")
@access
def resume(access: Access, pause_id: str) -> None:
    """End the pause ID, whose jobs are due at once."""
    ended = _end(access, pause_id, BlockKind.PAUSE)
    echo(f"Resumed: {ended.selection}.")


@click.command()
@click.argument("task")
@options
@access
def strike(access: Access, /, **selection: Any) -> None:
    """Strike jobs of TASK: those that match become dead letters without a run. Running jobs are left alone."""
    made = _block(access, BlockKind.STRIKE, **selection)
    echo(f"Struck: {made.selection}. End it with: onejob lift {made.id}")


@click.command()
@click.argument("strike_id", metavar="ID")
@access
def lift(access: Access, strike_id: str) -> None:
    """End the strike ID. `onejob dead redrive` sends its dead letters again."""
    ended = _end(access, strike_id, BlockKind.STRIKE)
    echo(f"Lifted: {ended.selection}. Its dead letters stay: onejob dead redrive sends them again.")


def _list_of(kind: BlockKind, name: str, text: str) -> click.Command:
    @click.command(name, help=text)
    @json_access
    def list_blocks(access: Access, *, as_json: bool) -> None:
        found = access.operator().list_blocks(kind)
        print_list([fields_of(each) for each in found], COLUMNS, map(_row, found), as_json=as_json)

    return list_blocks


pauses = _list_of(BlockKind.PAUSE, "pauses", "List the pauses that are not over, oldest first.")
strikes = _list_of(BlockKind.STRIKE, "strikes", "List the strikes that are not over, oldest first.")


def _row(block: Block) -> tuple[str, ...]:
    where = " ".join(f"{path}={text}" for path, text in block.where.items())
    until = "" if block.until is None else local_text(block.until)
    made_at = local_text(block.created_at)
    return block.id, block.task, block.queue, where, until, block.note, made_at, block.created_by


def _block(
    access: Access, kind: BlockKind, *, where: tuple[str, ...], until: float | timedelta | None, **selection: str
) -> Block:
    operator = access.operator()
    ends_at = seconds_of(until, operator.ledger.read_clock(), sign=1)
    values = parse_where(where)
    with audited(operator.ledger, kind, selection["task"], shown_text(values, **selection)):
        return operator.block(kind, where=values, until=ends_at, **selection)


def _end(access: Access, block_id: str, kind: BlockKind) -> Block:
    operator = access.operator()
    with audited(operator.ledger, "resume" if kind is BlockKind.PAUSE else "lift", block_id):
        return operator.end_block(block_id, kind)
