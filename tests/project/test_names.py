"""One noun per file, one word per thing, one name per operation in all stores."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest

from tests.project.tree import PACKAGE, STORES, files, functions, modules, statements

if TYPE_CHECKING:
    from collections.abc import Iterable

COMMENT = re.compile(r"--.*")
IDENTIFIER = re.compile(r"[A-Za-z_]+")

SAYS_NOTHING = frozenset({"base", "common", "core", "helper", "helpers", "manager", "misc", "util", "utils"})
KINDS = ("postgres", "redis", "sqlite")
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
    "kept_until": "key_retained_until", "lapse": "expire_quota", "lately": "TTLCache", "leader": "follows_id",
    "moment_of": "parse_timestamp", "moved": "rescheduled", "parcel": "item", "patient": "wait_for_locks",
    "quiet": "log_errors", "reacting": "with_conflict_policy", "reaction": "conflict_policy", "run_says": "fenced",
    "savings": "duplicate_stats", "shown": "job_to_dict", "spares": "skip_referenced", "spend": "consume",
    "spending": "QuotaReservation", "spent": "QuotaUse", "tally": "duplicate_count", "tell": "emit", "told": "Reply",
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
OF_FRAMEWORKS = {"django/backend.py": ["enqueue: say submit"]}
"""Second words that a base class of a framework has given to its methods, by module."""
BARE_VERBS = frozenset(
    {"answered", "ask", "asked", "came", "gone", "met", "one", "over", "said", "told", "tried", "wanted"}
)
"""Words that do not name a function alone: a function is named by a verb and its object."""
OPERATIONS = {
    "apply", "backlog", "claim", "consume", "delete", "find_existing", "follow", "get_many", "heartbeat", "increment",
    "keep_step", "renew", "report", "series", "submit", "take_due", "tombstone", "workers",
}  # fmt: skip
"""The operations that are statements or scripts in every store: there each has the same name."""


def own_names(source: str) -> set[str]:
    """Return the names a module gives to its functions, classes, parameters and annotated fields."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.arg(arg=name) | ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return names


def second_words(source: str) -> list[str]:
    """Return the names in a module that have a better word, with that word."""
    names = own_names(source)
    return sorted(f"{name}: say {word}" for word, others in ONE_WORD.items() for name in names & others)


def former_names(names: Iterable[str]) -> list[str]:
    """Return the names that are a former word, or have one as a part, with the standard term."""
    found = []
    for name in sorted(names):
        word = name.strip("_").lower()
        parts = [term for part, term in PARTS.items() if part in word and word not in OTHERS]
        if word in FORMER or parts:
            found.append(f"{name}: say {FORMER.get(word) or parts[0]}")
    return found


def settings(source: str) -> set[str]:
    """Return the settings that a module names, without their prefix."""
    return set(re.findall(r"\bonejob_(\w+)", source))


def bare_verbs(source: str) -> list[str]:
    """Return the functions of a module whose names are a verb form without an object."""
    return sorted({function.name for function in functions(source) if function.name.strip("_") in BARE_VERBS})


def statement_names(store: str) -> dict[str, set[str]]:
    """Return the identifiers of a store's statements and migrations, by file."""
    places = [path for path in files() if path.is_relative_to(STORES / store) and path.suffix in {".sql", ".lua"}]
    texts = {path: COMMENT.sub("", path.read_text(encoding="utf-8")) for path in places}
    return {str(path.relative_to(PACKAGE)): {path.stem, *IDENTIFIER.findall(text)} for path, text in texts.items()}


def test_file_names_say_what_is_inside() -> None:
    """A module is named by lower-case words, a version in front of them, and never by one that fits any content."""
    stems = {str(path.relative_to(PACKAGE)): path.stem for path in modules() if not path.stem.startswith("__")}
    shims = "compat/celery_"  # their modules have the names of those they stand in for
    assert [
        place
        for place, stem in stems.items()
        if not place.startswith(shims) and (stem in SAYS_NOTHING or not re.fullmatch(r"(?:\d{4}_)?[a-z_]+", stem))
    ] == []


def test_a_thing_has_one_word() -> None:
    """No name of ours calls a thing by a second word."""
    found = {str(path.relative_to(PACKAGE)): second_words(path.read_text(encoding="utf-8")) for path in modules()}
    assert {place: words for place, words in found.items() if words} == OF_FRAMEWORKS


def test_second_words_are_seen() -> None:
    """A second word is found as a function, a parameter and a field, and a call to somebody else's is not ours."""
    source = "class A:\n    epoch: int\n\ndef enqueue(ttl: int) -> None:\n    redis.ttl('x')\n    queue.reaper()\n"
    assert second_words(source) == ["enqueue: say submit", "epoch: say token", "ttl: say lease"]


def test_names_are_standard_terms() -> None:
    """No module, function, class, parameter, field or setting has a name that a standard term has replaced."""
    found = {
        str(path.relative_to(PACKAGE)): former_names(own_names(text) | settings(text))
        for path in modules()
        for text in [path.read_text(encoding="utf-8")]
    }
    assert {place: names for place, names in found.items() if names} == {}
    assert [path for path in modules() if path.stem in FORMER_MODULES] == []


def test_functions_are_named_by_a_verb_and_its_object() -> None:
    """No function is named by a bare verb form."""
    found = {str(path.relative_to(PACKAGE)): bare_verbs(path.read_text(encoding="utf-8")) for path in modules()}
    assert {place: names for place, names in found.items() if names} == {}


@pytest.mark.parametrize("store", KINDS)
def test_statements_use_standard_terms(store: str) -> None:
    """No table, column, key, script variable or statement has a name that a standard term has replaced."""
    found = {place: former_names(names) for place, names in statement_names(store).items()}
    assert found
    assert {place: names for place, names in found.items() if names} == {}


def test_former_names_are_seen() -> None:
    """A former word is found alone, with an underscore, and as a part; a library's own name is not ours."""
    assert former_names({"door", "_told_apart", "note_receipts", "add_done_callback", "source"}) == [
        "_told_apart: say split_duplicates", "door: say source", "note_receipts: say duplicate",
    ]  # fmt: skip
    source = "def _came(): pass\ndef tell_end(): pass\nclass A:\n    def one(self): pass\n"
    assert bare_verbs(source) == ["_came", "one"]


@pytest.mark.parametrize("store", KINDS)
def test_stores_name_their_operations_alike(store: str) -> None:
    """An operation has the same name in every store."""
    assert OPERATIONS - statements(store).keys() == set()


@pytest.mark.parametrize("store", KINDS)
def test_statements_say_what_they_do(store: str) -> None:
    """A statement begins by saying, in a comment, what it takes and what it answers."""
    headers = {name: _header(text) for name, text in statements(store).items() if f"{{{name}}}" not in _code(store)}
    said = re.compile(r"^-- (?:in|out|KEYS|returns):", re.MULTILINE)
    assert [name for name, header in headers.items() if name != "prelude" and not said.search(header)] == []


def _header(text: str) -> str:
    lines = text.removeprefix("#!lua").split("\n")[:12]
    return "\n".join(line for line in lines if line.startswith("--"))


@pytest.mark.parametrize("store", KINDS)
def test_statements_are_used(store: str) -> None:
    """A statement that nothing asks for by its name, and a fragment that is in no statement, is gone."""
    code = _code(store)
    assert [name for name in statements(store) if not re.search(rf"""["'{{]{name}["'}}]""", code)] == []


def _code(store: str) -> str:
    modules = (module.read_text(encoding="utf-8") for module in (STORES / store).glob("*.py"))
    return "".join([*modules, *statements(store).values()])
