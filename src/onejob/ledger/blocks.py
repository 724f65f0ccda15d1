"""The blocks of a ledger as a process has read them lately, so that a claim does not read them each time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from onejob.errors import StoreError
from onejob.jobs.blocks import OBEYED_WITHIN, Block
from onejob.jobs.lifecycle import WAITING
from onejob.jobs.model import JobRow
from onejob.ledger.reader import JobReader


class BlockCache:
    """The blocks of a ledger, at most `OBEYED_WITHIN` seconds old. `ledger` returns the ledger. Safe to use in threads.

    `clock` returns seconds that only grow.
    """

    def __init__(self, ledger: Callable[[], JobReader], clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._clock = clock
        self._read_at = float("-inf")
        self._blocks: tuple[Block, ...] = ()

    def current(self) -> tuple[Block, ...]:
        """Return the blocks; those that were read before while the store does not answer."""
        if self._clock() - self._read_at >= OBEYED_WITHIN:
            with suppress(StoreError):  # the claim that follows meets the same outage, and reports it
                return self.read()
        return self._blocks

    def read(self) -> tuple[Block, ...]:
        """Return the blocks as they are now. Raises `StoreError`."""
        now = self._clock()
        self._blocks = tuple(self._ledger().store.blocks())
        self._read_at = now
        return self._blocks


def find_block(
    ledger: JobReader, blocks: tuple[Block, ...], job_id: str, arguments_of: Callable[[JobRow], Callable[[str], object]]
) -> tuple[JobRow, Block] | None:
    """Return a job that waits for a run with the first block that matches it; None if there is no such block.

    `arguments_of` returns a function that returns the argument of a job at a path, or raises `KeyError`.
    """
    job = ledger.get_or_none(job_id)
    if job is None or job.state not in WAITING:
        return None
    now = ledger.read_clock()
    covering = [block for block in blocks if block.covers(job, now)]
    if not covering:
        return None
    find_argument = arguments_of(job)
    found = next((block for block in covering if block.matches(find_argument)), None)
    return None if found is None else (job, found)
