"""What the parent reports of a child that has ended."""

from types import SimpleNamespace
from typing import Any

import pytest

from onejob.celery.messages.handover import BrokerHandover
from onejob.celery.worker.request import Request
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Applied, Cancel


@pytest.mark.parametrize("applied", [True, False])
def test_a_lost_child_is_reported_once(applied: bool) -> None:
    """Of two reports of a dead process only the one that the ledger applies tells Celery of the failure."""
    reported = list[str]()
    job: Any = SimpleNamespace(id="job", cancel=Cancel.NO, state=State.FAILED)
    ledger = SimpleNamespace(crash=lambda *_, **__: Applied(applied=applied, job=job))
    state = SimpleNamespace(ledger=ledger, publisher=SimpleNamespace(handover=BrokerHandover()))
    request: Any = SimpleNamespace(
        id="job", app_state=state, get_own_run=lambda: job, _already_cancelled=False,
        report_failure=lambda *_: reported.append("failed"),
    )  # fmt: skip
    Request.handle_lost_child(request, "its worker process died")
    assert reported == ["failed"] * applied
