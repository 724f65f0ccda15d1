"""The results as a table for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

Result = dict[str, Any]


def compared(title: str, results: Sequence[Result]) -> str:
    """Return a table of contenders: rate, time and CPU time of an operation, and the ratio with its quartiles."""
    rows = [("", "", "per second", "µs", "CPU µs", "ratio", "quartiles"), *map(_row, results)]
    return f"{title}\n{aligned(rows)}"


def _row(result: Result) -> tuple[str, ...]:
    name = (result["kind"], result["contender"])
    if "failure" in result:
        return (*name, f"- {result['failure']}")
    low, middle, high = result.get("ratio", (float("nan"),) * 3)
    seconds, cpu = result["median"], result["cpu"]
    times = (f"{1 / seconds:,.0f}", f"{seconds * 1e6:,.0f}", f"{cpu * 1e6:,.0f}" if cpu else "")
    return (*name, *times, f"{middle:.2f}", f"{low:.2f} to {high:.2f}")


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
