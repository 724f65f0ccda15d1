"""The stage `counts`: what an operation sends and computes, in numbers that a busy machine does not change.

Commands are those that Redis executed, within scripts too; instructions are the bytecodes that the submitting thread
executed, which differ between versions of Python and leave out what runs in C.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING, Any

import redis

from bench.contenders import Child, FailedError, Places, environment_of
from bench.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.contenders import Contender
    from bench.servers import Servers

OPERATIONS = 50
KINDS = ("submit", "duplicate", "bulk")
WARM_UP = 20
BULK = 500


def measure(servers: Servers, contenders: Sequence[Contender]) -> list[dict[str, Any]]:
    """Return the counts per operation of each contender and kind."""
    found: list[dict[str, Any]] = []
    for contender in contenders:
        kinds = [kind for kind in KINDS if kind in contender.kinds]
        try:
            found += [{"contender": contender.name, **row} for row in _counts(servers, contender, kinds)]
        except FailedError as error:
            found.append({"contender": contender.name, "kind": "", "failure": str(error)})
    return found


def _counts(servers: Servers, contender: Contender, kinds: Sequence[str]) -> list[dict[str, Any]]:
    if contender.missing:
        raise FailedError(contender.missing)
    with ExitStack() as stack:
        broker = stack.enter_context(Wire(servers.new_database("redis")))
        wires = [broker]
        if contender.store == "postgresql":
            wires.append(stack.enter_context(Wire(servers.new_database("postgresql"))))
        store = servers.new_database("sqlite") if contender.store == "sqlite" else wires[-1].url
        child = Child(contender, environment_of(contender, Places(broker.url, store)), servers.log(contender))
        stack.callback(child.close)
        child.ask("prepare")
        with redis.Redis(port=servers.redis.port) as server:
            return [_count(child, kind, server, wires) for kind in kinds]


def _count(child: Child, kind: str, server: redis.Redis, wires: Sequence[Wire]) -> dict[str, Any]:
    operations = BULK if kind == "bulk" else OPERATIONS
    first = count(KINDS.index(kind) * 10_000_000, 1_000_000)
    child.ask(kind, count=max(WARM_UP, operations), first=next(first))
    before = _snapshot(server, wires)
    child.ask(kind, count=operations, first=next(first))
    after = _snapshot(server, wires)
    found = {name: (after[name] - before[name]) / operations for name in after}
    traced = child.ask("instructions", of=kind, count=operations, first=next(first))
    return {"kind": kind, **found, **{name: traced[name] / operations for name in ("instructions", "calls")}}


def _snapshot(server: redis.Redis, wires: Sequence[Wire]) -> dict[str, int]:
    statistics: Any = server.info("commandstats")
    commands = sum(row["calls"] for name, row in statistics.items() if name != "cmdstat_info")
    redis_wire, *sql = wires
    return {
        "redis_commands": commands,
        "redis_requests": redis_wire.traffic.requests,
        "sql_statements": sum(wire.traffic.requests for wire in sql),
        "round_trips": sum(wire.traffic.round_trips for wire in wires),
        "bytes": sum(wire.traffic.sent + wire.traffic.received for wire in wires),
    }
