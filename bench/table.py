"""The results as a table for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

Result = dict[str, Any]
_UNKNOWN = (float("nan"),) * 3


def compared(title: str, results: Sequence[Result]) -> str:
    """Return a table of contenders: rate and time of an operation, ratio with quartiles, processor time."""
    rows = [("", "", "per second", "µs", "ratio", "quartiles", "CPU µs", "CPU ratio"), *map(_row, results)]
    return f"{title}\n{aligned(rows)}"


def _row(result: Result) -> tuple[str, ...]:
    name = (result["kind"], result["contender"])
    if "failure" in result:
        return (*name, f"- {result['failure']}")
    low, middle, high = result.get("ratio", _UNKNOWN)
    seconds, cpu = result["median"], result["cpu"]
    cells = (f"{1 / seconds:,.0f}", f"{seconds * 1e6:,.0f}", f"{middle:.2f}", f"{low:.2f} to {high:.2f}")
    return (*name, *cells, *((f"{cpu * 1e6:,.0f}", f"{result.get('cpu_ratio', _UNKNOWN)[1]:.2f}") if cpu else ("", "")))


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as lines: the first two columns to the left, the others to the right."""
    whole = [row for row in rows if len(row) == len(rows[0])]
    widths = [max(len(row[column]) for row in whole) for column in range(len(rows[0]))]
    widths[:2] = [max(len(row[column]) for row in rows) for column in range(2)]
    return "\n".join("  ".join(_cells(row, widths)).rstrip() for row in rows)


def _cells(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        text.ljust(width) if column < 2 else text.rjust(width)
        for column, (text, width) in enumerate(zip(row, widths, strict=False))
    ]


def counted(title: str, results: Sequence[Result]) -> str:
    """Return a table of counts per operation."""
    names = ("redis_requests", "redis_commands", "sql_statements", "round_trips", "bytes", "instructions", "calls")
    rows = [("", "", *(name.replace("_", " ") for name in names))]
    for kind in dict.fromkeys(result["kind"] for result in results):
        for result in results:
            if result["kind"] == kind:
                numbers = [f"- {result['failure']}"] if "failure" in result else [short(result[name]) for name in names]
                rows.append((kind, result["contender"], *numbers))
    return f"{title}\n{aligned(rows)}"


def short(number: float) -> str:
    """Return a number with three digits or all of its whole part."""
    return f"{number:,.0f}" if number >= 100 or number == int(number) else f"{number:.3g}"


def stored(title: str, results: Sequence[Result]) -> str:
    """Return a table of the bytes per job, in one column for each state of the jobs."""
    rows = [("", "", "per job")]
    for result in results:
        if "failure" in result:
            rows.append((result["contender"], "", f"- {result['failure']}"))
            continue
        sizes = {name: size for name, size in result["sizes"].items() if size >= 0.005}
        rows += [(f"{result['contender']}, {result['state']}", name, short(size)) for name, size in sizes.items()]
    return f"{title}\n{aligned(rows)}"


def grown(title: str, results: Sequence[Result]) -> str:
    """Return a table of milliseconds, and their ratios to those among the fewest jobs."""
    sizes = results[0]["jobs"] if results else []
    rows = [("", "", *(f"{size:,} jobs" for size in sizes), *("ratio" for _ in sizes[1:]))]
    for result in results:
        times = [f"{1000 * seconds:.3f}" for seconds in result["medians"]]
        rows.append((result["store"], result["kind"], *times, *(f"{ratio:.2f}" for ratio in result["ratios"][1:])))
    return f"{title}\n{aligned(rows)}"


def recovered(title: str, results: Sequence[Result]) -> str:
    """Return a table of seconds and leases."""
    rows: list[tuple[str, ...]] = [("", "", "seconds", "leases")]
    for result in results:
        if "failure" in result:
            rows.append((result["contender"], "", f"- {result['failure']}"))
        else:
            seconds = " ".join(f"{one:.2f}" for one in result["seconds"])
            rows.append((result["contender"], f"lease {result['lease']:g} s", seconds, f"{result['leases']:.2f}"))
    return f"{title}\n{aligned(rows)}"
