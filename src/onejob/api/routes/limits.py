"""The endpoints of limits: their keys, what uses them, and the exceptions of operators."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from celery import Celery
from fastapi import Request
from pydantic import AwareDatetime, Field
from starlette.responses import Response

from onejob.api.problems import Problem
from onejob.api.routes.operate import StrictBody, operator_of
from onejob.client.limits import LimitRow, row_of
from onejob.client.operator import Operator
from onejob.errors import InvalidLimitError
from onejob.ledger.ledger import Ledger

VALUE_LENGTH = 64


class LimitRequest(StrictBody):
    """An exception of a limit, or of one of its keys."""

    value: str = Field(
        max_length=VALUE_LENGTH,
        description="How many jobs may run at once, 0 to stop them, or a rate such as `90/minute`, as a text.",
    )
    until: Annotated[AwareDatetime, Field(strict=False)] | None = Field(
        None, description="When it ends by itself; null: not before it is deleted."
    )


class LimitRoutes:
    """The endpoints of limits, for one app; all take `check_operator` as a dependency."""

    def __init__(self, app: Celery, ledger: Ledger) -> None:
        self._app = app
        self._ledger = ledger

    def list_limits(self, request: Request) -> Sequence[LimitRow]:
        """List the limits of tasks, the exceptions, and the keys that jobs wait for, by key."""
        return [row_of(each) for each in self._operator(request).list_limits()]

    def get_limit(self, key: str, request: Request) -> LimitRow:
        """Get a limit by name (`customer`), or one of its keys (`customer=42`): its value, its slots, who waits."""
        try:
            return row_of(self._operator(request).find_limit(key))
        except InvalidLimitError as error:
            raise Problem("limit-not-found", str(error)) from error

    def set_limit(self, key: str, body: LimitRequest, request: Request) -> LimitRow:
        """Set an exception for a limit or a key: all workers obey it at once. Running jobs are left alone."""
        until: datetime | None = body.until
        ends_at = None if until is None else until.timestamp()
        return row_of(self._operator(request).set_limit(key, body.value, until=ends_at))

    def clear_limit(self, key: str, request: Request) -> Response:
        """End the exception of a limit or a key, if it has one: the definition is valid again."""
        try:
            self._operator(request).clear_limit(key)
        except InvalidLimitError as error:
            raise Problem("limit-not-found", str(error)) from error
        return Response(status_code=204)

    def _operator(self, request: Request) -> Operator:
        return operator_of(request, self._app, self._ledger)
