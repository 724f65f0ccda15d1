"""Celery's broker `sentinel://`: a Redis that sentinels name."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services import RedisServer, redis_binary
from tests.works_with.program import MakeProgram
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("kombu==5.7.0", "redis==8.1.0"),
    feature="`sentinel://`",
    ran="a broker that a sentinel names, with duplicates, a countdown and a time without its Redis; the ledger in "
    "SQLite",
    holds="Jobs run once. A submission while the Redis is away succeeds, and a sweep publishes the job when it is "
    "back.",
    do="`broker_transport_options` with `master_name`, as for Celery.",
    fails="",
)
APP = """
from kit import *

app = make_app(broker_transport_options={"master_name": "shop"})

@app.task(base=onejob.Task, unique_for=600)  # the duplicate may arrive after the run
def work(number):
    mark(number)
    return number
"""


class Sentinel(RedisServer):
    """A private sentinel of a Redis."""

    ready_text = "+monitor master"
    master: RedisServer

    def command(self) -> list[str]:
        """Write the configuration, and return the command line."""
        file = self.directory / "sentinel.conf"
        monitor = f"sentinel monitor shop 127.0.0.1 {self.master.port} 1\n"
        file.write_text(f"port {self.port}\nbind 127.0.0.1\ndir {self.directory}\n{monitor}")
        return [redis_binary(self.number), str(file), "--sentinel"]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[RedisServer, Sentinel]]:
    """Return a Redis, and a sentinel that names it."""
    for name in ("redis", "sentinel"):
        (tmp_path / name).mkdir()
    with RedisServer(tmp_path / "redis") as redis, Sentinel(tmp_path / "sentinel") as sentinel:
        redis.start()
        sentinel.master = redis
        sentinel.start()
        yield redis, sentinel


def test_jobs_through_a_sentinel(program: MakeProgram, watched: tuple[RedisServer, Sentinel]) -> None:
    """Equal jobs run once, and one that is submitted while the Redis is away runs when it is back."""
    redis, sentinel = watched
    shop = program(APP)
    shop.variables["SHOP_BROKER"] = f"sentinel://127.0.0.1:{sentinel.port}/0"
    with shop.worker():
        shop.run("work.delay(1), work.delay(1), work.apply_async((2,), countdown=1)")
        shop.await_states("completed", "completed")
        redis.stop()
        shop.run("work.delay(3)")
        redis.start()
        shop.await_states("completed", "completed", "completed")
        assert sorted(shop.marks) == [[1], [2], [3]]
