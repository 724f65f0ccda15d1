"""newrelic: whether a run is in the trace of its submission."""

import pytest

from tests.works_with.context import TASKS, all_ways, ways_with_context
from tests.works_with.program import MakeProgram, on_both_brokers
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("newrelic==14.1.0",),
    ran="the agent in its developer mode: the trace of a run on each way from a submission; Redis, `onejob://`",
    holds="A run is in the trace of its submission, on each way.",
    do="",
    fails="",
)
APP = """
import newrelic.agent
newrelic.agent.initialize()
from contextlib import contextmanager
from kit import *

app = make_app()

@contextmanager
def within():
    with newrelic.agent.BackgroundTask(newrelic.agent.register_application(timeout=10), "request"):
        Path("trace").write_text(newrelic.agent.current_trace_id())
        yield

def seen():
    return newrelic.agent.current_trace_id() == Path("trace").read_text()
"""
AGENT = {
    "NEW_RELIC_LICENSE_KEY": "0" * 40,
    "NEW_RELIC_APP_NAME": "shop",
    "NEW_RELIC_DEVELOPER_MODE": "true",
    "NEW_RELIC_LOG": "stderr",
    "NEW_RELIC_LOG_LEVEL": "info",
}


@on_both_brokers
def test_a_run_is_in_the_trace_of_its_submission(program: MakeProgram, direct: bool) -> None:
    """A run is in the trace of its submission, on each way."""
    shop = program(APP + TASKS, direct=direct, **AGENT)
    assert ways_with_context(shop, direct=direct) == all_ways(direct=direct)
