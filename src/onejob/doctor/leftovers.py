"""What is left of celery-singleton and celery-once: in an app, in source files, and as locks in Redis."""

from __future__ import annotations

import inspect
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from onejob.compat.celery_singleton.config import Config
from onejob.doctor.finding import Finding, Level, count_text
from onejob.doctor.redis import cli_options, connected
from onejob.doctor.source_leftovers import MODULES, OPTIONS, OWN_OPTIONS, REPLACEMENTS, find_in_files, findings_of
from onejob.errors import OneJobError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from onejob.doctor.source_leftovers import Leftover

LIBRARIES = ("celery_singleton", "celery_once")
SHIMS = "onejob.compat.celery_"
NO_EXPIRY = -1
"""What Redis returns as the remaining time of a key that does not expire."""
MANY = 10_000
"""How many locks are counted at most."""


def find_leftovers(app: Any, paths: Sequence[Path]) -> list[Finding]:
    """Return what is left below paths, by file and line, and then in an app (None: no app is examined).

    What a file sets is no finding about the app, too. Nothing is changed; a Redis that does not answer is a finding.
    """
    found = find_in_files(paths)
    findings = findings_of(found)
    if app is None:
        return findings
    in_files = {name for _, _, _, name in found}
    return [*findings, *_in_settings(app, in_files), *_in_tasks(app, found), *_in_redis(app)]


def _in_settings(app: Any, in_files: Collection[str]) -> Iterator[Finding]:
    for name in sorted(REPLACEMENTS.keys() - in_files):
        if (name == "ONCE" or name.startswith("singleton_")) and app.conf.get(name) is not None:
            meaning = "a setting of the old library: only its shim in onejob.compat reads it"
            yield Finding(Level.WARNING, f"settings: {name}", "the app sets it", meaning, REPLACEMENTS[name])
    if app.conf.get("onejob_share_old_locks"):
        meaning = "each submission of a shim's task asks the Redis of the old library, too"
        remedy = "remove the setting when no process with the old library runs any more"
        yield Finding(Level.WARNING, "settings: onejob_share_old_locks", "it is True", meaning, remedy)


def _in_tasks(app: Any, found: Sequence[Leftover]) -> Iterator[Finding]:
    for name, task in sorted(app.tasks.items()):
        where, source = f"task {name}", Path(inspect.unwrap(task.run).__code__.co_filename).resolve()
        in_file = {left.name for left in found if left.file.resolve() == source}
        modules = [kind.__module__ for kind in type(task).__mro__]
        if any(module.startswith(SHIMS) for module in modules) and in_file.isdisjoint(MODULES):
            meaning = "its jobs are in the ledger; the class still reads the options of the old library"
            yield Finding(Level.WARNING, where, "its class is a shim of onejob.compat", meaning, OWN_OPTIONS)
        elif any(module.split(".")[0] in LIBRARIES for module in modules) and in_file.isdisjoint(MODULES):
            meaning = "its locks are the old library's: a killed worker leaves them behind, and no ledger has its jobs"
            library = next(module.split(".")[0] for module in modules if module.split(".")[0] in LIBRARIES)
            yield Finding(Level.WARNING, where, "its class is the old library's", meaning, REPLACEMENTS[library])
        for option in sorted(OPTIONS - in_file):
            given = getattr(task, option, None)
            if given not in (None, {"graceful": False, "unlock_before_run": False}):
                meaning = "an option of the old library, which onejob.Task refuses"
                yield Finding(Level.WARNING, where, f"it has {option}={given!r:.200}", meaning, REPLACEMENTS[option])


def _in_redis(app: Any) -> Iterator[Finding]:
    config, once = Config(app), app.conf.get("ONCE") or {}
    url = str(config.backend_url)
    if url.startswith(("redis://", "rediss://")):
        yield from _locks(f"{config.key_prefix}*", "celery-singleton", url)
    if str(once.get("backend", "")).rpartition(".")[2] == "Redis":
        url = once.get("settings", {}).get("url", "redis://localhost:6379/0")
        yield from _locks("qo_*", "celery-once", url)


def _locks(pattern: str, library: str, url: str) -> Iterator[Finding]:
    from redis import RedisError

    where = f"redis: keys {pattern}"
    try:
        with connected(url) as client:
            keys = list(islice(client.scan_iter(match=pattern, count=1000), MANY))
            eternal = sum(client.ttl(key) == NO_EXPIRY for key in keys)
    except (RedisError, OneJobError) as error:
        yield Finding(Level.WARNING, where, f"could not look: {error}", f"locks of {library} may be left", "")
        return
    if keys:
        locks = count_text(len(keys), "lock")
        problem = f"{locks} of {library}, {eternal} without an expiry, such as {min(keys)}"
        meaning = "held by a task of the old library that waits or runs, or left by a process that died"
        cli = f"redis-cli {cli_options(url)}"
        command = f"{cli} --scan --pattern {quote(pattern)} | tr '\\n' '\\0' | xargs -0 -r {cli} del"
        remedy = f"when no process with {library} runs any more: {command}"
        yield Finding(Level.WARNING, where, problem, meaning, remedy)
