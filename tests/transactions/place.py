"""One ledger in PostgreSQL with a broker of its own: a test submits to it and inspects it."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import redis

from onejob.celery.app_state import app_state_of
from onejob.celery.current_job import RunningJob
from onejob.celery.options import tasks_of
from onejob.jobs.lifecycle import FINAL
from onejob.jobs.records import Query
from onejob.ledger.sweep import sweep
from tests import quiet
from tests.services import Daemon, eventually
from tests.transactions.app import CONFIG, Stage, build
from tests.webhooks.receiver import SECRET

if TYPE_CHECKING:
    from onejob import AsyncResult
    from onejob.jobs.model import Job
    from onejob.ledger.ledger import Ledger
    from onejob.uniqueness.canonical_json import Limits
    from tests.services import RedisServer

PATIENCE = 40.0
"""Seconds to wait for what must come; far more than it takes, since a test must not depend on the machine."""
DATABASES = 1000
ROOT = Path(__file__).parents[2]
_databases = count()


@dataclass
class Place:
    """An app whose ledger is a schema in PostgreSQL, beside a table of the application."""

    directory: Path
    url: str
    schema: str
    server: RedisServer

    def __post_init__(self) -> None:
        broker, backend = (self.server.url.replace("/0", f"/{next(_databases)}") for _ in range(2))
        self.config: dict[str, Any] = {
            "broker_url": broker,
            "result_backend": backend,
            "onejob_store": self.url,
            "onejob_namespace": self.schema,
            "onejob_lease": 3 * PATIENCE,
            "onejob_sweep": 0.2,
            "onejob_webhook_secrets": [SECRET],
            "test_stage": str(self.directory),
            "broker_connection_retry_on_startup": True,
        }
        self.app = build(self.config)
        self.stage = Stage(self.config)
        self.broker = redis.Redis.from_url(broker)
        self.database = psycopg.connect(self.url, autocommit=True)
        self.database.execute(f"create table {self.schema}.notes (key text)")
        self.worker: Daemon | None = None
        self._watched: quiet.Watched | None = None

    def __getattr__(self, name: str) -> Any:
        """A task by its name."""
        if name not in {"effect", "greedy", "note", "newest", "again", "strict"}:
            raise AttributeError(name)
        return self.app.tasks[name]

    @property
    def limits(self) -> Limits:
        """How large results may be."""
        return app_state_of(self.app).settings.limits

    # --- looking --------------------------------------------------------------------------------------------------

    @property
    def ledger(self) -> Ledger:
        """The ledger of the app."""
        return app_state_of(self.app).ledger

    def jobs(self) -> list[Job]:
        """All jobs of the ledger."""
        return self.ledger.find(Query(limit=1000))

    def rows(self, table: str) -> int:
        """How many rows a table has."""
        query = f"select count(*) from {self.schema}.{table}"  # noqa: S608 - names of the test itself
        row = self.database.execute(query.encode()).fetchone()
        return int(row[0]) if row else 0

    def notes(self, key: str) -> int:
        """How many effects a key has had."""
        query = f"select count(*) from {self.schema}.notes where key = %s"  # noqa: S608 - a name of the test itself
        row = self.database.execute(query.encode(), [key]).fetchone()
        return int(row[0]) if row else 0

    def messages(self) -> list[str]:
        """The ids in the broker's messages."""
        raws: list[bytes] = self.broker.lrange("celery", 0, -1)  # type: ignore[assignment] # its types know both clients
        return sorted(json.loads(raw)["headers"]["id"] for raw in raws)

    def waiters(self) -> int:
        """How many sessions wait for a lock on this ledger."""
        query = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like %s"
        row = self.database.execute(query, [f"%{self.schema}%"]).fetchone()
        return int(row[0]) if row else 0

    def await_waiters(self, number: int = 1) -> None:
        """Wait until so many sessions wait for a lock."""
        eventually(lambda: self.waiters() >= number, PATIENCE)

    def await_mark(self, key: str, event: str) -> None:
        """Wait until a body has made a mark."""
        eventually(lambda: self.stage.marked(key, event), PATIENCE)

    def connected(self, pid: int) -> bool:
        """Tell whether a connection's process exists."""
        found = self.database.execute("select 1 from pg_stat_activity where pid = %s", [pid])
        return found.fetchone() is not None

    # --- doing ----------------------------------------------------------------------------------------------------

    @property
    def tasks(self) -> frozenset[str]:
        """The names of the app's tasks."""
        return frozenset(tasks_of(self.app))

    def sweep(self) -> int:
        """Sweep once, as a worker would; returns how many jobs were published."""
        return sweep(self.ledger, app_state_of(self.app).publisher.publish, tasks=self.tasks).published

    def claim(self, job_id: str) -> Job:
        """Claim a job."""
        claimed = self.ledger.claim(job_id, nonce=os.urandom(8).hex(), node="test")
        assert claimed.applied, claimed
        assert claimed.job is not None
        return claimed.job

    def started(self, key: str = "a") -> RunningJob:
        """Submit and claim a job, like a worker."""
        return RunningJob(self.claim(self.effect.delay(key).id), self.ledger, self.limits)

    def claim_again(self, run: RunningJob) -> Job:
        """Start another run of the job, which makes this run's token stale."""
        self.ledger.crash(run.job, "its worker was presumed dead", "{}")
        return self.claim(run.id)

    def ended(self, result: AsyncResult | str) -> Job:
        """Wait for the end of a job."""
        job_id = result if isinstance(result, str) else result.id
        return eventually(lambda: job if (job := self.ledger.get(job_id)).state in FINAL else None, PATIENCE) or _gone()

    def cut(self, pid: int) -> None:
        """End a connection from the server's side."""
        self.database.execute("select pg_terminate_backend(%s)", [pid])
        eventually(lambda: not self.connected(pid), PATIENCE)

    def start_worker(self) -> None:
        """Start a worker and wait until it takes messages."""
        log = self.directory / "worker.log"
        variables = [f"{CONFIG}={json.dumps(self.config)}", f"PYTHONPATH={_pythonpath()}"]
        options = "worker --pool=threads -c 4 -l INFO -n w@test --without-gossip --without-mingle".split()
        command = ["env", *variables, sys.executable, "-m", "celery", "-A", "tests.transactions.app", *options]
        self.worker = worker = Daemon(command, log=log, cwd=self.directory)
        eventually(lambda: "w@test ready." in log.read_text(errors="replace") or not worker.alive, PATIENCE)
        assert worker.alive, log.read_text(errors="replace")
        self._watched = quiet.WorkerReader(log, lambda: self.ledger)
        quiet.watch(self._watched)

    def log(self) -> str:
        """The log of the worker."""
        return (self.directory / "worker.log").read_text(errors="replace")

    def close(self) -> None:
        """End everything that belongs to the place."""
        if self.worker is not None and self._watched is not None:
            quiet.unwatch(self._watched)
            self.worker.process.kill()
            self.worker.process.wait()
            print(self.log()[-6000:])  # noqa: T201 - pytest shows it when a test fails
        self.ledger.close()
        self._end_open_transactions()
        self.database.execute(f"drop table {self.schema}.notes")  # so that the next test can have this ledger
        self.database.close()
        self.broker.close()
        self.app.close()

    def _end_open_transactions(self) -> None:
        """End the transactions that a failed test has left open, since they prevent the deletion of the schema."""
        query = (
            "select pid from pg_stat_activity where state like 'idle in transaction%' and application_name <> 'onejob'"
        )
        for (pid,) in self.database.execute(query).fetchall():
            self.cut(pid)


def _gone() -> Job:
    raise AssertionError


def _pythonpath() -> str:
    given = [str(Path(entry).resolve()) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return os.pathsep.join([str(ROOT), *given])
