"""The page docs/concepts/lifecycle.md, made from the table in onejob.jobs.lifecycle."""

from __future__ import annotations

from onejob.jobs.lifecycle import FINAL, RULES, State

HEAD = """# Lifecycle

This page is generated from the table in `src/onejob/jobs/lifecycle.py` by `python -m website generate`;
`make lint` compares them.

A job is in one of six states: {states}.
{final} are final: no further run starts.

A *fenced* transition belongs to a run: it is applied only while the run's token is the job's token.
A submitter, an operator or the sweeper makes the others.

![The states of a job as boxes, the transitions between them as arrows](../images/lifecycle.svg)

Transitions that keep the state are in the table alone.

| transition | from | to | fenced | when |
|---|---|---|---|---|"""


def page() -> str:
    """Return the page."""
    names = [f"`{state}`" for state in State]
    final = [f"`{state}`" for state in State if state in FINAL]
    lines = [HEAD.format(states=", ".join(names), final=", ".join(final[:-1]).capitalize() + f" and {final[-1]}")]
    for event, rule in RULES.items():
        sources = ", ".join(str(state) for state in State if state in rule.sources)
        target = rule.target or "stays"
        lines.append(f"| `{event}` | {sources} | {target} | {'yes' if rule.fenced else ''} | {rule.meaning} |")
    return "\n".join(lines) + "\n"
