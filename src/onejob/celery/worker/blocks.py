"""Claims a job for a run, unless a pause or a strike keeps the job from running."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from onejob.celery.app_state import AppState
from onejob.celery.messages.payload import read_message
from onejob.celery.submission.options import BoundTask
from onejob.errors import InvalidArgumentsError
from onejob.jobs.blocks import BlockKind
from onejob.jobs.model import Applied, JobRow
from onejob.ledger.blocks import find_block
from onejob.stores.carrier import carried
from onejob.uniqueness.identity import value_at


def claim_unless_blocked(task: BoundTask, app_state: AppState, job_id: str, *, nonce: str, node: str) -> Applied:
    """Claim a job for a run by `Ledger.claim`; a job that a block matches is parked, or fails, and is refused."""
    ledger, blocks = app_state.ledger, app_state.blocks.current()
    if blocks and (found := find_block(ledger, blocks, job_id, partial(arguments_of, task))) is not None:
        job, block = found
        if block not in app_state.blocks.read():  # it has just ended
            return claim_unless_blocked(task, app_state, job_id, nonce=nonce, node=node)
        keep = ledger.park if block.kind is BlockKind.PAUSE else ledger.strike
        applied = keep(job, block)
        return Applied(applied=False, job=applied.job)
    return carried(partial(ledger.claim, job_id, nonce=nonce, node=node))


def arguments_of(task: BoundTask, job: JobRow) -> Callable[[str], object]:
    """Return the function that returns the argument of a job at a path, and raises `KeyError` without one."""
    message = read_message(job)
    arguments = {} if message is None else message.kwargs
    if message is not None:
        with suppress(InvalidArgumentsError):  # of a task that does not check its calls
            arguments = task._onejob.identifier.arguments(message.args, message.kwargs)
    return partial(value_at, arguments)
