"""Celery's `--statedb`, and celery-redis-statedb: revocations that outlive a worker."""

import pytest

from tests.works_with.program import MakeProgram
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("celery==5.7.0", "celery-redis-statedb==0.2.0"),
    feature="`--statedb`, `--redis-statedb`",
    ran="revoke a waiting job and a plain task that lies in the broker, restart the worker, submit the job again; "
    "Redis",
    holds="The ledger keeps the cancellation with or without these options; the plain task is dropped by the "
    "restarted worker. A new equal job has another id, and runs.",
    do="",
    fails="",
)
APP = """
from celery_redis_statedb import install_redis_statedb
from kit import *

app = make_app()
install_redis_statedb(app)

@app.task(base=onejob.Task)
def store(number):
    mark("job", number)

@app.task
def plain(number):
    mark("plain", number)
"""
SUBMIT = """
job, message = store.apply_async((1,), countdown=3600), plain.apply_async((1,), countdown=3600)
app.control.revoke([job.id, message.id])
while job.state != "REVOKED":
    time.sleep(0.05)
answer = [job.id, message.id]
"""


@pytest.mark.parametrize("option", ["--statedb", "--redis-statedb"])
def test_a_revocation_outlives_the_worker(program: MakeProgram, option: str) -> None:
    """A revoked job stays canceled after a restart, a revoked message is dropped, and an equal new job runs."""
    shop = program(APP)
    place = str(shop.folder / "state") if option == "--statedb" else shop.variables["SHOP_REDIS"]
    options = (f"{option}={place}", "--concurrency", "1", "--hostname", "w1@works-with")
    with shop.worker(*options):
        job, message = shop.run(SUBMIT)
    with shop.worker(*options) as log:
        log.await_text(f"Discarding revoked task: shop.plain[{message}]")
        assert shop.run(f"again = store.delay(1); again.get(timeout=20); answer = again.id != '{job}'")
        shop.await_states("canceled", "completed")
        assert shop.marks == [["job", 1]]
