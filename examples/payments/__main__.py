"""Charge cards through a flaky gateway while workers are killed, and see the books balance.

python -m examples.payments --orders 60 --kills 4 --seed 1
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import shutil
import signal
import sys
import tempfile
import time
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import redis

import onejob
from examples.payments.gateway import Record
from examples.payments.workers import Workers
from examples.processes import Processes
from tests.services import eventually, start_postgres, start_redis

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 120.0


def main() -> int:
    """Start everything, play the day, take everything down. Returns the exit code."""
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # who reads through a pipe reads along
    began = time.monotonic()
    print(f"seed {options.seed}: PostgreSQL, Redis, the gateway and two workers are starting ...")
    folder = Path(tempfile.mkdtemp(prefix="onejob-payments-"))
    processes = Processes(folder)
    try:
        with _servers(folder) as places, closing(processes):
            os.environ |= places
            right = _play(options, processes, folder, Record(options.record or folder / "gateway.db"))
    except KeyboardInterrupt:
        return 130
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{time.monotonic() - began:.0f} s in all")
    return 0 if right else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.payments", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--orders", type=int, default=60)
    parser.add_argument("--kills", type=int, default=4, help="how many workers are killed")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1000))
    parser.add_argument("--keyless", action="store_true", help="a gateway that ignores idempotency keys")
    parser.add_argument("--record", type=Path, help="where the gateway keeps its record; else it goes with the run")
    return parser.parse_args()


@contextmanager
def _servers(folder: Path) -> Iterator[dict[str, str]]:
    """Start the servers without a given URL, and create a schema for this run; yield the settings of the shop."""
    schema = f"payments_{secrets.token_hex(4)}"
    with ExitStack() as stack:
        postgres, broker = (os.environ.get(name) for name in ("PAYMENTS_POSTGRES", "PAYMENTS_REDIS"))
        if not postgres:
            server = start_postgres()
            stack.callback(server.remove)
            postgres = server.url
        if not broker:
            private = start_redis(folder)
            stack.callback(private.stop)
            broker = private.url
        with onejob.Client(postgres, namespace=f"{schema}_jobs") as client:
            client.migrate()
        _execute(postgres, f"create schema {schema}")
        stack.callback(_execute, postgres, f"drop schema {schema}, {schema}_jobs cascade")
        stack.callback(_forget_messages, broker, schema)
        yield {"PAYMENTS_POSTGRES": postgres, "PAYMENTS_REDIS": broker, "PAYMENTS_SCHEMA": schema}


def _play(options: argparse.Namespace, processes: Processes, folder: Path, record: Record) -> bool:
    """Start the gateway and the workers, and play the day. Returns whether the books balance."""
    os.environ["PAYMENTS_GATEWAY"] = _start_gateway(options, processes, folder, record)
    from examples.payments.story import Day  # it reads the environment

    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    workers = Workers(processes, folder, environment)
    day = Day(options.orders, options.seed, workers, record)
    day.open()
    try:
        for node in [workers.start(), workers.start()]:
            eventually(partial(workers.ready, node), START_SECONDS)
        return day.play(options.kills)
    except AssertionError:
        print(*(log.read_text()[-2000:] for log in folder.glob("worker*.log")), sep="\n", file=sys.stderr)
        raise


def _start_gateway(options: argparse.Namespace, processes: Processes, folder: Path, record: Record) -> str:
    """Start the gateway's process, and return its address."""
    address = folder / "gateway.address"
    command = [sys.executable, str(Path(__file__).with_name("gateway.py")), "--record", str(record.path)]
    command += ["--address", str(address), "--seed", str(options.seed), *(["--keyless"] if options.keyless else [])]
    processes.start("gateway", command, os.environ)
    eventually(address.exists, START_SECONDS)
    return address.read_text()


def _execute(postgres: str, statement: str) -> None:
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(statement.encode())


def _forget_messages(broker: str, schema: str) -> None:
    with redis.Redis.from_url(broker) as client:
        for key in client.scan_iter(f"{schema}:*", count=1000):
            client.delete(key)


if __name__ == "__main__":
    sys.exit(main())
