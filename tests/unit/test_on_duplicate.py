"""Reactions as data and as one rule: which options work together, and what a meeting comes to."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onejob.errors import ConfigurationError
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Cancel, Job, Outcome
from onejob.uniqueness.on_duplicate import (
    CONFLICT_POLICIES,
    MAX_WAIT,
    ConflictPolicy,
    Resolution,
    conflict_policy_of,
    resolve,
)
from tests.contract.support import LEASE, START, submission

if TYPE_CHECKING:
    from onejob.jobs.model import Submission

WAITING = Job(
    id="job-1", task="app.add", identity="same", fingerprint="fingerprint-1", submission_nonce="nonce", submitter="",
    payload="[1]", options="{}", priority_rank=3, state=State.QUEUED, holds_identity=True, queued_next=False, identity_until=None,
    follows_id=None, token=0, claim="", node="", attempt=0, retries=0, crashes=0, lease=LEASE, lease_until=None,
    created_at=START, run_at=START + 100.0, expires_at=None, started_at=None, finished_at=None,
    wake_at=START + 100.0, published=0, cancel=Cancel.NO, canvas_pending=False, key_retained_until=None, duplicate_count=0,
    progress=None, result=None, error=None, reason="submitted",
)  # fmt: skip
BEGUN = replace(WAITING, attempt=1)
ENDED = replace(WAITING, attempt=1, state=State.COMPLETED, finished_at=START + 1.0)


def wanting(conflict_policy: str | ConflictPolicy = "attach", **values: Any) -> Submission:
    """Return a submission of the same arguments that wants something of a job in its way."""
    chosen = CONFLICT_POLICIES[conflict_policy] if isinstance(conflict_policy, str) else conflict_policy
    wants = {name: getattr(chosen, name) for name in ("rejects", "replaces", "queues_next", "max_wait")}
    return submission("job-2", **({"identity": "same", "priority_rank": 3, "delay": 100.0} | wants | values))


# --- options --------------------------------------------------------------------------------------------------------


def chosen(
    on_duplicate: object = "attach",
    max_wait: object = None,
    unique_until: object = "finished",
    unique_for: object = None,
) -> ConflictPolicy:
    """Return the reaction of a task with these options."""
    return conflict_policy_of("app.add", on_duplicate, max_wait, unique_until, unique_for)


@pytest.mark.parametrize("name", CONFLICT_POLICIES)
def test_every_choice_has_its_reaction(name: str) -> None:
    """A choice without further options is the reaction of that name."""
    assert chosen(name) == CONFLICT_POLICIES[name]


def test_choices_want_what_their_names_say() -> None:
    """The choices differ in what they want of a job in their way."""
    assert {
        "attach": ConflictPolicy(),
        "raise": ConflictPolicy(rejects=True),
        "replace": ConflictPolicy(replaces=True, max_wait=MAX_WAIT),
        "run_again": ConflictPolicy(replaces=True, queues_next=True),
    } == CONFLICT_POLICIES


@pytest.mark.parametrize("name", ["", "Attach", "reject", "queue", None, 1, True, ("attach",)])
def test_another_choice_is_refused(name: object) -> None:
    """What is no choice is refused with the task, the choices and what was given."""
    with pytest.raises(ConfigurationError, match=r"on_duplicate of task app\.add.*'run_again'") as caught:
        chosen(name)
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize("max_wait", [0.5, 1, 60.0, 1e6])
def test_replace_has_a_longest_wait(max_wait: float) -> None:
    """How long `replace` puts a job off at most can be chosen, in seconds."""
    assert chosen("replace", max_wait) == ConflictPolicy(replaces=True, max_wait=float(max_wait))
    assert isinstance(chosen("replace", max_wait).max_wait, float)


@pytest.mark.parametrize("max_wait", [0, 0.0, -1.0, float("nan"), float("inf"), "60", True, [60]])
def test_a_wait_that_is_no_time_is_refused(max_wait: object) -> None:
    """A longest wait is a positive, finite number of seconds."""
    with pytest.raises(ConfigurationError, match=r"max_wait of task app\.add must be a positive number"):
        chosen("replace", max_wait)


@pytest.mark.parametrize("name", ["attach", "raise", "run_again"])
@pytest.mark.parametrize("max_wait", [60.0, 0.0, -1.0])
def test_only_replace_has_a_longest_wait(name: str, max_wait: float) -> None:
    """A longest wait for a choice that puts nothing off is refused, whatever it is."""
    with pytest.raises(ConfigurationError, match=rf"max_wait of task app\.add .*{name}"):
        chosen(name, max_wait)


@pytest.mark.parametrize(
    ("until", "during"), [("started", None), ("finished", 60.0), ("finished", "day@Europe/Berlin")]
)
def test_to_run_again_needs_a_job_that_is_unique_while_it_runs(until: str, during: object) -> None:
    """What runs again after a run cannot give its identity up when it starts, nor keep it after its success."""
    with pytest.raises(ConfigurationError, match=r"app\.add .*run_again.*unique_until and unique_for"):
        chosen("run_again", unique_until=until, unique_for=during)
    for name in ("attach", "raise", "replace"):
        assert chosen(name, unique_until=until, unique_for=during) == CONFLICT_POLICIES[name]


# --- meetings -------------------------------------------------------------------------------------------------------

OUTCOMES = [
    ("attach", "attached", "attached", "attached", "replayed"),
    ("raise", "rejected", "rejected", "rejected", "rejected"),
    ("replace", "attached", "replaced", "attached", "replayed"),
    ("run_again", "attached", "replaced", "queued_next", "replayed"),
]
"""By reaction: what comes of the same and of other arguments before the first run, after it, and after the end."""


@pytest.mark.parametrize(("conflict_policy", "same", "other", "begun", "ended"), OUTCOMES)
def test_a_meeting_comes_to_what_the_table_says(
    conflict_policy: str, same: str, other: str, begun: str, ended: str
) -> None:
    """What comes of a meeting depends on the reaction, on whether the job has begun or ended, and on the arguments."""
    new, differing = wanting(conflict_policy), wanting(conflict_policy, fingerprint="other")
    assert resolve(WAITING, new, now=START).outcome == same
    assert resolve(WAITING, differing, now=START).outcome == other
    assert {resolve(BEGUN, each, now=START).outcome for each in (new, differing)} == {begun}
    assert {resolve(ENDED, each, now=START).outcome for each in (new, differing)} == {ended}


def test_an_end_goes_before_a_beginning() -> None:
    """A job that ended without a run, and is in the way all the same, is no job to wait for."""
    kept = replace(WAITING, finished_at=START)
    assert resolve(kept, wanting("run_again", delay=0.0), now=START).outcome is Outcome.REPLAYED


@pytest.mark.parametrize(
    ("now", "delay", "max_wait", "due"),
    [
        (0.0, 100.0, 0.0, 100.0),
        (0.0, 99.5, 0.0, 99.5),
        (0.0, 0.0, 0.0, 0.0),
        (50.0, 0.0, 0.0, 50.0),
        (50.0, 49.5, 0.0, 99.5),
        (50.0, 50.0, 0.0, 100.0),
        (50.0, 50.5, 0.0, 100.0),
        (150.0, 0.0, 0.0, 100.0),
        (50.0, 500.0, 60.0, 100.0),
        (50.0, 500.0, 100.0, 100.0),
        (50.0, 500.0, 100.5, 100.5),
        (50.0, 100.0, 200.0, 150.0),
        (50.0, 149.5, 200.0, 199.5),
        (50.0, 150.0, 200.0, 200.0),
        (50.0, 150.5, 200.0, 200.0),
        (50.0, 20.0, 200.0, 70.0),
    ],
)
def test_a_meeting_moves_a_job_within_bounds(now: float, delay: float, max_wait: float, due: float) -> None:
    """The most impatient pulls a job forward; a later one puts it off to its longest wait, if it has one."""
    met = resolve(WAITING, wanting(delay=delay, max_wait=max_wait), now=START + now)
    assert met == Resolution(Outcome.ATTACHED, takes_over=False, run_at=START + due, priority_rank=3)
    assert met.reschedules(WAITING) is (due != 100.0)


@pytest.mark.parametrize(("priority_rank", "after"), [(-9, 3), (0, 3), (3, 3), (4, 4), (9, 9)])
def test_a_meeting_makes_a_job_more_urgent_or_not(priority_rank: int, after: int) -> None:
    """The most urgent submission gives a job its urgency, which alone is a move."""
    met = resolve(WAITING, wanting(priority_rank=priority_rank), now=START)
    assert (met.priority_rank, met.run_at, met.reschedules(WAITING)) == (after, WAITING.run_at, after != 3)


SUBMISSIONS = st.builds(
    wanting,
    st.builds(ConflictPolicy, st.booleans(), st.booleans(), st.booleans(), st.floats(0.0, 500.0)),
    delay=st.floats(0.0, 500.0),
    priority_rank=st.integers(-9, 9),
    fingerprint=st.sampled_from(["fingerprint-1", "other"]),
    expires_in=st.none() | st.floats(0.0, 500.0),
)
JOBS = st.builds(
    replace,
    st.sampled_from([WAITING, BEGUN, ENDED]),
    run_at=st.floats(START, START + 500.0),
    priority_rank=st.integers(-9, 9),
)
MOMENTS = st.floats(START, START + 500.0)


@given(job=JOBS, new=SUBMISSIONS, now=MOMENTS)
def test_a_meeting_is_a_question_of_its_values(job: Job, new: Submission, now: float) -> None:
    """The same job, submission and moment come to the same thing, and neither is changed by it."""
    before = replace(job), replace(new)
    assert resolve(job, new, now=now) == resolve(replace(job), replace(new), now=now)
    assert (job, new) == before


@given(job=JOBS, new=SUBMISSIONS, now=MOMENTS)
def test_no_meeting_harms_a_job(job: Job, new: Submission, now: float) -> None:
    """No submission makes a job less urgent or puts it off past its longest wait, or moves one that has begun."""
    met = resolve(job, new, now=now)
    assert met.priority_rank >= job.priority_rank
    assert met.run_at <= max(job.run_at, job.created_at + new.max_wait)
    assert met.takes_over is (met.outcome is Outcome.REPLACED)
    if new.rejects or job.attempt or job.finished_at:
        assert not met.reschedules(job)
        assert not met.takes_over


@given(job=JOBS, new=SUBMISSIONS, now=MOMENTS)
def test_who_cannot_wait_is_not_kept_waiting(job: Job, new: Submission, now: float) -> None:
    """A job that waits for its first run is due no later than whoever was answered by it wants."""
    met = resolve(job, new, now=now)
    if met.outcome in {Outcome.ATTACHED, Outcome.REPLACED} and not job.attempt:
        assert met.run_at <= now + new.delay


@given(job=JOBS, new=SUBMISSIONS, now=MOMENTS)
def test_the_same_meeting_once_more_changes_nothing(job: Job, new: Submission, now: float) -> None:
    """A job that has become what comes of a meeting is what comes of the same meeting again."""
    first = resolve(job, new, now=now)
    after = replace(job, run_at=first.run_at, priority_rank=first.priority_rank)
    after = replace(after, fingerprint=new.fingerprint) if first.takes_over else after
    again = resolve(after, new, now=now)
    assert not again.reschedules(after)
    assert not again.takes_over
