"""The meter: it counts in the process, writes now and then, and never harms what it counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, cast

import pytest

from onejob.config import Settings, build_ledger
from onejob.errors import ConfigurationError, StoreUnavailableError
from onejob.observability.events import JobEvent
from onejob.observability.meter import Meter, write_all
from onejob.stores.sqlite import SQLiteStore
from tests.contract.support import submission
from tests.services import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from onejob.stores.protocol import Store

CLAIMED = JobEvent("job_claimed", "job-1", "known", {})
CLAIMS, OTHERS = '["claims_total", "known"]', '["claims_total", "other"]'
NEVER = 1e6
"""An interval that no test waits for."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    """Return a store in a file."""
    store = SQLiteStore(tmp_path / "ledger.db")
    yield store
    store.close()


def meter(store: Store, interval: float = NEVER) -> Meter:
    return Meter(store.increment, interval, lambda task: task == "known")


@pytest.fixture
def threads() -> Callable[[], list[threading.Thread]]:
    """Return a way to look for threads that write counts, apart from those of ledgers that other tests have open."""
    before = threading.enumerate()
    return lambda: [each for each in threading.enumerate() if each.name == "onejob-metrics" and each not in before]


def test_nothing_is_written_before_its_time(store: SQLiteStore, threads: Callable[[], object]) -> None:
    """What is counted stays in the process until it is time to write, or until the ledger is closed."""
    counting = meter(store)
    for _ in range(3):
        counting.count(CLAIMED)
    assert store.totals() == {}
    counting.close()
    assert store.totals() == {CLAIMS: 3.0}
    assert threads() == []


def test_what_is_counted_arrives(store: SQLiteStore, threads: Callable[[], object]) -> None:
    """After an interval the amounts are in the store, and so are those that are counted afterwards; no thread stays."""
    counting = meter(store, 0.01)
    counting.count(CLAIMED)
    eventually(lambda: store.totals() == {CLAIMS: 1.0}, 30)
    counting.count(CLAIMED)
    eventually(lambda: store.totals() == {CLAIMS: 2.0}, 30)
    assert eventually(lambda: not threads(), 30)


def test_tasks_that_nobody_knows_are_one(store: SQLiteStore) -> None:
    """The task of a fact is a label only if the app has it, so that labels do not grow without end."""
    counting = meter(store)
    for number in range(10):
        counting.count(JobEvent("job_claimed", "job-1", f"made up {number}", {}))
    counting.close()
    assert store.totals() == {OTHERS: 10.0}


def test_many_threads_count(store: SQLiteStore) -> None:
    """What several threads count at once is all counted, while it is written again and again."""
    counting = meter(store, 0.001)

    def count() -> None:
        for _ in range(2000):
            counting.count(CLAIMED)

    counters = [threading.Thread(target=count) for _ in range(4)]
    for thread in counters:
        thread.start()
    for thread in counters:
        thread.join()
    counting.close()
    assert store.totals() == {CLAIMS: 8000.0}


class Away:
    """A store that does not answer until it is told to."""

    def __init__(self) -> None:
        self.back = False
        self.got: list[Mapping[str, float]] = []

    def add(self, amounts: Mapping[str, float]) -> None:
        if not self.back:
            raise StoreUnavailableError("away")
        self.got.append(amounts)


def test_a_store_that_is_away_costs_the_amounts_only() -> None:
    """What cannot be written is let go, nobody is told by an exception, and counting goes on."""
    away = Away()
    counting = meter(cast("Store", away))
    counting.count(CLAIMED)
    counting.write()
    away.back = True
    counting.count(CLAIMED)
    counting.close()
    assert away.got == [{CLAIMS: 1.0}]


class Stuck:
    """A store whose answer waits for the test."""

    def __init__(self) -> None:
        self.asked, self.answer = threading.Event(), threading.Event()

    def add(self, _amounts: Mapping[str, float]) -> None:
        self.asked.set()
        assert self.answer.wait(60)


def test_a_store_that_hangs_holds_nobody_up(threads: Callable[[], object]) -> None:
    """While an addition hangs, counting goes on, and to close waits no longer than a moment."""
    stuck = Stuck()
    counting = meter(cast("Store", stuck), 0.01)
    counting.count(CLAIMED)
    assert stuck.asked.wait(60)
    counting.count(CLAIMED)
    counting.close()
    assert not stuck.answer.is_set()
    stuck.answer.set()
    eventually(lambda: not threads(), 30)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_begins_with_nothing(store: SQLiteStore) -> None:
    """What the parent has counted before a fork is written by the parent alone, and the child counts for itself."""
    counting = meter(store)
    counting.count(CLAIMED)
    child = os.fork()
    if child == 0:
        counting.count(CLAIMED)
        write_all()
        os._exit(0)
    os.waitpid(child, 0)
    assert store.totals() == {CLAIMS: 1.0}
    counting.close()
    assert store.totals() == {CLAIMS: 2.0}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_while_somebody_counts_leaves_the_child_able_to(store: SQLiteStore) -> None:
    """A lock that another thread held when the process forked does not hold the child."""
    counting = meter(store)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with counting._lock:
            held.set()
            release.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(60)
    child = os.fork()
    if child == 0:
        counting.count(CLAIMED)
        os._exit(0)
    release.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


PROGRAM = """
import sys
from onejob.config import Settings, build_ledger
from tests.contract.support import submission
ledger = build_ledger(Settings(store=sys.argv[1], metrics_interval=1000.0), lambda task: True)
ledger.submit(submission())
"""


def test_a_process_that_ends_writes_what_it_has_counted(tmp_path: Path, store: SQLiteStore) -> None:
    """An end of the interpreter loses nothing, also when nobody closed the ledger."""
    command = [sys.executable, "-c", PROGRAM, f"sqlite:///{tmp_path / 'ledger.db'}"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert store.totals() == {'["submissions_total", "app.add", "admitted"]': 1.0}


def test_a_ledger_counts_as_its_settings_say(tmp_path: Path) -> None:
    """A ledger of settings counts, unless `onejob_metrics_interval` is 0."""
    for interval, totals in ((0.0, {}), (NEVER, {json.dumps(["submissions_total", "other", "attached"]): 1.0})):
        settings = Settings(store=f"sqlite:///{tmp_path / 'l.db'}", metrics_interval=interval, log_jobs=False)
        ledger = build_ledger(settings)
        ledger.submit(submission(f"job-{interval}", identity="same"))
        ledger.close()
        assert ledger.store.totals() == totals
        ledger.close()


@pytest.mark.parametrize(
    "wrong", [{"metrics_interval": -1}, {"metrics_interval": True}, {"metrics_interval": "2"}, {"log_jobs": "yes"}]
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    """An interval is a number of seconds or 0, and whether to log is true or false."""
    (name,) = wrong
    with pytest.raises(ConfigurationError, match=f"onejob_{name}"):
        Settings(**wrong)
