"""The Django shop of the examples, run as a user runs it: its own settings, migrations, requests and worker."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests import forks
from tests.quiet import LogReader
from tests.services import PostgresServer, RedisServer, eventually

ROOT = Path(__file__).parents[2]
SHOP = ROOT / "examples" / "django_shop"
REQUESTS = """
import json, sys
import django
from django.test import Client
django.setup()
from django.conf import settings
for order in json.loads(sys.argv[1]):
    try:
        answer = Client().post("/orders", order)
        print(json.dumps([answer.status_code, answer.json()]))
    except Exception as error:
        print(json.dumps([500, type(error).__name__]))
"""


@dataclass
class Shop:
    environment: dict[str, str]
    database: psycopg.Connection[Any]

    def run(self, *command: str) -> str:
        done = forks.run(command, cwd=SHOP, environment=self.environment, modules=forks.DJANGO)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def order(self, *orders: dict[str, object]) -> list[list[Any]]:
        return [json.loads(line) for line in self.run("-c", REQUESTS, json.dumps(orders)).splitlines()]

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.database.execute(query.encode()).fetchall()


@pytest.fixture(scope="module")
def shop(postgres_server: PostgresServer, broker: RedisServer) -> Iterator[Shop]:
    with psycopg.connect(postgres_server.url, autocommit=True) as server:
        server.execute("create database shop")
    url = postgres_server.url.removesuffix("/postgres") + "/shop"
    environment = os.environ | {
        "PGHOST": "127.0.0.1", "PGPORT": str(postgres_server.port), "PGDATABASE": "shop", "PGUSER": "postgres",
        "PGPASSWORD": "p/w", "BROKER_URL": broker.url.replace("/0", "/1999"),
        "DJANGO_SETTINGS_MODULE": "shop.settings",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""), "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    with psycopg.connect(url, autocommit=True) as database:
        shop = Shop(environment, database)
        shop.run("manage.py", "migrate", "-v", "0")
        yield shop


def test_the_migrations_are_complete(shop: Shop) -> None:
    """The shop's migrations make the tables that its models describe."""
    assert "No changes detected" in shop.run("manage.py", "makemigrations", "--check", "--dry-run")


def test_order_and_job_are_atomic(shop: Shop, tmp_path: Path) -> None:
    """A request that succeeds creates an order and its job, which writes the invoice; a failed one creates neither."""
    answers = shop.order(
        {"customer": "ann", "cents": 4200}, {"customer": "broke", "cents": 4200}, {"customer": "bob", "cents": 0}
    )
    assert [status for status, _ in answers] == [201, 402, 500]
    job_id, order = answers[0][1]["job"], answers[0][1]["order"]
    assert sorted(shop.rows("select task, state from onejob.jobs")) == [
        ("orders.tasks.invoice", "queued"), ("orders.tasks.thank", "queued"),
    ]  # fmt: skip
    assert shop.rows("select id from onejob.jobs where task = 'orders.tasks.invoice'") == [(job_id,)]
    assert shop.rows("select id, customer, paid, invoice from orders_order") == [(order, "ann", True, "")]
    log = tmp_path / "worker.log"
    command = ["-m", "celery", "--workdir", str(SHOP), "-A", "shop", "worker", "--pool=solo"]
    with forks.interpret(command, environment=shop.environment, cwd=SHOP, output=log):
        eventually(lambda: len(shop.rows("select 1 from onejob.jobs where state = 'completed'")) == 2, 100)
    assert [*LogReader(log).troubles()] == []
    number = f"R-{order:06}"
    assert shop.rows("select invoice from orders_order") == [(number,)]
    results = shop.rows("select result from onejob.jobs order by task")
    assert results == [(f'"{number}"',), ('"Thank you, ann!"',)]


def test_the_tests_of_the_shop_pass(shop: Shop) -> None:
    """The tests that the shop has itself pass, on a test database with a ledger of its own."""
    before = shop.rows("select id from onejob.jobs")
    shop.run("manage.py", "test", "--noinput")
    assert shop.rows("select id from onejob.jobs") == before
