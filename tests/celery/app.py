"""The app under test, built from one JSON text: by a worker from its environment, by a test for its own submissions.

Every body records what it does in a file that all processes append to, and waits for gates that the test opens: so runs
are counted, and nothing has to be timed.
"""

import asyncio
import json
import logging
import os
import re
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import celery
from celery.exceptions import Ignore, Reject

import onejob
from onejob.celery.submission.options import tasks_of
from onejob.celery.worker import acknowledgements
from onejob.errors import StoreRefusedError, describe
from onejob.ledger import ledger
from onejob.logs import JsonFormatter
from tests.celery.odd_errors import BASES, ERRORS
from tests.celery.reports import append, lines_of, report_to, trace_to
from tests.celery.task_classes import CLASSES, Hooked, Own, depth
from tests.intervals import read_intervals

CONFIG = "ONEJOB_TEST_APP"
"""Environment variable: the configuration of a worker's app, as JSON."""
HOOK = "ONEJOB_TEST_HOOK"
"""Environment variable: the faults that the worker's processes have, see `fault`."""
WEBHOOK_URL = "test_webhook_url"
"""Name in the configuration: the webhook URL of `play_webhook`."""
PROVOKES = "provokes"
"""The event of a mark: the body ends its run without a result as it was told, with this error in the worker's log."""
WITHOUT = "ONEJOB_TEST_WITHOUT"
"""Environment variable: the name of a task that is not registered in the worker."""
ONLY = "test_only"
"""Name in the configuration: the names of the onejob tasks that the app has; without it, all."""
PLAIN = "test_plain"
"""Name in the configuration: whether the app has tasks of Celery's own class; without it, it has."""

SENTRY = "test_sentry"
"""Name in the configuration: workers report to Sentry, with these options; the reports are in the directory."""
JSON_LOGS = "test_json_logs"
"""Name in the configuration: worker processes log lines of JSON, as the page on observability has it."""
TRACED = "test_traced"
"""Name in the configuration: workers write their spans to the directory, at once or (`batch`) when they flush."""

LATE = "test_late"
"""Name in the configuration: settings that a worker gets in this signal, `celeryd_init` or `worker_init`, only."""

ACK_DELAY = "test_ack_delay"
"""Name in the configuration: the seconds for which an acknowledgement to RabbitMQ waits for others in a worker."""

TENANT = "test_tenant"
"""Name in the configuration: the tenant in this process, which the app adds to each message that it publishes."""


def group_of(key: str, **_: object) -> str:
    """Return the group of a key, by which tasks are limited: the part before the first dash."""
    return key.partition("-")[0]


VARIANTS: dict[str, dict[str, Any]] = {
    "play": {},
    "play_acks_late": {"acks_late": True, "reject_on_worker_lost": True},
    "play_time_limit": {"time_limit": 3},
    "play_soft_limit": {"soft_time_limit": 3},
    "play_autoretry": {"autoretry_for": (ValueError,), "max_retries": 2, "default_retry_delay": 0},
    "play_retry_most": {"autoretry_for": (Exception,), "permanent_for": (LookupError,), "default_retry_delay": 0},
    "play_retry_all": {"autoretry_for": (Exception,), "max_retries": 2, "default_retry_delay": 0},
    "play_retry_on_loss": {"retry_on_worker_lost": True, "max_retries": 5, "default_retry_delay": 0},
    "play_no_result": {"ignore_result": True},
    "play_long_lease": {"lease": 30},
    "play_short_lease": {"lease": 3},
    "play_unique_for": {"unique_for": 3600},
    "play_until_started": {"unique_until": "started"},
    "play_daily": {"unique_for": "day@America/Vancouver"},
    "play_raise": {"on_duplicate": "raise"},
    "play_capture_logging": {"capture_logging": True},
    "play_requires_key": {"requires_key": True},
    "play_limited": {"limits": [onejob.Limit(group_of, name="group", running=2)]},
    "play_rated": {"limits": [onejob.Limit(group_of, name="pace", rate="20/second", burst=1)]},
    "play_limited_twice": {
        "limits": [onejob.Limit(group_of, name="group", running=2), onejob.Limit(name="all", running=3)]
    },
    "play_replace": {"on_duplicate": "replace", "max_wait": 600},
    "play_run_again": {"on_duplicate": "run_again"},
    "play_before_start": {"base": "with before_start"},
    **{name: {"base": kind} for name, kind in CLASSES.items()},
    "play_hooked": {"base": Hooked},
    "play_own_auto": {"base": Own, "autoretry_for": (ValueError,), "max_retries": 2, "default_retry_delay": 0},
}
"""Tasks with the same body and other options; of all, only the key is the identity."""


class Checkpoints:
    """The checkpoints of bodies: marks that they leave, and gates that they wait at until the test opens them."""

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)

    def mark(self, key: str, event: str, **more: Any) -> None:
        """Record what a body does."""
        entry = {"key": key, "event": event, "pid": os.getpid(), "ppid": os.getppid(), "at": time.monotonic(), **more}
        append(self.directory / "effects", [json.dumps(entry, default=repr)])

    def marks(self, key: str) -> list[dict[str, Any]]:
        """Return what bodies with a key have recorded."""
        return [entry for entry in lines_of(self.directory / "effects") if entry["key"] == key]

    def wait(self, gate: str) -> None:
        """Wait until the test opens a gate."""
        while not (self.directory / f"gate-{gate}").exists():
            time.sleep(0.005)


def build(config: dict[str, Any]) -> celery.Celery:
    """Return an app with all tasks of the tests."""
    app = (TenantCelery if TENANT in config else celery.Celery)("tests", changes=config)
    read_intervals(app, config)
    checkpoints = Checkpoints(config["test_directory"])
    without = os.environ.get(WITHOUT)
    for define in (_plays, _coroutine_plays, _plain_onejob_tasks, _steps):
        define(app, checkpoints)
    if config.get(PLAIN, True):
        _celery_tasks(app, checkpoints)
        _failing_tasks(app, checkpoints)
    missing = {*tasks_of(app)} - set(config[ONLY]) if ONLY in config else {without} if without else set()
    for name in missing:
        app.tasks.unregister(name)
    return app


def _log_json(logger: logging.Logger, **_: Any) -> None:
    for handler in logger.handlers:
        handler.setFormatter(JsonFormatter())


class TenantCelery(celery.Celery):
    """An app that adds the tenant of its process to each message, as packages for tenants do."""

    def send_task(self, *args: Any, **options: Any) -> Any:
        """Send a message with the tenant."""
        given = options.pop("headers", None) or {}
        return super().send_task(*args, headers={**given, "tenant": self.conf[TENANT]}, **options)


def _plays(app: celery.Celery, checkpoints: Checkpoints) -> None:
    define: Any = app.task  # the published types know no task that a base class gives options
    url = app.conf.get(WEBHOOK_URL)
    for name, options in (VARIANTS | ({"play_webhook": {"webhook_url": url}} if url else {})).items():
        base = options.get("base", onejob.Task)
        given = options | {"base": _prepared(checkpoints) if isinstance(base, str) else base}
        define(_play(checkpoints), name=name, shared=False, bind=True, unique_on=["key"], **given)


def _prepared(checkpoints: Checkpoints) -> type[onejob.Task]:
    class Prepared(onejob.Task):
        abstract = True

        def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
            """Do what the data of a call says, in its first run."""
            key, _, instruction = (*args, None)[:3]
            if instruction is not None and onejob.current_job().attempt == 1:
                checkpoints.mark(key, "run", job=task_id, attempt=1)
                act(self, checkpoints, key, instruction, None)

    return Prepared


def _play(checkpoints: Checkpoints) -> Any:
    def play(self: onejob.Task, key: str, acts: list[Any], data: Any = None) -> Any:
        """Do what `acts` says for this attempt; the last act is for all attempts that follow."""
        job = onejob.current_job()
        checkpoints.mark(key, "run", task=self.name, job=job.id, attempt=job.attempt, data=data)
        result = act(self, checkpoints, key, acts[min(job.attempt, len(acts)) - 1], data)
        checkpoints.mark(key, "end", job=job.id, attempt=job.attempt)
        return result

    return play


def act(task: onejob.Task, checkpoints: Checkpoints, key: str, what: str, data: Any) -> Any:
    """Do one act after the other, as in `hold:gate>kill`; the last one's value counts."""
    value = None
    for one in what.split(">"):
        name, _, argument = one.partition(":")
        value = ACTS[name](Act(task, checkpoints, key, argument, data))
    return value


class Act(NamedTuple):
    """What one act knows."""

    task: onejob.Task
    checkpoints: Checkpoints
    key: str
    argument: str
    data: Any

    def wait(self) -> str:
        """Wait for the gate of the argument, or of the key."""
        self.checkpoints.wait(self.argument or self.key)
        return self.key

    def is_open(self) -> bool:
        """Return whether that gate is open."""
        return (self.checkpoints.directory / f"gate-{self.argument or self.key}").exists()

    def announce(self, error: str | None = None) -> None:
        """Announce that the run ends without its result, with an error in the worker's log."""
        self.checkpoints.mark(self.key, PROVOKES, job=onejob.current_job().id, error=error)

    def retry(self, **options: Any) -> Any:
        """Retry the job."""
        self.announce()
        return self.task.retry(**options)

    def submit(self) -> Any:
        """Submit the task that the argument names, from inside the body."""
        return self.task.app.tasks[self.argument].delay(*self.data)

    def replace(self, queue: str | None = None) -> Any:
        """Replace the job by the tasks that the argument names."""
        signatures = [self.task.app.signature(name, args=tuple(self.data)) for name in self.argument.split(",")]
        replacement = signatures[0] if len(signatures) == 1 else celery.chain(*signatures, app=self.task.app)
        return self.task.replace(replacement.set(queue=queue) if queue else replacement)


def _raise(error: type[BaseException]) -> Any:
    def act_raise(act: Act) -> None:
        raised = error(act.argument or act.key)
        told = RuntimeError(f"the task raised {describe(raised)}, which is no Exception")
        act.announce(f"raised unexpected: {(raised if isinstance(raised, Exception) else told)!r}\n")
        raise raised

    return act_raise


def _odd(act: Act) -> None:
    act.announce("raised unexpected: ")
    raise (ERRORS | BASES)[act.argument](act.key)


def _kill(act: Act) -> None:
    act.announce(f"pid:{os.getpid()} exited with 'signal 9 (SIGKILL)'")
    os.kill(os.getpid(), signal.SIGKILL)


def _stay(act: Act) -> str:
    """Ignore the termination signal."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    act.checkpoints.mark(act.key, "stays")
    return act.wait()


def _retry_caught(act: Act) -> None:
    cause = (LookupError if act.argument == "lookup" else ValueError)(f"the cause of {act.key}")
    act.announce(f"raised unexpected: {cause!r}\n")
    try:
        raise cause
    except (LookupError, ValueError) as error:
        raise act.task.retry(exc=error, countdown=0, max_retries=1) from None


def _retry_on(act: Act) -> str:
    act.retry(countdown=0, throw=False)
    return act.key


def _replace_chord(act: Act) -> Any:
    """Replace the job by a chord of two, whose body is the named task."""
    header = [act.task.app.signature("echo", args=(value,)) for value in act.data[0]]
    return act.task.replace(celery.chord(header, act.task.app.signature(act.argument, args=tuple(act.data[1]))))


def _replace_by(act: Act) -> Any:
    """Replace the job by the canvas of its data."""
    return act.task.replace(canvas_of(act.task.app, act.data))


def _wait_for(act: Act) -> Any:
    """Submit a call, and wait for its end as Celery permits it to those who insist."""
    try:
        return act.submit().get(timeout=5, disable_sync_subtasks=False)
    except (onejob.OneJobError, TimeoutError) as error:
        return str(error)


def _add_to_chord(act: Act) -> str:
    """Add a call to the chord of which the running job is a member."""
    act.task.add_to_chord(canvas_of(act.task.app, act.data))
    return act.key


def canvas_of(app: celery.Celery, data: Any) -> Any:
    """Return a call of a task for `[name, *args]`, and a canvas for a dict with a `chain`, a `group` or a `chord`.

    A canvas has the list of its members; of a `chord` the last one is the body. A `call` is a signature with options,
    as JSON.
    """
    if isinstance(data, dict):
        ((kind, members),) = data.items()
        if kind == "call":
            return celery.Signature.from_dict(members, app=app)
        parts = [canvas_of(app, member) for member in members]
        if kind == "chord":
            return celery.chord(parts[:-1], parts[-1], app=app)
        build = {"chain": celery.chain, "group": celery.group}[kind]
        return build(*parts, app=app)
    return app.signature(data[0], args=data[1:], immutable=True)


def _mutate(act: Act) -> Any:
    act.data["spoiled"] = True
    return act.data


def _mutate_and_retry(act: Act) -> Any:
    _mutate(act)
    return act.retry(countdown=0)


def _progress(act: Act) -> str:
    """Report one half, wait for the gate, report the other."""
    onejob.current_job().progress(1, 2, stage="half")
    act.checkpoints.mark(act.key, "half")
    act.wait()
    onejob.current_job().progress(2, 2)
    return act.key


def _update_state(state: str) -> Any:
    def update(act: Act) -> str:
        """Set a state, and wait for the gate."""
        act.task.update_state(state=state, meta=act.data)
        act.checkpoints.mark(act.key, "updated")
        return act.wait()

    return update


def _poll_progress(act: Act) -> str:
    """Report progress until the gate opens."""
    for done in count(1):
        if act.is_open():
            break
        onejob.current_job().progress(done)
        time.sleep(0.02)
    return act.key


def _hog(act: Act) -> str:
    """Hold the interpreter's lock in one call after the other, until the gate opens."""
    while not act.is_open():
        re.match(r"(a+)+$", "a" * 22 + "b")
    return act.key


def _reject(act: Act) -> None:
    act.announce(f"Task {act.task.name}[{act.task.request.id}] reject requeue=False")
    raise Reject("as the test requested", requeue=False)


def _requeue(act: Act) -> None:
    act.announce()
    raise Reject("as the test requested", requeue=True)


def _unstorable_step(act: Act) -> Any:
    act.announce("InvalidPayloadError(\"the value of step 'set' cannot be stored as JSON")
    return onejob.current_job().step("set", lambda: {1, 2})


def _unstorable(act: Act) -> object:
    act.announce("InvalidPayloadError('the result cannot be stored as JSON")
    return object()


def _typed(act: Act) -> object:
    act.announce('InvalidPayloadError("the result cannot be stored: a mapping')
    return {"__type__": "datetime", "__value__": "2026-11-21T00:00:00"}


ACTS: dict[str, Callable[[Act], Any]] = {
    "return": lambda act: act.data if act.data is not None else act.argument or act.key,
    "attempt": lambda _: [onejob.current_job().attempt, onejob.current_job().token],
    "redelivered": lambda act: bool((act.task.request.delivery_info or {}).get("redelivered")),
    "tenant": lambda act: (act.task.request.headers or {}).get("tenant"),
    "headers": lambda act: act.task.request.headers,
    "depth": lambda act: [depth.get(), act.task.request.id == onejob.current_job().id],
    "log": lambda act: onejob.current_job().log(act.argument, key=act.key),
    "logging": lambda act: logging.getLogger("shop").warning(act.argument),
    "hold": Act.wait,
    "stay": _stay,
    "poll": _poll_progress,
    "hog": _hog,
    "raise": _raise(ValueError),
    "lookup": _raise(LookupError),
    "permanent": _raise(onejob.PermanentError),
    "odd": _odd,
    "retry_odd": lambda act: act.retry(exc=(ERRORS | BASES)[act.argument](act.key), countdown=0, max_retries=1),
    "refused": _raise(StoreRefusedError),
    "base": _raise(KeyboardInterrupt),
    "cancelled": _raise(asyncio.CancelledError),
    "exit": _raise(SystemExit),
    "ignore": _raise(Ignore),
    "reject": _reject,
    "requeue": _requeue,
    "kill": _kill,
    "typed": _typed,
    "unstorable": _unstorable,
    "unstorable_step": _unstorable_step,
    "mutate": _mutate,
    "retry": lambda act: act.retry(countdown=float(act.argument or 0)),
    "retry_for": lambda act: act.retry(exc=LookupError(act.argument), countdown=3600),
    "retry_other": lambda act: act.retry(args=(act.key, [act.argument]), countdown=0),
    "retry_to": lambda act: act.retry(countdown=0, queue=act.argument),
    "retry_caught": _retry_caught,
    "retry_on": _retry_on,
    "mutate_and_retry": _mutate_and_retry,
    "replace": Act.replace,
    "replace_chord": _replace_chord,
    "replace_by": _replace_by,
    "add_to_chord": _add_to_chord,
    "replace_elsewhere": lambda act: act.replace("elsewhere"),
    "submit": lambda act: act.submit().id,
    "return_result": Act.submit,
    "wait_for": _wait_for,
    "call": lambda act: act.task.app.tasks[act.argument](*act.data),
    "progress": _progress,
    "cost": lambda act: onejob.current_job().cost(usd=act.argument, tokens=1),
    "update_state": _update_state("INDEXING"),
    "update_standard": _update_state("STARTED"),
}


# --- bodies that are coroutines --------------------------------------------------------------------------------------


COROUTINES: dict[str, dict[str, Any]] = {
    "await_play": {},
    "await_play_soft": {"soft_time_limit": 1},
    "await_play_hard": {"time_limit": 1, "autoretry_for": (Exception,)},
    "await_play_autoretry": VARIANTS["play_autoretry"],
    "await_play_limited": VARIANTS["play_limited"],
}
"""Tasks whose body is a coroutine, by their options."""


def _coroutine_plays(app: celery.Celery, checkpoints: Checkpoints) -> None:
    define: Any = app.task
    for name, options in COROUTINES.items():
        body = _await_play(checkpoints)
        define(body, name=name, shared=False, bind=True, unique_on=["key"], base=onejob.Task, **options)


def _await_play(checkpoints: Checkpoints) -> Any:
    async def play(self: onejob.Task, key: str, acts: list[Any], data: Any = None) -> Any:
        """Do what `acts` says for this attempt, and wait as coroutines do."""
        job = onejob.current_job()
        checkpoints.mark(key, "run", task=self.name, job=job.id, attempt=job.attempt, data=data)
        what = acts[min(job.attempt, len(acts)) - 1]
        try:
            result = await _await_act(self, checkpoints, key, what, data)
        except asyncio.CancelledError as error:
            checkpoints.mark(key, "interrupted", job=job.id, reason=str(error))
            raise
        checkpoints.mark(key, "end", job=job.id, attempt=job.attempt)
        return result

    return play


async def _await_act(task: onejob.Task, checkpoints: Checkpoints, key: str, what: str, data: Any) -> Any:
    value = None
    for one in what.split(">"):
        name, _, argument = one.partition(":")
        found = Act(task, checkpoints, key, argument, data)
        value = await AWAITED[name](found) if name in AWAITED else ACTS[name](found)
    return value


async def _await_gate(act: Act) -> str:
    while not act.is_open():  # noqa: ASYNC110 - another process opens it
        await asyncio.sleep(0.005)
    return act.key


async def _swallow(act: Act) -> str:
    """Go on after each interruption, until the gate opens."""
    while not act.is_open():
        try:
            await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            act.checkpoints.mark(act.key, "swallowed")
    return act.key


async def _block(act: Act) -> str:
    """Hold the event loop, and give it time afterwards to say so."""
    time.sleep(float(act.argument))  # noqa: ASYNC251 - what the test is about
    await asyncio.sleep(0.5)
    return act.key


async def _hog_loop(act: Act) -> str:
    """Hold the event loop until the end of the run."""
    time.sleep(float(act.argument))  # noqa: ASYNC251 - as above
    return act.key


async def _ask_children(act: Act) -> list[bool]:
    """Return whether the tasks and the threads of a body know its request, and its job."""

    def ids() -> tuple[Any, str]:
        return act.task.request.id, onejob.current_job().id

    async def child() -> tuple[Any, str]:
        await asyncio.sleep(0)
        return ids()

    found = await asyncio.gather(child(), asyncio.to_thread(ids))
    return [each == ids() for each in found]


AWAITED: dict[str, Callable[[Act], Awaitable[Any]]] = {
    "hold": _await_gate,
    "swallow": _swallow,
    "block": _block,
    "hog": _hog_loop,
    "children": _ask_children,
}
"""The acts of coroutines that wait; the others are those of functions."""


def _plain_onejob_tasks(app: celery.Celery, checkpoints: Checkpoints) -> None:
    @app.task(name="add", shared=False, base=onejob.Task)
    def add(a: Any, b: Any = 2) -> Any:
        checkpoints.mark("add", "run", args=[a, b], job=onejob.current_job().id)
        return a + b

    @app.task(name="echo", shared=False, base=onejob.Task)
    def echo(value: Any) -> Any:
        checkpoints.mark("echo", "run", value=repr(value), job=onejob.current_job().id)
        return value

    @app.task(name="note", shared=False, base=onejob.Task, unique_on=["key"])
    def note(value: Any, key: str) -> Any:
        """Take the result of the task before as the first argument."""
        checkpoints.mark(key, "run", value=value, job=onejob.current_job().id)
        return [key, value]

    @app.task(name="keeps", shared=False, base=onejob.Task, unique_on=["key"], unique_for=3600)
    def keeps(key: str, value: Any = None) -> Any:
        """Return a value that is kept for a while."""
        checkpoints.mark(key, "run", job=onejob.current_job().id)
        return value

    @app.task(name="anywhere", shared=False, base=onejob.Task, unique_on=["key"])
    def anywhere(key: str) -> str:
        """Do the same inside and outside of a job."""
        checkpoints.mark(key, "run")
        return key

    @app.task(name="strange", shared=False, base=onejob.Task)
    def strange(key: str) -> None:
        """Fail with a class that no other process has."""
        error = type("StrangeError", (Exception,), {"__module__": "nowhere_else"})
        raise error(f"how {key}")

    @app.task(name="waits", shared=False, base=onejob.Task)
    def waits(key: str, job_id: str) -> Any:
        """Wait for another job inside of a body, which Celery forbids."""
        checkpoints.mark(key, "run")
        return echo.AsyncResult(job_id).get(timeout=1)


def _steps(app: celery.Celery, checkpoints: Checkpoints) -> None:
    @app.task(name="run_steps", shared=False, base=onejob.Task, unique_on=["key"])
    def run_steps(key: str, steps: list[str], acts: dict[str, str] | None = None) -> list[str]:
        """Take the steps; `acts` says what happens before a step: in the first attempt, or `always`."""
        job = onejob.current_job()
        checkpoints.mark(key, "run", job=job.id, attempt=job.attempt)
        done = []
        for name in steps:
            what = (acts or {}).get(name)
            if what is not None and (job.attempt == 1 or what.startswith("always ")):
                checkpoints.mark(key, f"before {name}")
                act(run_steps, checkpoints, key, what.removeprefix("always "), None)
            done.append(job.step(name, take, key, name))
        checkpoints.mark(key, "end", job=job.id, attempt=job.attempt)
        logging.getLogger("test").info("steps done")
        return done

    @app.task(name="fail_first", shared=False, base=onejob.Task, autoretry_for=(ValueError,), default_retry_delay=0)
    def fail_first(key: str) -> str:
        """Take a step that fails the first time."""
        return onejob.current_job().step("fails", fail_once, key)

    def fail_once(key: str) -> str:
        checkpoints.mark(key, "try")
        if onejob.current_job().attempt > 1:
            return "second try"
        raise ValueError(key)

    def take(key: str, name: str) -> str:
        checkpoints.mark(key, f"step {name}")
        return f"{name} by {os.getpid()}"


def _celery_tasks(app: celery.Celery, checkpoints: Checkpoints) -> None:
    @app.task(name="plain", shared=False)
    def plain(*args: Any) -> Any:
        checkpoints.mark("plain" if not args else str(args[-1]), "plain", args=list(args))
        return list(args)

    @app.task(name="hold", shared=False, acks_late=True)
    def hold(key: str) -> str:
        """Wait for a gate; the message is acknowledged at the end."""
        checkpoints.mark(key, "run")
        checkpoints.wait(key)
        return key

    @app.task(name="await_plain", shared=False)
    async def await_plain(key: str) -> None:
        checkpoints.mark(key, "run")
        try:
            while True:
                await asyncio.sleep(0.005)
                if (checkpoints.directory / f"gate-{key}").exists():
                    break
        finally:
            checkpoints.mark(key, "end")


def _failing_tasks(app: celery.Celery, checkpoints: Checkpoints) -> None:
    @app.task(name="fails_plainly", shared=False, throws=(ArithmeticError,))
    def fails_plainly() -> None:
        raise ArithmeticError("plainly")

    @app.task(name="fails_once", shared=False, throws=(ArithmeticError,))
    def fails_once(key: str) -> str:
        checkpoints.mark(key, "run")
        if len(checkpoints.marks(key)) == 1:
            raise ArithmeticError(key)
        return key

    @app.task(name="gather", shared=False)
    def gather(values: Any, key: str) -> Any:
        checkpoints.mark(key, "gather", values=values)
        return values

    @app.task(name="errback", shared=False)
    def errback(request: Any, error: Any, traceback: Any, key: str) -> None:
        """Record the call of an errback."""
        checkpoints.mark(key, "errback", error=repr(error))


# --- faults ---------------------------------------------------------------------------------------------------------


def fault(name: str) -> None:
    """Give the processes of this worker a fault: its method dies before or after, once, or fails thrice."""
    method, how = FAULTS[name]
    done = Path(json.loads(os.environ[CONFIG])["test_directory"]) / f"done-{name}"
    original, left = getattr(ledger.Ledger, method), [1, 2, 3]

    def faulty(self: Any, *args: Any, **values: Any) -> Any:
        if how == "fails" and args[0] and left:
            left.pop()
            raise onejob.StoreUnavailableError("as the test requested")
        if how == "before":
            _die_once(done)
        answer = original(self, *args, **values)
        if how == "after":
            _die_once(done)
        return answer

    setattr(ledger.Ledger, method, faulty)


FAULTS = {
    "die-before-claim": ("claim", "before"), "die-before-dispatch": ("complete", "after"),
    "renew-fails": ("renew", "fails"),
}  # fmt: skip


def _die_once(done: Path) -> None:
    with suppress(FileExistsError):
        done.touch(exist_ok=False)
        os.kill(os.getpid(), signal.SIGKILL)


if CONFIG in os.environ:
    app = build(json.loads(os.environ[CONFIG]))
    for sent, settings in app.conf.get(LATE, {}).items():
        getattr(celery.signals, sent).connect(lambda settings=settings, **_: app.conf.update(settings), weak=False)
    if app.conf.get(JSON_LOGS):
        celery.signals.after_setup_logger.connect(_log_json)
        celery.signals.after_setup_task_logger.connect(_log_json)
    if SENTRY in app.conf:
        report_to(Path(app.conf["test_directory"]), **app.conf[SENTRY])
    if TRACED in app.conf:
        trace_to(Path(app.conf["test_directory"]), batch=app.conf[TRACED] == "batch")
    acknowledgements.ACK_DELAY = app.conf.get(ACK_DELAY, acknowledgements.ACK_DELAY)
    if HOOK in os.environ:
        fault(os.environ[HOOK])
