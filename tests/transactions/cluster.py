"""One ledger in PostgreSQL with a broker of its own: a test submits to it and inspects it."""

import json
from dataclasses import dataclass
from typing import Any

import psycopg

from onejob import AsyncResult
from onejob.celery.app_state import app_state_of
from onejob.celery.run import Run
from onejob.celery.submission.options import tasks_of
from onejob.jobs.lifecycle import FINAL
from onejob.jobs.model import JobRow
from onejob.jobs.text_limits import TextLimits
from onejob.ledger.sweep import Publishing, sweep
from tests.celery.harness import Cluster, await_
from tests.fundamentals.shop import claimed
from tests.transactions.app import Effects


@dataclass
class PostgresCluster(Cluster):
    """A cluster whose ledger is a schema in PostgreSQL, beside a table of the application."""

    module: str = "tests.transactions.app"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.url, self.schema = self.config["onejob_store"], self.config["onejob_namespace"]
        self.effects = Effects(self.config)
        self.database = psycopg.connect(self.url, autocommit=True)
        self.database.execute(f"create table {self.schema}.notes (key text)")

    @property
    def limits(self) -> TextLimits:
        return app_state_of(self.app).settings.limits

    def count(self, query: str, *values: object) -> int:
        ((count,),) = self.database.execute(f"select count(*) from {query}".encode(), values)  # noqa: S608 - the test's own
        return int(count)

    def rows(self, table: str) -> int:
        return self.count(f"{self.schema}.{table}")

    def notes(self, key: str) -> int:
        return self.count(f"{self.schema}.notes where key = %s", key)

    def messages(self) -> list[str]:
        raws: Any = self.broker.lrange("celery", 0, -1)
        return sorted(json.loads(raw)["headers"]["id"] for raw in raws)

    def await_waiters(self) -> None:
        waiting = "pg_stat_activity where wait_event_type = 'Lock' and query like %s"
        await_(lambda: self.count(waiting, f"%{self.schema}%"))

    @property
    def tasks(self) -> frozenset[str]:
        return frozenset(tasks_of(self.app))

    def sweep(self) -> int:
        """Sweep once, as a worker would; returns how many jobs were published."""
        return sweep(self.ledger, Publishing(app_state_of(self.app).publisher.publish), tasks=self.tasks).published

    def claim(self, job_id: str) -> JobRow:
        return claimed(self.ledger, job_id, "test")

    def started(self, key: str = "a") -> Run:
        return Run(self.claim(self.effect.delay(key).id), self.ledger, self.limits)

    def claim_again(self, run: Run) -> JobRow:
        """Start another run of the job, which makes this run's token stale."""
        self.ledger.crash(run.job, "its worker was presumed dead", "{}")
        return self.claim(run.id)

    def ended(self, result: AsyncResult | str) -> JobRow:
        return self.await_state(result, *FINAL)

    def cut(self, pid: int) -> None:
        self.database.execute("select pg_terminate_backend(%s)", [pid])
        await_(lambda: not self.count("pg_stat_activity where pid = %s", pid))

    def close(self) -> None:
        """End everything that belongs to the cluster, also transactions that a failed test has left open."""
        if self._closed:
            return
        super().close()
        query = "select pid from pg_stat_activity where state like 'idle in transaction%%' and application_name <> %s"
        for (pid,) in self.database.execute(query, ["onejob"]).fetchall():
            self.cut(pid)
        self.database.execute(f"drop table {self.schema}.notes")  # so that the next test can have this ledger
        self.database.close()
