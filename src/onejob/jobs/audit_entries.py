"""The entries of the audit log."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Self

ACTION, OWN, ACCESS = "action", "own", "access"
AUDIT_KINDS = (ACTION, OWN, ACCESS)
"""The kinds of entries: actions of operators, actions of submitters on their own jobs, and access (refusals, logins).

Each kind is kept apart: many entries of one kind never displace an entry of another kind.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One entry of the audit log: an action of an operator, refused requests, or logins."""

    actor: str
    """The name of the API key, or the user of the process; "" if unknown."""
    source: str
    """`http`, `cli`, `dashboard`, `admin` (Django's) or `python`."""
    address: str
    """The client's IP address, or the host of the process."""
    action: str
    target: str = ""
    """The id of the job, the name of the key, or how many jobs."""
    outcome: str = "done"
    detail: str = ""
    count: int = 1
    """How many equal requests the entry stands for."""
    kind: str = ACTION
    """One of `AUDIT_KINDS`."""
    id: int = 0
    """The number that the store assigns: a larger number is newer."""
    at: float = 0.0
    """The time of the entry, on the store's clock."""

    def to_json(self) -> str:
        """Return all fields but `id` and `at`, which the store assigns, as JSON."""
        return json.dumps({name: value for name, value in asdict(self).items() if name not in {"id", "at"}})

    @classmethod
    def from_row(cls, id: int | str, at: float | str, entry: str) -> Self:  # noqa: A002 - the name of the column
        """Build an entry from a store's row."""
        return cls(id=int(id), at=float(at), **json.loads(entry))
