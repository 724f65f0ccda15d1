"""opentelemetry-instrumentation-celery: whether a run is in the trace of its submission, alone and beside ours."""

import pytest

from tests.works_with.context import TASKS, all_ways, ways_with_context
from tests.works_with.program import MakeProgram, on_both_brokers
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("opentelemetry-instrumentation-celery==0.66b2",),
    needs=("opentelemetry-instrumentation==0.66b2", "wrapt==2.5.2"),
    ran="the trace of a run on each way from a submission, with the instrumentation alone and beside that of onejob; "
    "Redis, `onejob://`",
    holds="A run is in the trace of its submission, on each way, alone and beside `onejob.opentelemetry.instrument()`.",
    do="",
    fails="",
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


@pytest.mark.parametrize("beside", ["", "1"], ids=["alone", "beside-ours"])
@on_both_brokers
def test_a_run_is_in_the_trace_of_its_submission(program: MakeProgram, direct: bool, beside: str) -> None:
    """A run is in the trace of its submission, on each way, alone and beside the instrumentation of onejob."""
    shop = program(APP + TASKS, direct=direct, BESIDE_OURS=beside)
    assert ways_with_context(shop, direct=direct) == all_ways(direct=direct)
