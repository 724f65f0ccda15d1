"""celery-prometheus-exporter: metrics of tasks by their state, from events."""

import httpx2
import pytest

from tests.services import eventually, free_port
from tests.works_with.program import MakeProgram
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("celery-prometheus-exporter==1.7.0",),
    ran="the exporter beside a worker, with jobs that complete, fail and are duplicates; Redis",
    holds="Each run is counted once by its end; a duplicate is not.",
    do="`worker -E`.",
    fails="It takes a broker's URL and no app, so it cannot read `onejob://`. Waiting jobs without a message, "
    "duplicates and dead letters are not there: [metrics](../operations/observability.md#metrics).",
)
APP = """
from kit import *

app = make_app()

@app.task(base=onejob.Task, unique_for=600)  # the duplicate may arrive after the run
def work(number):
    if number < 0:
        raise ValueError(number)

@app.task
def probe():
    pass
"""


def exporter_of(broker: str, port: int) -> tuple[str, ...]:
    """Return the arguments of a Python that runs the exporter."""
    script = "from celery_prometheus_exporter import main; main()"
    return ("-c", script, "--broker", broker, "--addr", f"127.0.0.1:{port}")


def test_runs_are_counted_by_their_end(program: MakeProgram) -> None:
    """Of three submissions of two jobs it counts a success and a failure."""
    shop, port = program(APP), free_port()
    exporter = exporter_of(shop.variables["SHOP_BROKER"], port)

    def counted(state: str, task: str = "shop.work") -> float:
        lines = httpx2.get(f"http://127.0.0.1:{port}/metrics", timeout=30).text.splitlines()
        wanted = f'celery_tasks_by_name{{name="{task}",state="{state}"}}'
        return sum(float(line.split()[-1]) for line in lines if line.startswith(wanted))

    def is_listening() -> bool:
        shop.run("probe.delay()")
        return counted("SUCCESS", "shop.probe") > 0

    with shop.worker("-E"), shop.start(*exporter, ready="Starting HTTPD"):
        eventually(is_listening)
        shop.run("work.delay(1), work.delay(1), work.delay(-1)")
        shop.await_states("completed", "failed")
        eventually(lambda: (counted("SUCCESS"), counted("FAILURE")) == (1, 1))


def test_it_cannot_read_our_broker(program: MakeProgram) -> None:
    """Without an app `onejob://` is no broker for it."""
    with program(APP).start(*exporter_of("onejob://", free_port()), ready="No such transport: onejob"):
        pass
