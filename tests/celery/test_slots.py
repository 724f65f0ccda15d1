"""How many jobs a worker takes."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.worker import state

from onejob.celery.app_state import app_state_of
from onejob.celery.slots import MAX_AHEAD, Slots
from onejob.celery.worker.bootstep import LedgerStep
from tests.cases import for_each
from tests.stores.support import ManualClock

PROCESSES = 2


@for_each("seconds, runs, held, wanted", [
    (1.0, 0, 0, 2), (1.0, 0, 1, 1), (1.0, 0, 2, 0), (60.0, 20, 2, 0),
    (0.02, 100, 0, 10), (0.02, 100, 4, 6), (0.02, 100, 7, 0), (0.001, 400, 0, 2 + 2 * MAX_AHEAD),
])  # fmt: skip
def test_a_worker_takes_what_its_processes_soon_run(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, seconds: float, runs: int, held: int, wanted: int
) -> None:
    """Jobs are taken for free processes; ahead of them so many as they run in a tenth of a second, several at once."""
    monkeypatch.setattr(state, "all_total_count", [0])
    slots = Slots(SimpleNamespace(pool=SimpleNamespace(num_processes=PROCESSES)), set, clock)
    for _ in range(runs):
        clock.advance(seconds / PROCESSES)
        state.all_total_count[0] += 1
        slots.count_wanted([])
    assert slots.count_wanted([f"job-{number}" for number in range(held)]) == wanted


def test_an_autoscaled_worker_takes_what_it_can_scale_to(clock: ManualClock) -> None:
    """A worker takes jobs for the processes that its autoscaler may start, which starts them for jobs that wait."""
    scaler, pool = SimpleNamespace(max_concurrency=4), SimpleNamespace(num_processes=1)
    slots = Slots(SimpleNamespace(pool=pool, autoscaler=scaler), set, clock)
    assert [slots.count_wanted([*held]) for held in ("", "abc", "abcd")] == [4, 1, 0]


def test_the_slots_of_a_worker_end_with_it(tmp_path: Path) -> None:
    """An app whose worker has stopped in this process takes no jobs by the free processes of that worker."""
    app = Celery(broker="memory://", set_as_current=False)
    app.conf.onejob_store = f"sqlite:///{tmp_path / 'ledger.db'}"
    app_state, worker = app_state_of(app), SimpleNamespace(app=app, hostname="one@host")
    step = LedgerStep(worker)
    app_state.slots = Slots(worker, set)
    step._on_shutdown(worker)
    app_state.close()
    assert app_state.slots is None
