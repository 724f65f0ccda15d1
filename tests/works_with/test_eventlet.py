"""The pool of greenlets by eventlet."""

import pytest

from tests.works_with.program import MakeProgram
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("eventlet==0.41.3",),
    needs=("greenlet==3.5.6", "dnspython==2.9.2"),
    ran="`worker -P eventlet`: waiting bodies side by side, a job longer than its lease, hard and soft time limit, "
    "`revoke(terminate=True)`; Redis, `onejob://`",
    holds="Bodies that wait run side by side, and heartbeats renew their leases. `revoke(terminate=True)` ends a body "
    "wherever it waits.",
    do="",
    fails="Neither a hard nor a soft time limit is kept.",
)
APP = """
from kit import *

app = make_app(onejob_lease=3.0)

@app.task(base=onejob.Task)
def wait(number, seconds):
    mark(number)
    time.sleep(seconds)
    return number

@app.task(base=onejob.Task, time_limit=1)
def limited():
    time.sleep(3)
    return "no limit"

@app.task(base=onejob.Task, soft_time_limit=1)
def soft():
    time.sleep(2)
    return "no limit"
"""


@pytest.mark.parametrize("direct", [False, True])
def test_greenlets_run_jobs(program: MakeProgram, direct: bool) -> None:
    """Ten waits and one longer than the lease run once; time limits do nothing."""
    shop = program(APP, direct=direct)
    with shop.worker("-P", "eventlet", "-c", "20"):
        shop.run("long = wait.delay(0, 7), limited.delay(), soft.delay()\nfor n in range(1, 11): wait.delay(n, 1)")
        shop.await_states("completed", "completed", "completed", *["completed"] * 10)
        assert sorted(shop.marks) == [[number] for number in range(11)]


@pytest.mark.parametrize("direct", [False, True])
def test_a_terminated_greenlet_frees_the_identity(program: MakeProgram, direct: bool) -> None:
    """`revoke(terminate=True)` ends a body that only waits, and its run cancels the job: no lease is lost."""
    shop = program(APP, direct=direct)
    with shop.worker("-P", "eventlet") as log:
        job = shop.run("answer = wait.delay(1, 600).id")
        shop.await_marks(1)
        shop.run(f"wait.AsyncResult('{job}').revoke(terminate=True)")
        shop.await_states("canceled")
        assert "lapsed=true" not in log.text
