"""The Redis keys of a ledger. The prefix is a hash tag, so that all keys of a ledger are in one slot of a cluster."""

from __future__ import annotations

from onejob.errors import ConfigurationError
from onejob.jobs.records import AUDIT_KINDS
from onejob.stores.state_index import INDEXED_STATES


class Keys:
    """The keys of the ledger named `prefix`. docs/decisions/0001-redis-keys.md has the content of each."""

    def __init__(self, prefix: str) -> None:
        if not prefix or "{" in prefix or "}" in prefix:
            msg = f"the prefix {prefix!r} of the keys in Redis is invalid: it must not be empty, and contain no brace"
            raise ConfigurationError(msg)
        self._tag = f"{{{prefix}}}"
        wake, self.leases, self.ended = (f"{self._tag}:{name}" for name in ("wake:", "leases", "ended"))
        self.wake_sets = (wake, self.leases, self.ended)
        """The sorted sets of `wake_at`; of the waiting jobs, the prefix of the sets of all tasks."""
        self.state_sets = {state: f"{self._tag}:{state}" for state in INDEXED_STATES}
        """The sorted sets of the jobs in a state, by `created_at`."""
        self.jobs = f"{self._tag}:jobs"
        self.follows_ids = f"{self._tag}:follows_ids"
        self.duplicate_counts = f"{self._tag}:duplicate_counts"
        self.duplicate_sums = f"{self._tag}:duplicate_sums"
        self.workers = f"{self._tag}:workers"
        self.registrations = f"{self._tag}:registrations"
        self.metrics = f"{self._tag}:metrics"
        self.audit = {kind: f"{self._tag}:audit:{kind}" for kind in AUDIT_KINDS}
        self.tombstones = f"{self._tag}:tombstones"
        self.tombstone_expiry = f"{self._tag}:tombstone_expiry"

    def wake(self, task: str) -> str:
        """Return the key of the `wake_at` of the waiting jobs that the workers of a task handle."""
        return self.wake_sets[0] + task

    def buckets(self, seconds: int) -> str:
        """Return the prefix of the keys of the buckets of metrics with this length."""
        return f"{self._tag}:bucket:{seconds}:"

    def job(self, job_id: str) -> str:
        """Return the key of a job's row."""
        return f"{self._tag}:job:{job_id}"

    def identity(self, identity: str) -> str:
        """Return the key that exists exactly while a job holds this identity."""
        return f"{self._tag}:identity:{identity}"

    def next(self, identity: str) -> str:
        """Return the key that contains the id of the job that is queued next for this identity."""
        return f"{self._tag}:next:{identity}"

    def key(self, key: str) -> str:
        """Return the key of the first answer to an idempotency key."""
        return f"{self._tag}:key:{key}"

    def quota(self, name: str) -> str:
        """Return the key of a quota."""
        return f"{self._tag}:quota:{name}"

    def event(self, event_id: str) -> str:
        """Return the key of an event that webhooks report."""
        return f"{self._tag}:event:{event_id}"

    def steps(self, job_id: str) -> str:
        """Return the key of a job's memoised steps."""
        return f"{self._tag}:steps:{job_id}"

    def history(self, job_id: str) -> str:
        """Return the key of a job's history."""
        return f"{self._tag}:history:{job_id}"

    def duplicates(self, job_id: str) -> str:
        """Return the key of a job's duplicates."""
        return f"{self._tag}:duplicates:{job_id}"

    def followers(self, job_id: str) -> str:
        """Return the key of a job's followers: their ids, and the tasks whose workers handle them."""
        return f"{self._tag}:followers:{job_id}"
