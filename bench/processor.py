"""The processor time of everything that the bench has started: contenders, workers and servers."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_PARENT, _TIMES = 1, slice(11, 15)
_PROC = Path("/proc")


def seconds() -> float:
    """Return the seconds that all processes below this one have taken until now; 0 on a system without /proc.

    In a round one contender works and the others wait: a difference is that of the contender and the servers.
    """
    own = os.times()
    return max(0.0, seconds_below(os.getpid()) - own.user - own.system)


def seconds_below(top: int) -> float:
    """Return the seconds that a process and all below it have taken until now; 0 on a system without /proc."""
    parents, taken = {}, {}
    for folder in _PROC.glob("[0-9]*"):
        with suppress(OSError):  # the process has ended
            fields = (folder / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            parents[int(folder.name)] = int(fields[_PARENT])
            taken[int(folder.name)] = sum(map(int, fields[_TIMES]))
    ticks = sum(taken[pid] for pid in taken if _is_below(pid, top, parents))
    return ticks / os.sysconf("SC_CLK_TCK")


def seconds_of(pid: int) -> float:
    """Return the seconds of processor time that a process has taken; 0 on a system without /proc."""
    with suppress(OSError):
        fields = (_PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _is_below(pid: int, top: int, parents: dict[int, int]) -> bool:
    """Return whether a process is another one, or descends from it."""
    while pid not in {top, 0}:
        pid = parents.get(pid, 0)
    return pid == top
