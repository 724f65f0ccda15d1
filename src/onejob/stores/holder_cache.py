"""A bounded cache of the jobs that held identities, in this process. A store verifies a holder that it finds here."""

from __future__ import annotations

LIMIT = 1024


class HolderCache(dict[str, str]):
    """Maps an identity to the job that held it at the latest duplicate. Safe to use from many threads."""

    def put(self, identity: str, job_id: str) -> None:
        """Store a holder. A full cache is cleared first."""
        if len(self) >= LIMIT:
            self.clear()
        self[identity] = job_id
