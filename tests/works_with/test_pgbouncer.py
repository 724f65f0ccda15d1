"""PgBouncer before the ledger's PostgreSQL, with both ways of pooling."""

from collections.abc import Iterator

import pytest

from tests.services import PgBouncer, PostgresServer, start_pgbouncer
from tests.works_with.program import MakeProgram
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("psycopg==3.3.9",),
    feature="PgBouncer",
    ran="a worker and its clients behind PgBouncer, pooling transactions and sessions; `onejob://`",
    holds="Jobs, duplicates, a countdown and the wake-up of an idle worker.",
    do="`?pooler=transaction` in the URL for transactions; for sessions nothing.",
    fails="",
)
APP = """
from kit import *

app = make_app()

@app.task(base=onejob.Task, unique_for=600)  # the duplicate may arrive after the run
def work(number):
    mark(number)
    return number
"""


@pytest.fixture(params=["transaction", "session"])
def pooler(request: pytest.FixtureRequest, postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    """Return a PgBouncer before the server of the tests."""
    with start_pgbouncer(postgres_server, size=20, mode=request.param) as pooler:
        yield pooler


def test_jobs_behind_a_pooler(program: MakeProgram, pooler: PgBouncer) -> None:
    """Equal jobs run once, and a job that is submitted to an idle worker runs."""
    shop = program(APP, direct=True, postgres=True)
    shop.variables["SHOP_LEDGER"] = pooler.url
    with shop.worker():
        shop.run("work.delay(1), work.delay(1), work.apply_async((2,), countdown=1)")
        shop.await_states("completed", "completed")
        assert shop.run("answer = work.delay(3).get(timeout=20)") == 3
        assert sorted(shop.marks) == [[1], [2], [3]]
