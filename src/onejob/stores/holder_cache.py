"""A bounded cache of this process: which jobs held which identities. A store verifies what it reads here."""

from __future__ import annotations

LIMIT = 1024


class HolderCache:
    """Maps an identity to its holder at the latest duplicate. Safe to use from many threads."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}

    def get(self, identity: str) -> str | None:
        """Return the id of the cached holder of an identity, which may be outdated."""
        return self._ids.get(identity)

    def put(self, identity: str, job_id: str) -> None:
        """Store a holder. A full cache is cleared first."""
        if len(self._ids) >= LIMIT:
            self._ids.clear()
        self._ids[identity] = job_id

    def discard(self, identity: str) -> None:
        """Remove a holder that is outdated."""
        self._ids.pop(identity, None)
