"""Measure what idle workers cost PostgreSQL when the ledger delivers (`broker_url = "onejob://"`).

    python -m bench.idle --workers 50 --seconds 60

Prints the CPU time of all processes of the server as a share of one core, its transactions and its WAL per second, and
how many connections the workers have.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from contextlib import ExitStack

import psycopg

from bench import processor
from bench.backlog import BROKER, STORE
from bench.runs import end
from bench.servers import Servers
from onejob.config import Settings, build_ledger
from tests.services import eventually

FIGURES = """
select (select sum(xact_commit + xact_rollback) from pg_stat_database), pg_current_wal_lsn() - '0/0',
  (select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid())
"""


def main() -> None:
    """Start the workers, wait, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--settle", type=float, default=90.0,
        help="seconds between the last start and the measurement: a connection plans each statement ten times at first",
    )  # fmt: skip
    parser.add_argument("--pool", default="solo")
    options = parser.parse_args()
    with ExitStack() as stack:
        servers = Servers(stack)
        store = servers.new_ledger("postgresql", "")
        environment = {**os.environ, BROKER: "onejob://", STORE: store}
        command = [sys.executable, "-m", "celery", "-A", "bench.backlog", "worker", "-l", "ERROR", "-c", "1"]
        for number in range(options.workers):
            own = [*command, "--pool", options.pool, "-n", f"worker-{number}@localhost"]
            worker = subprocess.Popen(own, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
            stack.callback(end, worker)
        ledger = build_ledger(Settings(store=store))
        eventually(lambda: len(ledger.workers()) == options.workers, timeout=60 + 10 * options.workers)
        ledger.close()
        time.sleep(options.settle)
        with psycopg.connect(store, autocommit=True) as connection:
            cpu, began, before = processor.seconds_below(servers.postgres.pid), time.monotonic(), figures(connection)
            time.sleep(options.seconds)
            cpu, seconds = processor.seconds_below(servers.postgres.pid) - cpu, time.monotonic() - began
            transactions, wal, connections = figures(connection)
        print(f"CPU of the server: {100 * cpu / seconds:.1f} % of one core")
        print(f"transactions per second: {(transactions - before[0]) / seconds:.1f}")
        print(f"WAL, KB per second: {(wal - before[1]) / seconds / 1000:.1f}")
        print(f"connections: {connections}")


def figures(connection: psycopg.Connection) -> tuple[int, int, int]:
    """Return the transactions and the bytes of WAL until now, and the number of connections."""
    row = connection.execute(FIGURES.encode()).fetchone()
    transactions, wal, connections = row or (0, 0, 0)
    return int(transactions), int(wal), connections


if __name__ == "__main__":
    main()
