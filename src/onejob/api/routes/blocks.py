"""The endpoints of pauses and strikes."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from celery import Celery
from fastapi import Request
from pydantic import AwareDatetime, Field
from starlette.responses import Response

from onejob.api.routes.operate import StrictBody, operator_of
from onejob.client.blocks import NOTE_LIMIT, TEXT_LIMIT, WHERE_LIMIT
from onejob.jobs.blocks import Block, BlockKind
from onejob.ledger.ledger import Ledger

Text = Annotated[str, Field(max_length=TEXT_LIMIT)]


class BlockRequest(StrictBody):
    """The jobs that a pause or a strike matches, at least one of `task` (which a strike needs), `queue` and `where`."""

    task: Text = Field("", description="The task of the jobs; empty: any.")
    queue: Text = Field("", description="The queue of the jobs; empty: any.")
    where: Annotated[dict[Text, Text], Field(max_length=WHERE_LIMIT)] = Field(
        {}, description="Values of arguments as texts, by path as in `unique_on`."
    )
    until: Annotated[AwareDatetime, Field(strict=False)] | None = Field(
        None, description="When it ends by itself; null: not before it is ended."
    )
    note: str = Field("", max_length=NOTE_LIMIT, description="Why, for people: a part of the reason of each job.")

    @property
    def selection(self) -> dict[str, Any]:
        """The fields, with the time in seconds since the epoch."""
        until: datetime | None = self.until
        return {**dict(self), "until": None if until is None else until.timestamp()}


class BlockRoutes:
    """The endpoints of pauses and strikes, for one app; all take `check_operator` as a dependency."""

    def __init__(self, app: Celery, ledger: Ledger) -> None:
        self._app = app
        self._ledger = ledger

    def list_pauses(self) -> Sequence[Block]:
        """List the pauses that are not over, oldest first."""
        return self._ledger.list_blocks(BlockKind.PAUSE)

    def pause(self, body: BlockRequest, request: Request) -> Block:
        """Pause the jobs that match: none of them starts until the pause ends. Running jobs are left alone."""
        return operator_of(request, self._app, self._ledger).block(BlockKind.PAUSE, **body.selection)

    def resume(self, block_id: str, request: Request) -> Response:
        """End a pause: its jobs are due at once."""
        return self._end(block_id, BlockKind.PAUSE, request)

    def list_strikes(self) -> Sequence[Block]:
        """List the strikes that are not over, oldest first."""
        return self._ledger.list_blocks(BlockKind.STRIKE)

    def strike(self, body: BlockRequest, request: Request) -> Block:
        """Strike the jobs of a task that match: they become dead letters without a run. Running jobs are left alone."""
        return operator_of(request, self._app, self._ledger).block(BlockKind.STRIKE, **body.selection)

    def lift(self, block_id: str, request: Request) -> Response:
        """End a strike. A redrive sends its dead letters again."""
        return self._end(block_id, BlockKind.STRIKE, request)

    def _end(self, block_id: str, kind: BlockKind, request: Request) -> Response:
        operator_of(request, self._app, self._ledger).end_block(block_id, kind)
        return Response(status_code=204)
