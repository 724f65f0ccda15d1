"""The words of the project, and those that are not to stand for them. docs and CONTRIBUTING.md explain the words."""

from __future__ import annotations

SAYS_NOTHING = frozenset({"base", "common", "core", "helper", "helpers", "manager", "misc", "util", "utils"})
ONE_WORD = {
    "claim": {"acquire_job", "lock_job", "reclaim", "take_job"},
    "dead letter": {"dlq", "deadletter"},
    "heartbeat": {"keepalive", "keep_alive"},
    "identity": {"dedup_key", "dedupe_key", "lock_key", "unique_key", "uniqueness_key"},
    "identity hold": {"identity_retention", "retention_of"},
    "lease": {"lock_ttl", "ttl"},
    "node": {"worker_id", "worker_name"},
    "submit": {"dispatch", "enqueue"},
    "sweep": {"janitor", "reap", "reaper", "scavenge"},
    "token": {"epoch", "fence_id"},
}
"""The project's word for a thing, and words that must not stand for it in our own names."""
OF_FRAMEWORKS = frozenset({("django/backend.py", "enqueue")})
"""Second words that a base class of a framework has given to its methods, with the module."""
BARE_VERBS = frozenset(
    {"answered", "ask", "asked", "came", "gone", "met", "one", "over", "said", "told", "tried", "wanted"}
)
"""Words that do not name a function alone: a function is named by a verb and its object."""
