"""The log of a run: the ledger has its lines while the run goes on, and none of a run that has lost its job."""

import logging
import threading

import pytest

import onejob
from onejob.celery.run_log import LINE_LIMIT, RunLogWriter, capturing
from onejob.errors import InvalidArgumentsError, StoreUnavailableError
from onejob.jobs.lifecycle import Transition
from onejob.jobs.run_log import CUT, LOG_LIMIT, end_of_log
from tests.cases import further
from tests.celery.harness import LEASE, PATIENCE, Cluster, await_, on_every_store
from tests.quiet import KILLED, provokes


def writer_to(written: list[str]) -> RunLogWriter:
    """Return a writer whose texts are appended to a list."""

    def keep(text: str) -> bool:
        written.append(text)
        return True

    return RunLogWriter(keep)


def logs_of(cluster: Cluster, result: onejob.AsyncResult) -> list[tuple[int, list[str]]]:
    """Return the lines of each attempt, without their times."""
    found = onejob.Client(cluster.app).logs(result.id)
    return [(each.attempt, [line.partition(" ")[2] for line in each.text.splitlines()]) for each in found]


@on_every_store("cluster")
@provokes(Transition.CRASH, logs=[KILLED], because="the worker is killed")
def test_a_log_is_read_while_the_run_goes_on(cluster: Cluster) -> None:
    """A line is in the ledger before the run ends, and that of a killed attempt stays beside that of the next one."""
    cluster.worker("-c", "1")
    result = cluster.play.delay("logged", ["log:first>hold:gate>kill", "log:second>return"])
    await_(lambda: logs_of(cluster, result) == [(1, ["first key=logged"])])
    cluster.open("gate")
    assert result.get(PATIENCE) == "logged"
    assert logs_of(cluster, result) == [(1, ["first key=logged"]), (2, ["second key=logged"])]


@pytest.mark.parametrize("pool", ["prefork", *further("threads", "solo")])
def test_records_of_logging_are_captured_for_their_own_run(cluster: Cluster, pool: str) -> None:
    """With `capture_logging` the records of a body are in the log of its run alone, also in a shared process."""
    cluster.worker("--pool", pool, "-c", "2")
    task = cluster.app.tasks["play_capture_logging"]
    results = [task.delay(f"run-{number}", [f"logging:record {number}>return"]) for number in range(3)]
    plain = cluster.play.delay("plain", ["logging:unseen>return"])
    assert [each.get(PATIENCE) for each in (*results, plain)] == ["run-0", "run-1", "run-2", "plain"]
    for number, result in enumerate(results):
        assert logs_of(cluster, result) == [(1, [f"WARNING shop: record {number}"])]
    assert logs_of(cluster, plain) == []


@provokes(Transition.CRASH, because="the worker is frozen for longer than its lease")
def test_a_late_run_logs_nothing(cluster: Cluster) -> None:
    """A run that has lost its job writes to no log: the lines of the attempt that overtook it stay."""
    cluster.use_lease(LEASE)
    cluster.two_workers()
    result = cluster.play.delay("late", ["hold:gate>log:too late", "log:in time>return"])
    late = cluster.worker_of(cluster.await_mark("late")[0])
    late.freeze()
    assert result.get(PATIENCE) == "late"
    cluster.open("gate")
    late.thaw()
    await_(lambda: [entry for entry in cluster.marks("late", "end") if entry["attempt"] == 1])
    assert logs_of(cluster, result) == [(2, ["in time key=late"])]


def test_a_log_is_bounded() -> None:
    """A log keeps its last lines, and says that it has lost the first ones; a record keeps its beginning."""
    text = "".join(f"line {number:05}\n" for number in range(10_000))
    kept = end_of_log(text)
    assert len(kept) <= LOG_LIMIT
    assert kept.startswith(f"{CUT}line ")
    assert text.endswith(kept.removeprefix(CUT))
    assert len(end_of_log("x" * (LOG_LIMIT + 1))) == LOG_LIMIT
    written: list[str] = []
    writer = writer_to(written)
    writer.add("y" * (LINE_LIMIT + 1))
    writer.flush()
    assert written == [f"{'y' * LINE_LIMIT}...\n"]


def test_a_log_survives_an_outage_of_the_store() -> None:
    """Lines that could not be written are written with the next ones, and the body does not notice."""
    outage, written = [True], list[str]()

    def keep(text: str) -> bool:
        if outage:
            outage.clear()
            raise StoreUnavailableError("away")
        written.append(text)
        return True

    writer = RunLogWriter(keep)
    for line in ("one", "two"):
        writer.add(line)
        writer.flush()
    writer.flush()
    assert written == ["one\ntwo\n"]


def test_a_body_does_not_wait_for_the_store() -> None:
    """While a write hangs, a body goes on logging."""
    hanging, done = threading.Event(), threading.Event()

    def keep(_: str) -> bool:
        hanging.set()
        return done.wait(PATIENCE)

    writer = RunLogWriter(keep)
    writer.add("one")
    assert hanging.wait(PATIENCE)
    writer.add("two")
    done.set()
    writer.flush()


def test_a_handler_of_other_runs_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """A captured record still reaches the other handlers, and outside of a run nothing is captured."""
    written: list[str] = []
    writer = writer_to(written)
    with capturing(writer):
        logging.getLogger("shop").warning("inside")
    logging.getLogger("shop").warning("outside")
    writer.flush()
    assert [line.split(" ", 1)[1] for line in written] == ["WARNING shop: inside\n"]
    assert caplog.messages == ["inside", "outside"]


def test_a_message_is_a_text() -> None:
    """Anything but a text is refused as what it is."""
    from onejob.celery.current_job import RunningJob
    from onejob.celery.run import Run

    job = RunningJob(Run.__new__(Run))
    wrong: object = {"rows": 3}
    with pytest.raises(InvalidArgumentsError, match=r"a message of a log is a text, not \{'rows': 3\}"):
        job.log(wrong)  # type: ignore[arg-type] # what is tested
