"""The names of a ledger's keys. The prefix is a hash tag: all keys of one ledger are in one slot of a cluster."""

from __future__ import annotations

from onejob.errors import ConfigurationError


class Keys:
    """The keys of the ledger named `prefix`. See docs/decisions/0001-redis-keys.md for what each holds."""

    def __init__(self, prefix: str) -> None:
        if not prefix or "{" in prefix or "}" in prefix:
            msg = f"the prefix {prefix!r} cannot name a ledger's keys in Redis: it must have a character, and no brace"
            raise ConfigurationError(msg)
        self._tag = f"{{{prefix}}}"
        self.wake = f"{self._tag}:wake"
        self.leases = f"{self._tag}:leases"
        self.jobs = f"{self._tag}:jobs"
        self.following = f"{self._tag}:following"
        self.duplicate_counts = f"{self._tag}:tallies"
        self.workers = f"{self._tag}:nodes"
        self.metrics = f"{self._tag}:metrics"
        self.tombstones = f"{self._tag}:tombstones"
        self.forgetting = f"{self._tag}:forgetting"

    def job(self, job_id: str) -> str:
        """Return the key of a job's row."""
        return f"{self._tag}:job:{job_id}"

    def identity(self, identity: str) -> str:
        """Return the key that exists exactly while a job holds this identity."""
        return f"{self._tag}:identity:{identity}"

    def next(self, identity: str) -> str:
        """Return the key that names the job which waits for this identity."""
        return f"{self._tag}:next:{identity}"

    def key(self, key: str) -> str:
        """Return the key of the first answer to an idempotency key."""
        return f"{self._tag}:key:{key}"

    def quota(self, name: str) -> str:
        """Return the key of a name's uses."""
        return f"{self._tag}:quota:{name}"

    def steps(self, job_id: str) -> str:
        """Return the key of a job's memoised steps."""
        return f"{self._tag}:steps:{job_id}"

    def history(self, job_id: str) -> str:
        """Return the key of a job's history."""
        return f"{self._tag}:history:{job_id}"

    def duplicates(self, job_id: str) -> str:
        """Return the key of the duplicates of those who met a job."""
        return f"{self._tag}:duplicates:{job_id}"

    def followers(self, job_id: str) -> str:
        """Return the key of the ids that follow a job."""
        return f"{self._tag}:followers:{job_id}"
