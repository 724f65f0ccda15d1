"""opentelemetry-instrumentation-celery: whether a run is in the trace of its submission, alone and beside ours."""

import pytest

from tests.works_with.context import TASKS, WAYS, ways_with_context
from tests.works_with.program import MakeProgram, on_both_brokers
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("opentelemetry-instrumentation-celery==0.66b2",),
    needs=("opentelemetry-instrumentation==0.66b2", "wrapt==2.5.2"),
    ran="the trace of a run on each way from a submission, with the instrumentation alone and beside that of onejob; "
    "Redis, `onejob://`",
    holds="Beside `onejob.opentelemetry.instrument()` each run is in the trace of its submission.",
    do="Instrument both.",
    fails="Alone it loses the trace after a `countdown`, a retry, a redrive and a sweep.",
)
APP = """
from contextlib import contextmanager
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from kit import *

trace.set_tracer_provider(TracerProvider())
app = make_app()
CeleryInstrumentor().instrument()
if os.environ["BESIDE_OURS"]:
    import onejob.opentelemetry
    onejob.opentelemetry.instrument()

def current():
    return format(trace.get_current_span().get_span_context().trace_id, "x")

@contextmanager
def within():
    with trace.get_tracer("shop").start_as_current_span("request"):
        Path("trace").write_text(current())
        yield

def seen():
    return current() == Path("trace").read_text()
"""


@on_both_brokers
def test_alone_it_knows_the_message(program: MakeProgram, direct: bool) -> None:
    """Alone, its trace goes on where the submitter publishes the message, or writes the row that workers take."""
    shop = program(APP + TASKS, direct=direct, BESIDE_OURS="")
    assert ways_with_context(shop, direct=direct) == {"call", "submit_many"}


@on_both_brokers
def test_beside_ours_it_is_the_trace_of_the_submission(program: MakeProgram, direct: bool) -> None:
    """Beside the instrumentation of onejob each run is in the trace of its submission."""
    shop = program(APP + TASKS, direct=direct, BESIDE_OURS="1")
    assert ways_with_context(shop, direct=direct) == WAYS - ({"sweep"} if direct else set())
