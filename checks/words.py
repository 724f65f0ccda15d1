"""The words of the project, and those that are not to stand for them. docs and CONTRIBUTING.md explain the words."""

from __future__ import annotations

SAYS_NOTHING = frozenset({"base", "common", "core", "helper", "helpers", "manager", "misc", "util", "utils"})
ONE_WORD = {
    "claim": {"acquire_job", "lock_job", "take_job"},
    "dead letter": {"dlq", "deadletter"},
    "heartbeat": {"keepalive", "keep_alive"},
    "identity": {"dedup_key", "dedupe_key", "lock_key", "unique_key", "uniqueness_key"},
    "lease": {"lock_ttl", "ttl"},
    "node": {"worker_id", "worker_name"},
    "submit": {"dispatch", "enqueue"},
    "sweep": {"janitor", "reap", "reaper", "scavenge"},
    "token": {"epoch", "fence_id"},
}
"""The project's word for a thing, and words that must not stand for it in our own names."""
FORMER_MODULES = {
    "asking": "request_models", "caller": "submitter", "changes": "transitions", "dead": "dead_letters",
    "declared": "openapi", "definition": "options", "execution": "execute", "exposition": "prometheus",
    "facts": "events", "guard": "auth", "heads": "http_limits", "lately": "ttl_cache", "loops": "batching",
    "moment": "timestamps", "operating": "control", "reaction": "on_duplicate", "recent": "holder_cache",
    "running": "current_job", "runtime": "app_state", "savings": "duplicate_stats", "serving": "app",
    "shown": "public_view", "telemetry": "meter", "twins": "coalesce", "views": "response_models",
    "watching": "job_watcher", "why": "explain",
}  # fmt: skip
"""Former names of modules, and what they became."""
FORMER = {
    "answering": "find_existing", "came": "SubmitResult", "dealt": "BulkResult",
    "desk": "WebhookDispatcher", "differs": "arguments_differ", "door": "source", "end_if_asked": "cancel_if_due",
    "fact": "JobEvent", "fade": "delete_stale_workers", "give_back": "refund", "happened": "transition_event",
    "hearers": "listeners", "heir": "next_id", "holds": "holds_identity", "hurry": "set_lock_timeout",
    "kept_until": "key_retained_until", "lately": "TTLCache", "leader": "follows_id",
    "moment_of": "parse_timestamp", "moved": "rescheduled", "parcel": "item", "patient": "wait_for_locks",
    "quiet": "log_errors", "reacting": "with_conflict_policy", "reaction": "conflict_policy", "run_says": "fenced",
    "savings": "duplicate_stats", "shown": "job_to_dict", "spares": "skip_referenced", "spend": "charge",
    "spending": "Charge", "tally": "duplicate_count", "tell": "emit", "told": "Reply",
    "told_apart": "split_duplicates", "undelivered": "canvas_pending", "urgency": "priority_rank",
    "wanted": "PendingRequest",
}  # fmt: skip
"""Words that a standard term has replaced, with that term: no name is such a word, in upper or lower case."""
PARTS = {
    "callback": "webhook", "courier": "dispatcher", "receipt": "duplicate", "tallies": "stats", "twin": "duplicate",
}  # fmt: skip
"""Words that are not a part of any name, either."""
OTHERS = frozenset({"add_done_callback", "trace_callback"})
"""Names of Python and its libraries that have such a part."""
OF_FRAMEWORKS = frozenset({("django/backend.py", "enqueue")})
"""Second words that a base class of a framework has given to its methods, with the module."""
BARE_VERBS = frozenset(
    {"answered", "ask", "asked", "came", "gone", "met", "one", "over", "said", "told", "tried", "wanted"}
)
"""Words that do not name a function alone: a function is named by a verb and its object."""
