"""What was seen lately: a bounded memory of this process, for guesses that a store checks."""

from __future__ import annotations

LIMIT = 1024


class HolderCache:
    """Which jobs held which identities when a submission last met them. Safe to use from many threads."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}

    def get(self, identity: str) -> str | None:
        """Return the job that likely holds an identity, if there is a guess."""
        return self._ids.get(identity)

    def met(self, identity: str, job_id: str) -> None:
        """Note which job a submission has met. When there are too many, all are forgotten."""
        if len(self._ids) >= LIMIT:
            self._ids.clear()
        self._ids[identity] = job_id

    def gone(self, identity: str) -> None:
        """Note that it is another one, or none."""
        self._ids.pop(identity, None)
