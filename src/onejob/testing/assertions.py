"""Finds submissions by their arguments, and says what differs when there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onejob.celery.call import dump_models
from onejob.celery.message import dumps, loads
from onejob.celery.options import options_of
from onejob.uniqueness.canonical_json import Limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onejob.jobs.model import Outcome
    from onejob.testing.ledger import SubmittedJob

SHOWN = 20
"""How many submissions a message shows."""


def find_matches(
    task: Any, submitted: Sequence[SubmittedJob], args: tuple[Any, ...], kwargs: dict[str, Any], outcome: Outcome | None
) -> list[SubmittedJob]:
    """Return the submissions of a task with some arguments, or with any if none are given, and an outcome, if given."""
    found = [each for each in submitted if outcome in {None, each.outcome}]
    if not args and not kwargs:
        return found
    wanted = _arguments(task, args, kwargs)
    return [each for each in found if _arguments(task, each.args, each.kwargs) == wanted]


def describe_mismatch(
    task: Any, submitted: Sequence[SubmittedJob], found: Sequence[SubmittedJob], args: tuple[Any, ...],
    kwargs: dict[str, Any], *, times: int, outcome: Outcome | None,
) -> str:  # fmt: skip
    """Return the message of a failed assertion: what was expected, the nearest submission, and all that there were."""
    having = f" with the outcome {outcome}" if outcome else ""
    call = f"{task.name}{_call(args, kwargs)}" if args or kwargs else str(task.name)
    lines = [f"{call} was submitted {len(found)} times{having}, expected {times}"]
    own = [each for each in submitted if each.task == task.name]
    if own and not found and (args or kwargs):
        lines.append(f"nearest: {_nearest(task, own, args, kwargs, outcome)}")
    lines += ["submitted:" if submitted else "nothing was submitted", *map(_line, submitted[:SHOWN])]
    if len(submitted) > SHOWN:
        lines.append(f"  and {len(submitted) - SHOWN} more")
    return "\n".join(lines)


def _nearest(
    task: Any, submitted: Sequence[SubmittedJob], args: tuple[Any, ...], kwargs: dict[str, Any], outcome: Outcome | None
) -> str:
    """Return how the submission differs that differs least."""
    wanted = _arguments(task, args, kwargs)

    def differences(each: SubmittedJob) -> list[str]:
        given = _arguments(task, each.args, each.kwargs)
        differing = [name for name in {**wanted, **given} if _value(given, name) != _value(wanted, name)]
        texts = [f"{name} is {_value(given, name)}, expected {_value(wanted, name)}" for name in differing]
        return texts + (
            [f"outcome is {each.outcome}, expected {outcome}"] if outcome not in {None, each.outcome} else []
        )

    texts = sorted((differences(each) for each in submitted), key=lambda found: (len(found), found))
    return "; ".join(texts[0])


def _value(arguments: dict[str, Any], name: str) -> str:
    return repr(arguments[name]) if name in arguments else "missing"


def _arguments(task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return arguments by name, as they arrive in a worker. Raises `InvalidArgumentsError`."""
    args, kwargs = dump_models(task, args, kwargs, {})
    named = options_of(task).identifier.arguments(args, kwargs)
    decoded: dict[str, Any] = loads(dumps(named, "the arguments", Limits()))
    return decoded


def _line(each: SubmittedJob) -> str:
    return f"  {each.task}{_call(each.args, each.kwargs)} {each.outcome}, job {each.job_id}"


def _call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return f"({', '.join([*map(repr, args), *(f'{name}={value!r}' for name, value in kwargs.items())])})"
