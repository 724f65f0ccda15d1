"""`celery worker --processes N`: several processes, each a worker by itself, that start, restart and end together."""

import subprocess
import sys

import click
import pytest

from onejob.concurrency.worker_processes import check, names, without_processes
from tests.cases import for_each
from tests.celery.harness import PATIENCE, Cluster, Worker, await_, is_running
from tests.celery.test_crash import stops

SUPERVISE = """
from onejob.concurrency import worker_processes
worker_processes.STARTING = {starting}
worker_processes.RESTART_PAUSE = 0.0
raise SystemExit(worker_processes.Supervisor([["--app", "missing", "report"]] * 2).run())
"""
STOPPED_AT_START = """
import os, signal
from onejob.concurrency.worker_processes import Supervisor

class Stopped(Supervisor):
    def _start(self, place):
        os.kill(os.getpid(), signal.SIGTERM)
        super()._start(place)

raise SystemExit(Stopped([["--broker", "memory://", "worker", "--pool", "solo"]] * 2).run())
"""


def start_two(cluster: Cluster) -> tuple[Worker, set[int]]:
    """Start a worker of two processes with one place each; return it, and their ids."""
    worker = cluster.start("--pool", "onejob", "-c", "1", "--processes", "2")
    for number in (1, 2):
        worker.await_text(f"{worker.name}-{number}@test ready.")
    for number in range(2):
        cluster.begin(f"held-{number}", ["hold:held"], task="await_play")
    return worker, {cluster.await_mark(f"held-{number}")[0]["pid"] for number in range(2)}


def test_a_worker_in_two_processes_runs_jobs_in_both_until_it_is_shut_down(cluster: Cluster) -> None:
    """A signal to the first process ends the others warmly, and then itself."""
    worker, pids = start_two(cluster)
    assert len(pids) == 2
    cluster.open("held")
    cluster.await_rest()
    worker.stop()
    assert not any(map(is_running, pids))
    assert worker.text.count("Warm shutdown") == 2
    cluster.assert_quiet()


@stops
def test_the_processes_of_a_worker_end_with_the_first(cluster: Cluster) -> None:
    """When the first process is killed, the others shut down, and their jobs are queued again."""
    worker, pids = start_two(cluster)
    worker.sigkill()
    await_(lambda: not any(map(is_running, pids)))
    cluster.open("held")
    cluster.worker("--pool", "onejob", "-c", "2")
    cluster.await_rest()
    assert {cluster.runs(f"held-{number}") for number in range(2)} == {2}
    cluster.assert_quiet()


def test_a_process_that_dies_is_started_again_until_the_worker_is_shut_down() -> None:
    """A process that has come to run, and dies, has a successor."""
    command = [sys.executable, "-c", SUPERVISE.format(starting=0.0)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as supervisor:
        assert supervisor.stderr is not None
        deaths = 0
        while deaths < 5:
            deaths += "died (exit code 2), and is started again" in supervisor.stderr.readline()
        supervisor.terminate()
        supervisor.stderr.read()
        assert supervisor.wait(PATIENCE) == 0


def test_processes_that_cannot_start_end_the_worker() -> None:
    """A process that ends with an error at its start ends all, with its exit code."""
    command = [sys.executable, "-c", SUPERVISE.format(starting=PATIENCE)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert ended.returncode == 2
    assert "of the worker ended at its start (exit code 2)" in ended.stderr


def test_a_signal_while_processes_start_stops_them_all() -> None:
    """A shutdown that comes while a process is being started reaches that one, and those that start after it."""
    ended = subprocess.run([sys.executable, "-c", STOPPED_AT_START], check=False, timeout=PATIENCE)
    assert ended.returncode == 0


@for_each("option, message", {"detach": "systemd", "beat": "onejob_beat = True", "purge": "celery purge"}.items())
def test_options_that_several_processes_cannot_have_are_refused(option: str, message: str) -> None:
    """What would happen in each of the processes, or cannot happen at all, is an error that says what to do."""
    with pytest.raises(click.UsageError, match=message):
        check({option: True})
    check({option: False})


def test_the_processes_have_names_and_files_of_their_own() -> None:
    """Nodes are numbered, and a file for all processes is refused unless its name has that of the node in it."""
    assert names("w1@shop", 3) == ["w1-1@shop", "w1-2@shop", "w1-3@shop"]
    check({"pidfile": "/run/celery/%n.pid", "statedb": None})
    with pytest.raises(click.UsageError, match=r"write %n, .* --pidfile=/run/celery/%n\.pid"):
        check({"pidfile": "/run/celery/worker.pid"})


def test_each_process_gets_the_other_arguments() -> None:
    """The option itself is left out, in both forms; without it on the command line nothing can be started."""
    for option in (["--processes", "4"], ["--processes=4"]):
        assert [*without_processes(["-A", "shop", "worker", *option, "-c", "9"])] == ["-A", "shop", "worker", "-c", "9"]
    with pytest.raises(click.UsageError, match="start several workers instead"):
        [*without_processes(["-A", "shop", "worker"])]
