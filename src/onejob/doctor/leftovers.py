"""What is left of celery-singleton and celery-once: in an app, in source files, and as locks in Redis."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from onejob.compat.celery_once.backends.redis import parse_url
from onejob.compat.celery_singleton.config import Config
from onejob.doctor.finding import Finding, Level
from onejob.doctor.source_leftovers import REPLACEMENTS, find_in_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

LIBRARIES = ("celery_singleton", "celery_once")
SHIMS = "onejob.compat.celery_"
NO_EXPIRY = -1
"""What Redis returns as the remaining time of a key that does not expire."""
MANY = 10_000
"""How many locks are counted at most."""


def find_leftovers(app: Any, paths: Sequence[Path]) -> list[Finding]:
    """Return what is left in an app (None: no app is examined) and below paths, each with what to write instead.

    Nothing is changed, and a Redis that does not answer is a finding, too.
    """
    findings = [] if app is None else [*_in_settings(app), *_in_tasks(app), *_in_redis(app)]
    return findings + find_in_files(paths)


def _in_settings(app: Any) -> Iterator[Finding]:
    for name in sorted(REPLACEMENTS.keys()):
        if (name == "ONCE" or name.startswith("singleton_")) and app.conf.get(name) is not None:
            meaning = "a setting of the old library: only its shim in onejob.compat reads it"
            yield Finding(Level.WARNING, f"settings: {name}", "the app sets it", meaning, REPLACEMENTS[name])
    if app.conf.get("onejob_share_old_locks"):
        meaning = "each submission of a shim's task asks the Redis of the old library, too"
        remedy = "remove the setting when no process with the old library runs any more"
        yield Finding(Level.WARNING, "settings: onejob_share_old_locks", "it is True", meaning, remedy)


def _in_tasks(app: Any) -> Iterator[Finding]:
    for name, task in sorted(app.tasks.items()):
        where, modules = f"task {name}", [kind.__module__ for kind in type(task).__mro__]
        if any(module.startswith(SHIMS) for module in modules):
            meaning = "its jobs are in the ledger; the class still reads the options of the old library"
            yield Finding(Level.WARNING, where, "its class is a shim of onejob.compat", meaning, "base=onejob.Task")
        elif any(module.split(".")[0] in LIBRARIES for module in modules):
            meaning = "its locks are the old library's: a killed worker leaves them behind, and no ledger has its jobs"
            yield Finding(Level.WARNING, where, "its class is the old library's", meaning, "base=onejob.Task")
        for option in ("lock_expiry", "once", "raise_on_duplicate"):
            given = getattr(task, option, None)
            if given not in (None, {"graceful": False, "unlock_before_run": False}):
                meaning = "an option of the old library, which onejob.Task refuses"
                yield Finding(Level.WARNING, where, f"it has {option}={given!r:.200}", meaning, REPLACEMENTS[option])


def _in_redis(app: Any) -> Iterator[Finding]:
    config, once = Config(app), app.conf.get("ONCE") or {}
    prefix, url = config.key_prefix, str(config.backend_url)
    if url.startswith(("redis://", "rediss://")):
        yield from _locks(f"{prefix}*", "celery-singleton", url=url)
    if str(once.get("backend", "")).rpartition(".")[2] == "Redis":
        details = parse_url(once.get("settings", {}).get("url", "redis://localhost:6379/0"))
        yield from _locks("qo_*", "celery-once", **details)


def _locks(pattern: str, library: str, *, url: str | None = None, **details: Any) -> Iterator[Finding]:
    import redis

    details = {"socket_timeout": 5, "socket_connect_timeout": 5, **details}
    where = f"redis: keys {pattern}"
    try:
        with redis.Redis.from_url(url, **details) if url else redis.Redis(**details) as client:
            keys = list(islice(client.scan_iter(match=pattern, count=1000), MANY))
            eternal = sum(client.ttl(key) == NO_EXPIRY for key in keys)
    except redis.RedisError as error:
        yield Finding(Level.WARNING, where, f"could not look: {error}", f"locks of {library} may be left", "")
        return
    if keys:
        problem = f"{len(keys)} locks of {library}, {eternal} of them without an expiry, such as {_text(min(keys))}"
        meaning = "held by a task of the old library that waits or runs, or left by a process that died"
        command = f"redis-cli --scan --pattern '{pattern}' | xargs redis-cli del"
        remedy = f"when no process with {library} runs any more: {command}"
        yield Finding(Level.WARNING, where, problem, meaning, remedy)


def _text(key: Any) -> str:
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key)
