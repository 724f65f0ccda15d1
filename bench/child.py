"""The process of one contender: it keeps its connections, and does what the bench writes to its standard input.

A request is a line of JSON such as {"kind": "new", "count": 500, "first": 1, "threads": 1}; its response is one, too.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.peers.common import Peer

BULK = 500
"""How many jobs one bulk submission has."""


def main() -> None:
    """Answer requests until the bench closes the pipe."""
    answers = _take_stdout()
    peer = import_module(f"bench.peers.{sys.argv[1]}").peer
    for line in sys.stdin:
        try:
            answer = respond(peer, json.loads(line))
        except Exception as error:  # noqa: BLE001 - whatever fails in a library is a result
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), file=answers, flush=True)


def _take_stdout() -> TextIO:
    """Return the standard output, and let what libraries print go to the standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def respond(peer: Peer, request: dict[str, Any]) -> dict[str, Any]:
    """Do what a request says, and return how long it took."""
    kind, count, first = request["kind"], request.get("count", 0), request.get("first", 0)
    if kind in {"prepare", "connect"}:
        peer.connect()
        if kind == "prepare":
            peer.prepare()
        return {"commands": [list(command) for command in peer.commands]}
    numbers = range(first, first + count)
    if kind == "instructions":
        return _counted(partial(operation(peer, request["of"]), numbers))
    if (threads := request.get("threads", 1)) > 1:
        return _timed(partial(_side_by_side, operation(peer, kind), numbers, threads))
    return _timed(partial(operation(peer, kind), numbers))


def operation(peer: Peer, kind: str) -> Callable[[Sequence[int]], None]:
    """Return what a kind of operation does with a range of numbers."""
    if kind == "bulk":
        return partial(_submit_in_bulk, peer)
    if kind == "duplicate":
        return lambda numbers: peer.submit_equal([0] * len(numbers))
    return peer.wait if kind == "wait" else peer.submit


def _submit_in_bulk(peer: Peer, numbers: Sequence[int]) -> None:
    for at in range(0, len(numbers), BULK):
        peer.submit_bulk(numbers[at : at + BULK])


def _timed(call: Callable[[], None]) -> dict[str, Any]:
    gc.collect()
    began = time.monotonic()
    call()
    return {"began": began, "ended": time.monotonic()}


def _side_by_side(submit: Callable[[Sequence[int]], None], numbers: Sequence[int], threads: int) -> None:
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(submit, [numbers[at::threads] for at in range(threads)]))


def _counted(call: Callable[[], None]) -> dict[str, Any]:
    """Count the bytecode instructions and the function calls of this thread; C code is not counted."""
    counts = {"opcode": 0, "call": 0}

    def trace(frame: Any, event: str, _argument: object) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event in counts:
            counts[event] += 1
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return {"instructions": counts["opcode"], "calls": counts["call"]}


if __name__ == "__main__":
    main()
