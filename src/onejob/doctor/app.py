"""Checks of the app: its settings, as far as they touch the promise, and its broker."""

import sys
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from datetime import timedelta
from itertools import chain
from typing import Any

from celery import Celery

from onejob.celery.app_state import app_state_of
from onejob.celery.messages.broker import SCHEME, connect_to_broker
from onejob.celery.submission import plain_tasks
from onejob.celery.submission.options import tasks_of
from onejob.config import Settings
from onejob.health.finding import Check, Finding, Installation, Level, names_text, or_ok
from onejob.jobs.ledger_settings import RETENTION
from onejob.jobs.lifecycle import State
from onejob.jobs.timestamps import duration_text
from onejob.observability.metrics import BUCKETS, SUM, key_of
from onejob.stores.urls import scheme_of

LONG_RUN = 10.0
"""The seconds from which a run is long: other jobs should not wait behind it."""
VISIBILITY_TIMEOUT = 3600.0
"""The default visibility timeout of kombu, in seconds."""
BUILT_IN = "celery."
PYTHON = sys.version_info[:3]
FIXED_COOKIES = {(3, 11): (3, 11, 10), (3, 12): (3, 12, 6)}
"""The first versions whose `http.cookies` takes time in proportion to the length of a header."""

# fmt: off
CONFIGURATION = Check("invalid-configuration", "app", Level.ERROR,
    when="a task has an option, or the app a setting, that is misspelled or cannot work",
    meaning="no worker of the app starts, and the first calls raise this error",
    remedy="correct the option or the setting that the message names")
BROKER = Check("broker-unreachable", "broker", Level.ERROR,
    when="the broker does not answer",
    meaning="jobs are admitted and wait in the ledger; none starts until a sweep can publish it",
    remedy="correct broker_url, or start the broker")
EAGER = Check("task-always-eager", "app", Level.ERROR,
    when="`task_always_eager` is on",
    meaning="tasks run where they are called, beside the ledger: equal calls run twice, and nothing is kept",
    remedy="`app.conf.task_always_eager = False`; keep it for tests that want it")
PICKLE = Check("pickle", "app", Level.WARNING,
    when="`task_serializer` is `pickle`, or `accept_content` has it",
    meaning="whoever can write to the broker runs code in the workers; jobs need only JSON",
    remedy='`app.conf.task_serializer = "json"` and `app.conf.accept_content = ["json"]`')
PREFETCH = Check("prefetch-long-runs", "app", Level.WARNING,
    when=f"`worker_prefetch_multiplier` is not 1, and runs of more than {LONG_RUN:g} s were seen",
    meaning="a busy worker holds messages that a free one could run: their jobs wait for its long runs",
    remedy="`app.conf.worker_prefetch_multiplier = 1`")
PREFETCH_SHORT = Check("prefetch", "app", Level.INFO,
    when="`worker_prefetch_multiplier` is not 1, and all runs that were seen are short",
    meaning="a worker reserves messages that a free one could run; with short runs nobody waits for long",
    remedy="`app.conf.worker_prefetch_multiplier = 1`, unless throughput of short tasks matters more")
LATE_ACKS = Check("late-acks", "app", Level.INFO,
    when="`task_acks_late` or `task_reject_on_worker_lost` is on for the app or for a onejob task",
    meaning="the ledger recovers jobs by itself: a redelivered message finds its job claimed or ended, and is refused. "
    "It costs a message, and starts nothing twice",
    remedy="leave both out for tasks of class onejob.Task")
VISIBILITY = Check("visibility-timeout", "app", Level.WARNING,
    when="messages are acknowledged late, and runs longer than the broker's `visibility_timeout` were seen",
    meaning="the broker delivers the message again during each such run: it is refused for a job of the ledger, and "
    "runs twice for a task that is not of class onejob.Task",
    remedy='`app.conf.broker_transport_options = {"visibility_timeout": SECONDS}`, more than the longest run; or no '
    "late acknowledgement")
BACKEND = Check("result-backend", "app", Level.INFO,
    when="there is no result backend, or `task_ignore_result` is on",
    meaning="results of jobs are in the ledger, and are read from there; but Celery needs a backend for chords, which "
    "do not continue without one",
    remedy='`app.conf.result_backend = "onejob://"`, the ledger, or another one where chords are used, and '
    "`task_ignore_result` only for tasks in none")
EXPIRES = Check("result-expires", "app", Level.INFO,
    when="`result_expires` is shorter than the ledger keeps completed jobs, or a task's `unique_for`",
    meaning="a client of Celery that reads the result backend no longer finds a result that the ledger still answers "
    "duplicates with",
    remedy="`app.conf.result_expires` at least as long as `onejob_retention['completed']`, or read by onejob's results")
PRIORITIES = Check("priorities", "app", Level.WARNING,
    when="tasks have priorities, and their queue in RabbitMQ has no `x-max-priority`",
    meaning="the broker ignores the priorities: jobs run in the order of their publication",
    remedy="`app.conf.task_queue_max_priority = 10`; a queue that exists has to be deleted first")
PRIORITY_PREFETCH = Check("priority-prefetch", "app", Level.WARNING,
    when="tasks have priorities, and `worker_prefetch_multiplier` is not 1",
    meaning="what a worker has prefetched runs before a more urgent job that is published later",
    remedy="`app.conf.worker_prefetch_multiplier = 1`")
GRACE = Check("shutdown-grace", "app", Level.INFO,
    when=f"`onejob_shutdown_grace` is 0, and runs of more than {LONG_RUN:g} s were seen",
    meaning="each deployment ends the runs of the stopped workers and requeues them: no job is lost, and the work of a "
    "run is done again from its last kept step",
    remedy="`app.conf.onejob_shutdown_grace = SECONDS`, less than the process manager waits before it kills the worker")
SCHEDULES = Check("schedule-off", "app", Level.WARNING,
    when="tasks have a `schedule`, and `onejob_beat` is off",
    meaning="nobody submits them: Celery's own beat reads `beat_schedule` only",
    remedy="`app.conf.onejob_beat = True`")
PLAIN_TASK = Check("task-without-base", "app", Level.ERROR,
    when="a task has options that only `onejob.Task` reads, as `unique_on` or `on_duplicate`, and is not of this class",
    meaning=plain_tasks.MEANING,
    remedy=plain_tasks.REMEDY)
NO_TASKS = Check("no-onejob-task", "app", Level.WARNING,
    when="the broker is `onejob://`, and the app has no task of class onejob.Task",
    meaning="Celery knows that broker where onejob.celery is imported, as with such a task: a process without it "
    "raises `KeyError: 'No such transport: onejob'` when it sends a message; and its workers do not sweep the ledger",
    remedy="give a task `base=onejob.Task`; an app that shall have none imports `onejob.celery` beside `celery`")
PYTHON_COOKIES = Check("python-cookies", "app", Level.INFO,
    when="tasks are exposed over HTTP, and Python is older than 3.11.10 or 3.12.6",
    meaning="its `http.cookies` takes seconds for one hostile `Cookie` header, in which the server answers nobody "
    "(CVE-2024-7592). onejob's API and pages refuse such a header; other routes and middleware of your app may not",
    remedy="upgrade Python to 3.11.10, 3.12.6 or 3.13, or let the proxy refuse long `Cookie` headers")
# fmt: on


class Seen:
    """The facts about all runs so far that follow from the totals of a ledger."""

    def __init__(self, totals: Mapping[str, float]) -> None:
        keys = {key: amount for name, amount in totals.items() if (key := key_of(name)) and amount > 0}
        bounds = [float(key[-1]) for key in keys if key[0] == "run_seconds" and key[-1] != SUM]
        self.longest = [0.0, *BUCKETS][bisect_left(BUCKETS, max(bounds, default=0.0))]
        """Seconds that the longest run took at least; 0 without one."""
        self.text = f"runs took {duration_text(self.longest)} or more (a lost run counts until its lease ended)"


def examine(installation: Installation) -> Iterator[Finding]:
    """Examine the settings of the app, if one is given."""
    app, settings = installation.app, installation.settings
    if app is None:
        return
    seen = Seen(installation.ledger.store.totals())
    findings = chain(
        _check_broker(app), _check_messages(app), _check_prefetch(app, seen), _check_acks(app, seen),
        _check_results(app, settings), _check_priorities(app), _check_tasks(app, settings, seen),
    )  # fmt: skip
    yield from or_ok(findings, "app", f"the settings of Celery fit the onejob tasks, {len(tasks_of(app))} in all")


def _check_broker(app: Celery) -> Iterator[Finding]:
    try:
        with connect_to_broker(app):
            pass
    except Exception as error:  # noqa: BLE001 - any transport's error
        yield BROKER.found(f"{app.connection_for_write().as_uri()} does not answer: {error!r:.200}")


def _check_messages(app: Celery) -> Iterator[Finding]:
    conf = app.conf
    if conf.task_always_eager:
        yield EAGER.found("task_always_eager is True")
    accepted = {str(each).rpartition("-")[2] for each in conf.accept_content or ()}
    if conf.task_serializer == "pickle" or "pickle" in accepted:
        yield PICKLE.found(f"task_serializer is {conf.task_serializer}, accept_content {sorted(accepted)}")


def _check_prefetch(app: Celery, seen: Seen) -> Iterator[Finding]:
    if not _prefetches(app) or getattr(app.conf, "worker_disable_prefetch", False):
        return
    found = f"worker_prefetch_multiplier is {app.conf.worker_prefetch_multiplier}"
    yield PREFETCH.found(f"{found}, and {seen.text}") if seen.longest >= LONG_RUN else PREFETCH_SHORT.found(found)


def _prefetches(app: Celery) -> bool:
    """Return whether workers receive jobs that they cannot run yet; they do not where the ledger delivers."""
    return app.conf.worker_prefetch_multiplier != 1 and not app_state_of(app).publisher.handover.takes_jobs


def _check_acks(app: Celery, seen: Seen) -> Iterator[Finding]:
    tasks: Mapping[str, Any] = tasks_of(app)
    late = [name for name, task in tasks.items() if task.acks_late or task.reject_on_worker_lost]
    if late:
        yield LATE_ACKS.found(f"task_acks_late or task_reject_on_worker_lost is on for {names_text(late)}")
    others = [name for name, task in app.tasks.items() if task.acks_late and not name.startswith(BUILT_IN)]
    driver = app.connection_for_read().transport.driver_type
    options = app.conf.broker_transport_options or {}
    timeout = float(options.get("visibility_timeout") or VISIBILITY_TIMEOUT)
    if others and driver in {"redis", "sqs"} and seen.longest >= timeout:
        yield VISIBILITY.found(f"the visibility_timeout is {duration_text(timeout)}, and {seen.text}")


def _check_results(app: Celery, settings: Settings) -> Iterator[Finding]:
    conf = app.conf
    if not conf.result_backend or conf.task_ignore_result:
        yield BACKEND.found("task_ignore_result is True" if conf.result_backend else "there is no result_backend")
        return
    if scheme_of(str(conf.result_backend)) == SCHEME:  # it reads the ledger
        return
    windows = [options.window.longest for task in tasks_of(app).values() if (options := task._onejob).window]
    kept = max([settings.retention.get(State.COMPLETED, RETENTION[State.COMPLETED]), *windows])
    expires = conf.result_expires
    seconds = expires.total_seconds() if isinstance(expires, timedelta) else float(expires or 0)
    if 0 < seconds < kept:
        yield EXPIRES.found(
            f"result_expires is {duration_text(seconds)}, and the ledger answers for up to {duration_text(kept)}"
        )


def _check_priorities(app: Celery) -> Iterator[Finding]:
    conf, default = app.conf, app.conf.task_default_priority
    used = [name for name, task in tasks_of(app).items() if {default, getattr(task, "priority", None)} != {None}]
    if not used:
        return
    found = f"{names_text(used)} with priorities, and"
    if app.connection_for_write().transport.driver_type == "amqp":
        queues: Mapping[str, Any] = app.amqp.queues
        plain = [
            name for name, queue in queues.items()
            if not queue.max_priority and "x-max-priority" not in (queue.queue_arguments or {})
        ]  # fmt: skip
        if plain:
            yield PRIORITIES.found(f"{found} none in the queues {names_text(plain)}")
    if _prefetches(app):
        yield PRIORITY_PREFETCH.found(f"{found} worker_prefetch_multiplier is {conf.worker_prefetch_multiplier}")


def _check_tasks(app: Celery, settings: Settings, seen: Seen) -> Iterator[Finding]:
    yield from (PLAIN_TASK.found(str(task)) for task in plain_tasks.plain_tasks(app))
    options = {name: task._onejob for name, task in tasks_of(app).items()}
    if not options and app_state_of(app).publisher.handover.takes_jobs:
        yield NO_TASKS.found("broker_url is onejob://, and no task is of class onejob.Task")
    if not settings.shutdown_grace and seen.longest >= LONG_RUN:
        yield GRACE.found(f"{seen.text}, and onejob_shutdown_grace is 0")
    scheduled = [name for name, each in options.items() if each.schedule is not None]
    if scheduled and not settings.beat:
        yield SCHEDULES.found(f"onejob_beat is False, and these have a schedule: {names_text(scheduled)}")
    if any(each.expose for each in options.values()) and FIXED_COOKIES.get(PYTHON[:2], (0,)) > PYTHON:
        yield PYTHON_COOKIES.found(f"Python is {'.'.join(map(str, PYTHON))}")
