"""The stage `wait`: one client awaits each of its jobs before it submits the next one, and a worker is idle."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from bench.contenders import FailedError
from bench.rounds import as_results, run_rounds
from bench.runs import Runner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.contenders import Contender
    from bench.servers import Servers

WARM_UP = 20


def compare(servers: Servers, contenders: Sequence[Contender], *, rounds: int, jobs: int) -> list[dict[str, Any]]:
    """Return what a job takes every contender from its submission to its result, beside the first one."""
    failures: dict[str, str] = {}
    runners = {one.name: Runner(one, servers) for one in contenders}
    with ExitStack() as stack:
        for name, runner in runners.items():
            stack.callback(runner.close)
            try:
                runner.prepare()
                stack.enter_context(runner.working())
                runner.wait(WARM_UP)
            except FailedError as error:
                failures[name] = str(error)
        found = run_rounds(contenders, ["wait"], rounds, lambda one, _kind: runners[one.name].wait(jobs), failures)
    return as_results(found, contenders[0], jobs)
