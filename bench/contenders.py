"""What is compared with what: the contenders, and the processes in which they run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO, cast

from bench.peers import LIBRARIES, common
from onejob.config import NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PEERS = Path(os.environ.get("ONEJOB_BENCH_PEERS", Path(__file__).parents[1] / ".bench" / "venv"))
"""The environment of the other libraries, which `make bench` sets up."""
OWN = frozenset({"protected", "coroutines", "limited"})
"""The modules in `bench.peers` that are ours."""
QUEUE, RESULT_STORE = "$queue", "$results"
"""Stand for the name of a queue, and for the URL of a Redis, in the settings of a contender."""
RESULTS = {"result_backend": RESULT_STORE}
"""Celery stores results in a Redis: in that of its messages, if there is one."""
OWN_QUEUE = {"task_default_queue": QUEUE}
"""On a RabbitMQ that is not ours alone."""


@dataclass(frozen=True)
class Contender:
    """One library with one store and some settings."""

    name: str
    module: str
    """Its module in `bench.peers`."""
    store: str
    """What keeps its jobs."""
    conf: Mapping[str, Any] = field(default_factory=dict)
    stages: frozenset[str] = frozenset({"submit", "run"})
    kinds: frozenset[str] = frozenset({"submit", "duplicate", "bulk", "run", "wait"})
    """What it can do; "duplicate": equal submissions are one job."""
    broker: str = "redis"
    on_celery: bool = True
    """Whether it runs in our own environment, on the same Celery; the others have one of their own."""

    @property
    def is_other(self) -> bool:
        """Whether it needs a library that is neither onejob nor Celery."""
        return self.module not in {"plain", *OWN}

    @property
    def missing(self) -> str:
        """Why it cannot run here; "" if nothing is missing."""
        if unknown := {name for name in self.conf if name.startswith("onejob_")} - {f"onejob_{name}" for name in NAMES}:
            return f"this tree has no setting {', '.join(sorted(unknown))}"
        if self.is_other and not PEERS.exists():
            return f"not installed: `make bench` makes {PEERS}"
        return ""


PLAIN = Contender("Celery", "plain", "redis", stages=frozenset({"submit"}))
PLAIN_WITH_RESULTS = Contender("Celery with results", "plain", "redis", RESULTS, frozenset({"run"}))
STORES = ("redis", "sqlite", "postgresql")
OURS = tuple(
    Contender(f"onejob on {store}", "protected", store, stages=frozenset({"submit", "run", "memory"}))
    for store in STORES
)
DELIVERING = tuple(
    Contender(f"onejob on {store} alone", "protected", store, stages=frozenset({"submit", "run"}), broker="ledger")
    for store in STORES[1:]
)
"""The ledger delivers the jobs itself, and no other server runs."""
COROUTINES = (
    Contender("onejob on redis, coroutines", "coroutines", "redis", stages=frozenset({"run"})),
    *(
        replace(one, name=f"{one.name}, coroutines", module="coroutines", stages=frozenset({"run"}))
        for one in DELIVERING
    ),
)
"""One process with one event loop, where the others have two processes."""
LOCKS = tuple(
    Contender(name, module, "redis", RESULTS if stage == "run" else {}, frozenset({stage}))
    for name, module in (("celery-singleton", "singleton"), ("celery-once", "once"))
    for stage in ("submit", "run")
)
NEW = frozenset({"submit", "bulk", "run"})
WITH_DUPLICATES = NEW | {"duplicate"}
OTHERS = tuple(
    Contender(name, name.lower(), store, kinds=kinds, on_celery=False)
    for name, store, kinds in (
        ("dramatiq", "redis", NEW),
        ("huey", "redis", NEW),
        ("RQ", "redis", NEW),
        ("SAQ", "redis", WITH_DUPLICATES),
        ("taskiq", "redis", NEW),
        ("procrastinate", "postgresql", WITH_DUPLICATES),
        ("DBOS", "postgresql", WITH_DUPLICATES),
    )
)
ON_RABBITMQ = (
    Contender("Celery", "plain", "", OWN_QUEUE, frozenset({"rabbitmq"}), broker="rabbitmq"),
    *(
        Contender(f"onejob on {store}", "protected", store, OWN_QUEUE, frozenset({"rabbitmq"}), broker="rabbitmq")
        for store in STORES
    ),
)
RUN_ON_RABBITMQ = tuple(
    replace(one, conf={**one.conf, **(RESULTS if one.module == "plain" else {})}, stages=frozenset({"run on rabbitmq"}))
    for one in (
        *ON_RABBITMQ,
        *(replace(one, name=f"{one.name}, coroutines", module="coroutines") for one in ON_RABBITMQ[1:]),
    )
)
ALL = (PLAIN, PLAIN_WITH_RESULTS, *OURS, *DELIVERING, *COROUTINES, *LOCKS, *OTHERS, *ON_RABBITMQ, *RUN_ON_RABBITMQ)


def chosen(stage: str, stores: Sequence[str], peers: Sequence[str] | None) -> list[Contender]:
    """Return the contenders of a stage, the reference first; `peers`: the modules of the others, None for all."""
    found = [contender for contender in ALL if stage in contender.stages]
    reference = [contender for contender in found if contender.module == "plain"]
    ours = [contender for contender in found if contender.module in OWN and contender.store in stores]
    others = [contender for contender in found if contender.is_other and (peers is None or contender.module in peers)]
    return reference + ours + others


class Child:
    """The process of a contender. It reports a failure, and does nothing after it."""

    def __init__(self, contender: Contender, environment: dict[str, str], log: Path) -> None:
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [python_of(contender), "-m", "bench.child", contender.module],
                env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True,
            )  # fmt: skip

    def start(self, kind: str, **request: Any) -> None:
        """Send a request."""
        requests = cast("TextIO", self._process.stdin)
        with suppress(BrokenPipeError):  # then there is no response either
            requests.write(json.dumps({"kind": kind, **request}) + "\n")
            requests.flush()

    def finish(self) -> dict[str, Any]:
        """Return the response. Raises `FailedError`."""
        line = cast("TextIO", self._process.stdout).readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": last_line(self._log)}
        if "error" in answer:
            raise FailedError(" ".join(answer["error"].split()))
        return answer

    def ask(self, kind: str, **request: Any) -> dict[str, Any]:
        """Send a request and return its response. Raises `FailedError`."""
        self.start(kind, **request)
        return self.finish()

    def close(self) -> None:
        """End the process."""
        with suppress(BrokenPipeError):
            self._process.communicate()


class FailedError(RuntimeError):
    """A contender failed."""


def last_line(log: Path) -> str:
    """Return the end of a log."""
    return ("no log", *log.read_text(encoding="utf-8", errors="replace").split("\n"))[-2][:300]


def python_of(contender: Contender) -> str:
    """Return the interpreter that has the library."""
    return sys.executable if contender.on_celery else str(PEERS / "bin" / "python")


class Places(NamedTuple):
    """Where a contender keeps its messages, jobs and results: URLs, and the name of its queue."""

    broker: str
    store: str
    results: str = ""
    queue: str = ""


def environment_of(contender: Contender, places: Places) -> dict[str, str]:
    """Return the environment of the processes of a contender."""
    conf = json.dumps(dict(contender.conf)).replace(RESULT_STORE, places.results).replace(QUEUE, places.queue)
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    libraries = next(map(str, PEERS.glob("lib/python*/site-packages")), "")
    return os.environ | {
        common.BROKER: places.broker, common.STORE: places.store, common.CONF: conf, "PYTHONPATH": path,
        LIBRARIES: libraries if contender.on_celery and contender.is_other else "",
    }  # fmt: skip
