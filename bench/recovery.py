"""The stage `recovery`: a worker with a running job is killed; how long until another worker runs the job again."""

from __future__ import annotations

import os
import signal
import statistics
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bench.contenders import FailedError
from bench.peers.common import FIRST_RUN
from bench.runs import Runner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.contenders import Contender
    from bench.servers import Servers

LEASE = 6.0
CONF = {"onejob_lease": LEASE}
LONGEST = 10 * LEASE


def measure(servers: Servers, contenders: Sequence[Contender], rounds: int) -> list[dict[str, Any]]:
    """Return the seconds of each round, and their median in leases."""
    found: list[dict[str, Any]] = []
    for contender in contenders:
        row: dict[str, Any] = {"contender": contender.name, "lease": LEASE}
        try:
            seconds = _seconds(servers, contender, rounds)
            found.append(row | {"seconds": seconds, "leases": statistics.median(seconds) / LEASE})
        except FailedError as error:
            found.append(row | {"failure": str(error)})
    return found


def _seconds(servers: Servers, contender: Contender, rounds: int) -> list[float]:
    runner = Runner(replace(contender, conf={**contender.conf, **CONF}), servers, {FIRST_RUN: str(LONGEST)})
    try:
        runner.prepare()
        return [_recover(runner) for _ in range(rounds)]
    finally:
        runner.close()


def _recover(runner: Runner) -> float:
    """Kill the worker that runs a job; return the seconds until the job's second run."""
    runner.submit(1)
    with ExitStack() as stack:
        (first,) = stack.enter_context(runner.working())
        runner.await_runs(1, LONGEST)
        stack.enter_context(runner.working())
        time.sleep(3.0)  # the other worker has started by then
        os.killpg(first.pid, signal.SIGKILL)
        killed = time.monotonic()
        runs, ran = runner.await_runs(2, LONGEST)
    if runs < 2:
        raise FailedError(f"the job did not run again in {LONGEST:g} s")
    return ran - killed
