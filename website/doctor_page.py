"""The page docs/operations/doctor.md, made from the checks in onejob.doctor."""

from __future__ import annotations

from onejob.doctor import SUBJECTS, checks_of
from onejob.health.finding import Level

HEAD = """# Checks of onejob doctor

This page is generated from the checks in `src/onejob/doctor` and `src/onejob/health` by `python -m website generate`;
`make lint` compares them.
How to run them: [deploying](deploying.md#before-production).

| level | what it means |
|---|---|
| `error` | the promise is broken, or no job runs |
| `warning` | the promise holds in ordinary operation, and not in every failure; or jobs wait |
| `info` | good to know, or a thing that could not be checked |
| `ok` | nothing to do |

`onejob doctor --json` prints each finding with `level`, `subject`, `problem` (what was found), `meaning`,
`remedy` and `check` (the name below).
In place of `URL` and `FILE` a finding has the server, database or file that was examined.
Passwords are left out: set `REDISCLI_AUTH` or `PGPASSWORD`.
"""


def page() -> str:
    """Return the page."""
    parts = [HEAD]
    for module in SUBJECTS:
        title = (module.__doc__ or "").partition("\n")[0].rstrip(".")
        parts.append(
            f"## {title}\n\n| check | level | found when | what it means | what to do |\n|---|---|---|---|---|"
        )
        ordered = sorted(checks_of(module), key=lambda check: [*Level].index(check.level), reverse=True)
        parts.extend(
            f"| `{check.name}` | {check.level} | {check.when} | {check.meaning} | {check.remedy} |" for check in ordered
        )
        parts.append("")
    return "\n".join(parts)
