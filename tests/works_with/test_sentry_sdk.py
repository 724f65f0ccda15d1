"""sentry-sdk: whether a run is in the trace of its submission."""

import pytest

from tests.works_with.context import TASKS, all_ways, ways_with_context
from tests.works_with.program import MakeProgram, on_both_brokers
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("sentry-sdk==2.75.0",),
    ran="its integration for Celery: the trace of a run on each way from a submission, the report of a failed job; "
    "prefork, threads; Redis, `onejob://`",
    holds="A run is in the trace of its submission, on each way. An error is one report.",
    do="",
    fails="",
)
APP = """
from contextlib import contextmanager
import sentry_sdk
from sentry_sdk.transport import Transport
from kit import *

class ToFile(Transport):
    def capture_envelope(self, envelope):
        with open("reports.txt", "a") as file:
            file.writelines(f"{item.type}\\n" for item in envelope.items)

sentry_sdk.init(dsn="https://key@example.invalid/1", traces_sample_rate=1.0, transport=ToFile)
Path("reports.txt").touch()
app = make_app()

@contextmanager
def within():
    with sentry_sdk.start_transaction(name="request") as transaction:
        Path("trace").write_text(transaction.trace_id)
        yield

def seen():
    return sentry_sdk.get_current_span().trace_id == Path("trace").read_text()
"""


@on_both_brokers
def test_a_run_is_in_the_trace_of_its_submission(program: MakeProgram, direct: bool) -> None:
    """A run is in the trace of its submission, on each way."""
    shop = program(APP + TASKS, direct=direct)
    assert ways_with_context(shop, direct=direct) == all_ways(direct=direct)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_an_error_is_one_report(program: MakeProgram, pool: str) -> None:
    """A failed job is one report of an error, in each pool."""
    shop = program(APP + TASKS)
    with shop.worker("-P", pool):
        shop.run("failing.delay('it fails')")
        shop.await_states("failed")
    assert (shop.folder / "reports.txt").read_text().split().count("event") == 1
