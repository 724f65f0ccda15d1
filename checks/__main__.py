"""Run the checks and print their faults, each with its file and line.

python -m checks                # all checks
python -m checks names links    # those with these names
"""

from __future__ import annotations

import sys

from checks import blocks, code, deploy, imports, kubernetes, monitoring, packaging, pages, prose, statements, suite  # noqa: F401 - they add their checks
from checks.project import CHECKS, read_project


def main(names: list[str]) -> int:
    """Run the named checks, or all of them; return the exit code."""
    if unknown := set(names) - set(CHECKS):
        print(f"no such check: {', '.join(sorted(unknown))}; there are {', '.join(CHECKS)}")
        return 2
    project = read_project()
    faults = [fault for name in names or CHECKS for fault in CHECKS[name](project)]
    print(*faults, sep="\n") if faults else print(f"{len(names or CHECKS)} checks passed")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
