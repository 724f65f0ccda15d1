"""What a worker knows of itself: its contact with the store, whether it is alive, and how many jobs it takes."""

import math
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.worker import state

from onejob.celery.app_state import app_state_of
from onejob.celery.loops import FailureLog, Loop
from onejob.celery.probe import ProbeFile, find_fault
from onejob.celery.slots import MAX_AHEAD, Slots
from onejob.celery.worker.bootstep import MAX_SHARE, SWEEPERS, LedgerStep, release_run, sweep_share
from onejob.celery.worker.heartbeat import StoreContact
from onejob.celery.worker.request import Request
from onejob.errors import BrokerUnavailableError, ConfigurationError, StoreError
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Applied, Cancel
from tests.cases import for_each
from tests.cli.command import call
from tests.contract.support import START, ManualClock

LEASE, INTERVAL = 30.0, 10.0


@pytest.fixture
def contact(clock: ManualClock) -> StoreContact:
    """Return the contact of a worker that has just started."""
    return StoreContact(settling=LEASE / 2, shortest=LEASE, interval=INTERVAL, clock=lambda: clock.now - START)


def renew(contact: StoreContact, clock: ManualClock, seconds: float) -> None:
    """Renew at the interval for so long."""
    for _ in range(round(seconds / INTERVAL)):
        clock.advance(INTERVAL)
        contact.reached()


def test_an_outage_is_logged_at_once_and_then_less_and_less(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that is away is logged at once, then after pauses that double up to a minute, and when it is back."""
    log = FailureLog("the-loop", clock=clock)
    for _ in range(2):
        log.record_success()
        begin = clock()
        for second in range(300):
            log.record_failure(StoreError(f"at {second}"))
            clock.advance(1.0)
        log.record_success()
        assert clock() - begin == 300.0
        assert [each.getMessage().partition(": ")[2] or each.getMessage() for each in caplog.records] == [
            *(f"at {second}" for second in (0, 2, 6, 14, 30, 62, 122, 182, 242)), "the-loop works again, after 300 s",
        ]  # fmt: skip
        caplog.clear()


def test_an_outage_of_the_broker_is_logged_without_a_stack(caplog: pytest.LogCaptureFixture) -> None:
    """While a loop fails since the broker is away, it logs that as it does for the store: in lines without a stack."""
    failed = threading.Event()

    def tick() -> None:
        failed.set()
        raise BrokerUnavailableError("nobody listens")

    loop = Loop("the-loop", 0.0, tick)
    loop.start()
    assert failed.wait(40.0)
    loop.stop()
    assert caplog.records
    for record in caplog.records:
        assert (record.getMessage(), record.exc_info) == ("the-loop failed, and goes on: nobody listens", None)


def test_a_worker_that_starts_waits(contact: StoreContact, clock: ManualClock) -> None:
    """No lease is ended by a worker that starts, in an outage in which leases may expire, and half a lease after."""
    assert not contact.steady
    assert contact.reached() == math.inf
    assert not contact.steady
    renew(contact, clock, LEASE)
    assert contact.steady
    renew(contact, clock, 2 * LEASE)
    clock.advance(LEASE - INTERVAL)
    assert contact.steady
    contact.reached()
    assert contact.steady
    clock.advance(LEASE)
    assert not contact.steady
    assert contact.reached() == LEASE
    assert not contact.steady
    renew(contact, clock, INTERVAL)
    assert not contact.steady
    renew(contact, clock, INTERVAL)
    assert contact.steady


def test_a_worker_that_moves_is_alive_and_ready_after_its_first_contact(tmp_path: Path) -> None:
    """A file that was just touched is that of a worker that is alive; it is ready with an answer of the store."""
    path = tmp_path / "worker"
    file = ProbeFile(str(path))
    assert "no worker writes" in str(find_fault(path, time.time()))
    file.create()
    assert find_fault(path, time.time()) is None
    assert "not reached the store yet" in str(find_fault(path, time.time(), ready=True))
    file.write_contact(silent=True)
    assert "hears nothing from its broker" in str(find_fault(path, time.time(), ready=True))
    file.write_contact()
    assert find_fault(path, time.time(), ready=True) is None
    for content in (b"hello\n", b"\xff\xfe"):
        path.write_bytes(content)
        assert "it has other content" in str(find_fault(path, time.time(), ready=True))
    file.remove()
    assert find_fault(path, time.time()) is not None
    file.remove()


def test_a_worker_without_the_store_is_alive_and_not_ready(tmp_path: Path) -> None:
    """While the store is away a worker is alive, and no longer ready after the maximum age."""
    path = tmp_path / "worker"
    file = ProbeFile(str(path))
    file.create()
    file.write_contact()
    later = time.time() + 61
    assert "has not moved for 6" in str(find_fault(path, later))
    os.utime(path, (later, later))
    assert find_fault(path, later) is None
    assert "not reached the store for 6" in str(find_fault(path, later, ready=True))
    assert find_fault(path, later, ready=True, max_age=100.0) is None


def test_the_command_fails_with_the_reason(tmp_path: Path) -> None:
    """`onejob probe FILE` has the exit code 0 for a live worker, and otherwise 1 and the reason."""
    path = tmp_path / "worker"
    missing = call("probe", str(path))
    assert (missing.exit_code, "no worker writes" in missing.output) == (1, True)
    ProbeFile(str(path)).create()
    assert [call("probe", str(path), *options).exit_code for options in ((), ("--ready",))] == [0, 1]


def test_a_file_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    """A probe file in a missing folder is a configuration error; no path is no file."""
    with pytest.raises(ConfigurationError, match=r"onejob_probe_file=.*writable folder"):
        ProbeFile(str(tmp_path / "missing" / "worker")).create()
    for write in (ProbeFile("").create, ProbeFile("").touch, ProbeFile("").write_contact, ProbeFile("").remove):
        write()


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


@for_each("workers, share", [(0, 1.0), (SWEEPERS, 1.0), (3 * SWEEPERS, 3.0), (1000, MAX_SHARE)])
def test_many_workers_share_the_sweeps(workers: int, share: float) -> None:
    """Together many workers sweep as often as a few, and each of them often enough."""
    assert sweep_share(workers) == share


def test_a_run_is_stopped_while_the_store_is_away() -> None:
    """A worker that stops kills the process of a run also if the store does not say whether that is still its own."""
    done = list[str]()

    def get_own_run() -> None:
        raise StoreError("away")

    request: Any = SimpleNamespace(
        get_own_run=get_own_run, kill_child=lambda: done.append("killed"), release=lambda _: done.append("released")
    )
    release_run(request)
    request.get_own_run = lambda: None  # it has ended
    release_run(request)
    assert done == ["killed"]


@pytest.mark.parametrize("applied", [True, False])
def test_a_lost_child_is_reported_once(applied: bool) -> None:
    """Of two reports of a dead process only the one that the ledger applies tells Celery of the failure."""
    reported = list[str]()
    job: Any = SimpleNamespace(id="job", cancel=Cancel.NO, state=State.FAILED)
    ledger = SimpleNamespace(crash=lambda *_, **__: Applied(applied=applied, job=job))
    state = SimpleNamespace(ledger=ledger, publisher=SimpleNamespace(message_of=lambda _: None))
    request: Any = SimpleNamespace(
        id="job", app_state=state, get_own_run=lambda: job, _already_cancelled=False,
        report_failure=lambda *_: reported.append("failed"),
    )  # fmt: skip
    Request.handle_lost_child(request, "its worker process died")
    assert reported == ["failed"] * applied
