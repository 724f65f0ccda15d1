"""A bounded cache of this process: which jobs held which identities. A store verifies what it reads here."""

from __future__ import annotations

LIMIT = 1024


class HolderCache(dict[str, str]):
    """Maps an identity to its holder at the latest duplicate, who may be outdated. Safe to use from many threads."""

    def put(self, identity: str, job_id: str) -> None:
        """Store a holder. A full cache is cleared first."""
        if len(self) >= LIMIT:
            self.clear()
        self[identity] = job_id
