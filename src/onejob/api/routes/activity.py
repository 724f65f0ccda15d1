"""The activity of the ledger, by minute or by hour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import Request  # noqa: TC002 - FastAPI evaluates the hints

from onejob.api.api_keys import Role
from onejob.api.auth import requires_role
from onejob.api.callers import permissions_of
from onejob.api.response_models import ActivityView
from onejob.jobs.records import Period
from onejob.ledger.activity import LENGTHS, activity_to_dict, read_activity

if TYPE_CHECKING:
    from onejob.ledger.ledger import Ledger


@dataclass(frozen=True, slots=True)
class ActivityRoutes:
    """The endpoint that returns the activity of one ledger."""

    ledger: Ledger

    @requires_role(Role.READ)
    def get_activity(self, request: Request, period: Period = Period.MINUTE) -> ActivityView:
        """Return what happened in the last hour by minute, or in the last seven days by hour.

        Refused to a caller that is limited to its own jobs or to some tasks.
        """
        permissions_of(request).check_operator()
        activity = read_activity(self.ledger, period, length=LENGTHS[period])
        return ActivityView(**activity_to_dict(activity))
