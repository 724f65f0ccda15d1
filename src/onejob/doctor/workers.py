"""Checks of workers and jobs: live workers, jobs that wait for a worker, and tasks that no worker runs."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice
from socket import gethostname

from celery import Celery

from onejob.celery.app_state import app_state_of
from onejob.celery.beat.zone_rules import registered_zones, rules_by_zone
from onejob.celery.submission.options import tasks_of
from onejob.errors import ConfigurationError
from onejob.health import zones
from onejob.health.finding import Check, Finding, Installation, Level, count_text, or_ok
from onejob.jobs.lifecycle import State
from onejob.jobs.query import Query
from onejob.jobs.route import Route
from onejob.jobs.timestamps import duration_text
from onejob.jobs.workers import WorkerInfo
from onejob.ledger.reader import JobReader
from onejob.ledger.search import iterate_jobs
from onejob.ledger.stats import known_tasks
from onejob.ledger.stuck import PAGE_SIZE, SCAN_LIMIT, Snapshot, Stuck, why_stuck
from onejob.observability.metrics import WEBHOOK_TASK

HOPELESS = frozenset({Stuck.NOT_SENDABLE, Stuck.NO_WORKER, Stuck.TASK_UNKNOWN, Stuck.QUEUE_NOT_CONSUMED})
"""The reasons why a job is stuck until somebody acts."""

# fmt: off
NO_WORKER = Check("no-worker", "workers", Level.WARNING,
    when="no worker of the ledger is alive",
    meaning="jobs are admitted and wait; nothing recovers, publishes or purges jobs, since the workers sweep",
    remedy="start one: `celery -A APP worker`, with the same onejob_store and onejob_namespace")
LATE = Check("worker-late", "workers", Level.WARNING,
    when="a live worker's heartbeat is late: two thirds of a lease",
    meaning="the worker, or its way to the store, is paused or overloaded: its leases may expire, and its runs are "
    "repeated",
    remedy="look at its log for `heartbeat_late`, and at its machine; a longer onejob_lease survives longer pauses")
SILENT = Check("worker-silent", "workers", Level.WARNING,
    when="a live worker with free slots hears nothing from its broker, while jobs wait for it",
    meaning="its connection to the broker is dead, or the broker does not deliver to it: it takes the jobs from the "
    "ledger, after 15 s, and renews its connection",
    remedy="look at its log for `worker_silent`; if that repeats, at the network between the worker and its broker")
VERSIONS = Check("worker-versions", "workers", Level.WARNING,
    when="live workers have different versions of onejob, Celery, kombu, Python or a driver",
    meaning="harmless during a deployment; what stays behind lacks fixes, and may not support the next schema",
    remedy="finish the deployment: restart the workers with the older versions")
ZONE_RULES = zones.ZONES
TASK_UNKNOWN = Check("task-without-worker", "workers", Level.ERROR,
    when="workers are alive, and none of them has a task of the app",
    meaning="jobs of this task are admitted and never run",
    remedy="start a worker with `-A` of this app, and check that it imports the module of the task")
QUEUE = Check("queue-without-worker", "workers", Level.ERROR,
    when="no live worker that has a task of the app consumes the queue that its jobs are sent to",
    meaning="jobs of this task are admitted and never run",
    remedy="`celery -A APP worker -Q QUEUE`, or correct `task_routes`")
OTHERS = Check("other-services", "workers", Level.WARNING,
    when="live workers of the ledger have none of the app's tasks",
    meaning="two services share one ledger: each recovers and purges the jobs of both, and publishes only its own; "
    "equal names of tasks would be one task",
    remedy="give each service an `onejob_namespace` of its own, unless they are meant to share")
STUCK = Check("jobs-stuck", "jobs", Level.ERROR,
    when="jobs are due, and cannot be sent, or no live worker can run them",
    meaning="they wait until somebody acts, and equal submissions are attached to them",
    remedy="`onejob jobs list --stuck` lists them, `onejob why ID` explains one")
SLOW = Check("jobs-late", "jobs", Level.WARNING,
    when="jobs were due three leases ago and no worker has claimed them, or expired leases were not recovered yet",
    meaning="workers are too few or too busy, or no sweep runs: nothing is lost, and the promise to recover within a "
    "lease is not kept",
    remedy="`onejob jobs list --stuck` lists them; start more workers, and look at their logs for the sweeper")
UNKNOWN = Check("jobs-of-unknown-tasks", "jobs", Level.WARNING,
    when="the ledger has jobs of tasks that neither the app nor any live worker has",
    meaning="they never run: a task was renamed or removed, or its service is down",
    remedy="start the worker that has the task, or cancel the jobs: `onejob jobs cancel`")
DEAD = Check("dead-letters", "jobs", Level.INFO,
    when="there are dead letters",
    meaning="these jobs failed for good, and are kept with their reasons until their retention ends",
    remedy="`onejob dead list`, then `onejob dead redrive` or `onejob dead drop`; alert on onejob_dead_letters")
# fmt: on


def examine(installation: Installation) -> Iterator[Finding]:
    """Examine the live workers, the jobs that have not ended, and the app's routes."""
    ledger, app = installation.ledger, installation.app
    snapshot = Snapshot.of(ledger)
    tasks = frozenset(tasks_of(app)) if app is not None else frozenset[str]()
    findings = chain(
        check_workers(snapshot, installation.settings.heartbeat_late_after),
        zones.check_zones([*((each.name, each.zones) for each in snapshot.workers), *_own_zones(app)]),
        check_tasks(snapshot.workers, _queues_of(app)) if app is not None else (),
        check_jobs(ledger, snapshot, tasks),
    )
    names = ", ".join(worker.name for worker in snapshot.workers[:5])
    yield from or_ok(findings, "workers", f"{len(snapshot.workers)} alive: {names}")


def _own_zones(app: Celery | None) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield this host's time zone rules, by which jobs are submitted here; nothing for an app with an error."""
    if app is not None:
        from onejob.celery.beat.ticks import entries_of  # with which Celery's beat is imported

        with suppress(ConfigurationError):
            entries = entries_of(app) if app_state_of(app).settings.beat else {}
            of_schedule = rules_by_zone(entry.zone for entry in entries.values())
            yield f"this host, {gethostname()}", registered_zones(app, of_schedule)


def check_workers(snapshot: Snapshot, late_after: float) -> Iterator[Finding]:
    """Check that workers are alive, on time, and of one version; `late_after`: seconds since the last heartbeat."""
    if not snapshot.workers:
        yield NO_WORKER.found("no worker is alive")
    for worker in snapshot.workers:
        age = snapshot.now - worker.seen_at
        if age > late_after:
            yield LATE.found(f"the latest heartbeat of {worker.name} was {duration_text(age)} ago")
        if worker.silent_since:
            seconds = duration_text(snapshot.now - worker.silent_since)
            yield SILENT.found(f"{worker.name} has heard nothing from its broker for {seconds}")
    yield from _check_versions(snapshot.workers)


def _check_versions(workers: Iterable[WorkerInfo]) -> Iterator[Finding]:
    found: dict[str, dict[str, str]] = {}
    for worker in workers:
        for text in worker.versions:
            name, _, version = text.partition(" ")
            found.setdefault(name, {}).setdefault(version, worker.name)
    for name, examples in found.items():
        if len(examples) > 1:
            yield VERSIONS.found(f"{name}: " + ", ".join(f"{version} ({who})" for version, who in examples.items()))


def check_tasks(workers: Iterable[WorkerInfo], queues: dict[str, str]) -> Iterator[Finding]:
    """Check that live workers run the tasks. `queues`: by task, the queue of its jobs, "" if it is not known."""
    live = [worker for worker in workers if worker.tasks or worker.queues]
    for task, queue in queues.items() if live else ():
        able = [worker for worker in live if worker.knows(task)]
        if not able:
            yield TASK_UNKNOWN.found(f"no live worker has the task {task}")
        elif queue and not any(queue in worker.queues for worker in able):
            yield QUEUE.found(f"jobs of {task} are sent to {queue}, which no live worker with the task consumes")
    others = [worker.name for worker in live if not any(worker.knows(task) for task in queues)]
    if queues and others:
        yield OTHERS.found(f"live workers without the app's tasks: {', '.join(others[:5])}")


def _queues_of(app: Celery) -> dict[str, str]:
    """Return the queue of each task's jobs; "" where a router function decides, or the queue does not exist."""
    routing, tasks = app_state_of(app).routing, tasks_of(app)
    found = dict.fromkeys(tasks, "")
    for name, task in tasks.items() if routing.is_static() else ():
        with suppress(Exception):  # a queue that does not exist: a submission raises the error
            text, _ = routing.resolve(task, (), {}, task._get_exec_options())  # noqa: SLF001 - as Celery's apply_async
            found[name] = Route.decode(text).queue
    return found


def check_jobs(ledger: JobReader, snapshot: Snapshot, tasks: frozenset[str]) -> Iterator[Finding]:
    """Check the newest jobs that have not ended, and count the dead letters. `tasks` are those of the app."""
    newest = [*islice(iterate_jobs(ledger, Query(unsettled=True), PAGE_SIZE), SCAN_LIMIT)]
    stuck = Counter(reason for job in newest if (reason := why_stuck(ledger, job, snapshot)) is not None)
    of_which = f" of the newest {SCAN_LIMIT:,}" if len(newest) == SCAN_LIMIT else ""
    for reason, count in stuck.most_common():
        yield (STUCK if reason in HOPELESS else SLOW).found(f"{count_text(count, 'job')}{of_which}: {reason}")
    if tasks or snapshot.workers:
        unknown = Counter(
            job.task for job in newest
            if not (job.publisher_task or job.task in tasks or job.task == WEBHOOK_TASK or snapshot.with_task(job.task))
        ) | _count_of_unknown_tasks(ledger, snapshot, tasks)  # fmt: skip
        for task, count in unknown.most_common(5):
            yield UNKNOWN.found(f"{count_text(count, 'job')} of {task}")
    dead = ledger.count_states(limit=SCAN_LIMIT).get(State.FAILED, 0)
    if dead:
        yield DEAD.found(f"{'at least ' if dead >= SCAN_LIMIT else ''}{count_text(dead, 'dead letter')}")


def _count_of_unknown_tasks(ledger: JobReader, snapshot: Snapshot, tasks: frozenset[str]) -> Counter[str]:
    """Return the number of waiting jobs by task, for tasks that neither the app nor a live worker has."""
    known = known_tasks(ledger.store.totals(), snapshot.workers) - tasks - {WEBHOOK_TASK}
    unknown = frozenset(task for task in known if not snapshot.with_task(task))
    found: Counter[str] = Counter()
    for group in ledger.backlog(tasks=unknown, limit=SCAN_LIMIT):
        found[group.task] += group.count
    return found
