"""`on_duplicate`: which options can be combined, and what a duplicate changes; `stores/test_table` has outcomes."""

from itertools import product
from typing import Any

import pytest

from onejob.errors import ConfigurationError
from onejob.jobs.model import Outcome, Submission
from onejob.jobs.on_duplicate import (
    CONFLICT_POLICIES,
    MAX_WAIT,
    ConflictPolicy,
    Resolution,
    conflict_policy_of,
    resolve,
)
from onejob.jobs.transitions import new_job
from tests.cases import for_each
from tests.stores.support import START, submission

WAITING = new_job(
    submission("job-1", identity="same", priority_rank=3, delay=100.0), now=START, wake_after=30.0, is_sent=True
)


def duplicate(**values: Any) -> Submission:
    return submission("job-2", **({"identity": "same", "priority_rank": 3, "delay": 100.0} | values))


# --- options --------------------------------------------------------------------------------------------------------


def policy_of(
    on_duplicate: object, max_wait: object = None, unique_until: object = "finished", unique_for: object = None
) -> ConflictPolicy:
    return conflict_policy_of("app.add", on_duplicate, max_wait, unique_until, unique_for)


@for_each("name", ["", "Attach", "reject", "queue", 1, True, ("attach",)])
def test_another_value_is_refused(name: object) -> None:
    """An unknown value is refused with the task, the valid values and the given one."""
    with pytest.raises(ConfigurationError, match=r"on_duplicate of task app\.add.*'run_again'") as caught:
        policy_of(name)
    assert repr(name) in str(caught.value)
    assert policy_of(None) == policy_of("attach")


def test_only_replace_has_a_max_wait() -> None:
    """`max_wait` is a positive, finite number of seconds, and limits the postponing by `replace` alone."""
    for max_wait, seconds in ((None, MAX_WAIT), (0.5, 0.5), (1, 1.0), (60.0, 60.0), (1e6, 1e6)):
        found = policy_of("replace", max_wait)
        assert found == ConflictPolicy(replaces=True, queue_next=True, max_wait=seconds)
        assert isinstance(found.max_wait, float)
    for wrong in (0, 0.0, -1.0, float("nan"), float("inf"), "60", True, [60]):
        with pytest.raises(ConfigurationError, match=r"max_wait of task app\.add must be a positive number"):
            policy_of("replace", wrong)
    for name, max_wait in product(("attach", "raise", "run_again"), (60.0, 0.0, -1.0)):
        with pytest.raises(ConfigurationError, match=rf"max_wait of task app\.add .*{name}"):
            policy_of(name, max_wait)


@for_each("name, refused", [
    ("attach", []), ("raise", []), ("replace", ["unique_for"]), ("run_again", ["unique_for", "unique_until='started'"]),
])  # fmt: skip
def test_newer_arguments_exclude_a_kept_result(name: str, refused: list[str]) -> None:
    """`replace` and `run_again` exclude `unique_for`, and `run_again` also `unique_until="started"`."""
    values: dict[str, dict[str, Any]] = {
        "unique_until='started'": {"unique_until": "started"},
        "unique_for": {"unique_for": 60},
    }
    for option, options in values.items():
        if option in refused:
            with pytest.raises(ConfigurationError, match=rf"app\.add .*{name}.*excludes {option}"):
                policy_of(name, **options)
        else:
            assert policy_of(name, **options) == CONFLICT_POLICIES[name]


# --- resolution ----------------------------------------------------------------------------------------------------


@for_each("now, delay, max_wait, due", [
    (0.0, 100.0, 0.0, 100.0), (0.0, 99.5, 0.0, 99.5), (0.0, 0.0, 0.0, 0.0), (50.0, 0.0, 0.0, 50.0),
    (50.0, 49.5, 0.0, 99.5), (50.0, 50.0, 0.0, 100.0), (50.0, 50.5, 0.0, 100.0), (150.0, 0.0, 0.0, 100.0),
    (50.0, 500.0, 60.0, 100.0), (50.0, 500.0, 100.0, 100.0), (50.0, 500.0, 100.5, 100.5), (50.0, 100.0, 200.0, 150.0),
    (50.0, 149.5, 200.0, 199.5), (50.0, 150.0, 200.0, 200.0), (50.0, 150.5, 200.0, 200.0), (50.0, 20.0, 200.0, 70.0),
])  # fmt: skip
def test_a_duplicate_reschedules_within_limits(now: float, delay: float, max_wait: float, due: float) -> None:
    """A duplicate reschedules the job to an earlier time, and to a later one only up to `max_wait`."""
    resolution = resolve(WAITING, duplicate(delay=delay, max_wait=max_wait), now=START + now)
    assert resolution == Resolution(
        Outcome.ATTACHED, takes_over=False, run_at=START + due, priority_rank=3, expires_at=None
    )
    assert resolution.reschedules(WAITING) is (due != 100.0)


@for_each("priority_rank, after", [(-9, 3), (3, 3), (4, 4)])
def test_a_duplicate_raises_the_priority_only(priority_rank: int, after: int) -> None:
    """The job gets the highest priority of its duplicates, which counts as rescheduled."""
    resolution = resolve(WAITING, duplicate(priority_rank=priority_rank), now=START)
    assert resolution.priority_rank == after
    assert resolution.reschedules(WAITING) == (after != 3)
