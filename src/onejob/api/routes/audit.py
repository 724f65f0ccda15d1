"""The audit log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fastapi import Query, Request

from onejob.api.api_keys import Role
from onejob.api.auth import requires_role
from onejob.api.callers import permissions_of
from onejob.api.response_models import AuditEntryView
from onejob.jobs.model import values_of

if TYPE_CHECKING:
    from onejob.ledger.ledger import Ledger

Before = Annotated[int | None, Query(ge=1, le=2**62, description="The `id` of the last entry of the previous page.")]
Limit = Annotated[int, Query(ge=1, le=200)]


@dataclass(frozen=True, slots=True)
class AuditRoutes:
    """The endpoint that lists the audit log, on one ledger."""

    ledger: Ledger

    @requires_role(Role.OPERATE)
    def list_audit(self, request: Request, before: Before = None, limit: Limit = 50) -> list[AuditEntryView]:
        """List what operators did and which requests were refused, newest first."""
        permissions_of(request).check_operator()
        return [AuditEntryView(**values_of(each)) for each in self.ledger.audit(limit=limit, before=before)]
