"""Each position that a task may have in a canvas, with each of its options: whoever was promised an end gets it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import pytest
from celery import chord, group

import onejob
from onejob import DuplicateJobError, Outcome, State
from onejob.errors import KeyRequiredError, QuotaExceededError
from onejob.jobs.lifecycle import Transition
from tests.cases import further
from tests.celery.harness import PATIENCE, Cluster, await_
from tests.quiet import provokes


class PositionedCall(NamedTuple):
    """A call in its position, and what follows it, which notes its result."""

    cluster: Cluster
    key: str
    call: Any

    @property
    def after(self) -> Any:
        """What notes the result of the call."""
        return self.cluster.note.s(self.key)

    @property
    def linked(self) -> Any:
        """The call, followed by a link of its own."""
        call = self.call.clone()
        call.link(self.after)
        return call

    @property
    def other(self) -> Any:
        """Another member of the canvas."""
        return self.cluster.echo.si(f"other {self.key}")

    @property
    def linking(self) -> Any:
        """Another member, whose link is the call."""
        member = self.other
        member.link(self.linked)
        return member

    def told(self, act: str, data: Any) -> Any:
        """A job that does something with calls, as JSON."""
        return self.cluster.play.si(f"outer {self.key}", [act], data)


def as_data(call: Any) -> Any:
    """Return a call as the data of a body."""
    return {"call": dict(call)}


POSITIONS: dict[str, Callable[[PositionedCall], Any]] = {
    "a lone link": lambda at: at.other.apply_async(link=at.call),
    "a lone link with a link": lambda at: at.other.apply_async(link=at.linked),
    "one of two links": lambda at: at.other.apply_async(link=[at.linked, at.cluster.echo.si(f"2nd {at.key}")]),
    "an errback": lambda at: at.cluster.play.apply_async((f"fails {at.key}", ["permanent"]), link_error=at.linked),
    "the first of a chain": lambda at: (at.call | at.after).delay(),
    "the second of a chain": lambda at: (at.other | at.call | at.after).delay(),
    "the last of a chain": lambda at: (at.other | at.linked).delay(),
    "a member of a group": lambda at: group(at.linked, at.other).delay(),
    "a member of a group in a chain": lambda at: (at.other | group(at.linked, at.other) | at.cluster.plain.s()).delay(),
    "a member of a header": lambda at: chord([at.linked, at.other])(at.cluster.plain.s()),
    "the link of a member of a header": lambda at: chord([at.linking, at.other])(at.cluster.plain.s()),
    "the body of a chord": lambda at: chord([at.other, at.cluster.echo.si(f"2nd {at.key}")])(at.linked),
    "a member added to a chord": lambda at: chord([at.told("add_to_chord", as_data(at.linked)), at.other])(
        at.cluster.plain.s()
    ),
    "the first of a chain that replaces a job": lambda at: at.told(
        "replace_by", {"chain": [as_data(at.call), as_data(at.after)]}
    ).delay(),
    "the last of a chain that replaces a job": lambda at: (
        at.told("replace_by", {"chain": [["echo", at.key], as_data(at.call)]}) | at.after
    ).delay(),
}
BY_CALLER = {"the first of a chain", "a member of a group", "a member of a header"}
"""The positions that the caller submits: an error is the caller's."""
UNSEEN = {"a lone link"}
"""The positions whose result nobody gets."""
TAKES_OVER = {"the last of a chain that replaces a job"}
"""The positions in which the call becomes the next run of a job that exists: it is no submission."""


class Policy(NamedTuple):
    """Options of a task or a call, and what becomes of a call in a canvas while an equal job exists."""

    task: str
    value: Any
    """The result of the call, which the next task gets; None: there is none."""
    runs: int
    """How often the body runs, with the equal job before it."""
    alone: Any
    """The outcome of the call alone, or its error."""
    exists: str = "running"
    options: dict[str, Any] = {}  # noqa: RUF012 - of a tuple, which nobody changes


PAST = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
POLICIES: dict[str, Policy] = {
    "attach": Policy("play", "first", 1, Outcome.ATTACHED),
    "raise": Policy("play_raise", "first", 1, DuplicateJobError),
    "raise of the call": Policy("play", "first", 1, DuplicateJobError, options={"on_duplicate": "raise"}),
    "replace": Policy("play_replace", "new", 1, Outcome.REPLACED, "waiting"),
    "run_again": Policy("play_run_again", "new", 2, Outcome.QUEUED_NEXT),
    "requires_key": Policy("play_requires_key", "new", 1, KeyRequiredError, ""),
    "unique_until started": Policy("play_until_started", "new", 2, Outcome.ADMITTED),
    "unique_for": Policy("play_unique_for", "first", 1, Outcome.REPLAYED, "completed"),
    "expired": Policy("play", None, 0, Outcome.ADMITTED, "", {"expires": PAST}),
    "quota": Policy("play", "new", 1, QuotaExceededError, ""),
}
WITNESSES = ("attach", "raise", "replace", "expired")
"""The first of each kind of end: the result of the equal job, an own one, and none."""
KINDS = ["sqlite", *further("postgresql", "redis")]


def begin(cluster: Cluster, policy: Policy, key: str) -> Any:
    """Have an equal job exist, and return it, if the policy needs one."""
    task = getattr(cluster, policy.task)
    if policy.exists == "running":
        return cluster.begin(key, ["hold:all>return:first"], task=policy.task)
    if policy.exists == "waiting":
        return task.apply_async((key, ["return:first"]), countdown=600)
    if policy.exists == "completed":
        first = task.delay(key, ["return:first"])
        assert first.get(PATIENCE) == "first"
        return first
    return None


@pytest.mark.parametrize("name", POLICIES)
def test_a_call_alone(cluster: Cluster, name: str) -> None:
    """A call that is in no canvas gets what its options say, which may be an error."""
    policy, task = POLICIES[name], getattr(cluster, POLICIES[name].task)
    if policy.exists:
        first = task.delay("alone", ["return"])
        if policy.exists != "waiting":
            job = cluster.ledger.claim(first.id, nonce="n", node="here").job
            assert job is not None
            if policy.exists == "completed":
                cluster.ledger.complete(job, '"first"', hold=task._onejob.hold_of(job, None))
            elif name == "unique_until started":
                cluster.ledger.release_identity(job)
    call = partial(task.apply_async, ("alone", ["return"], "new"), **policy.options)
    with onejob.submitter("a user", quota="1/day" if name == "quota" else None):
        if name == "quota":
            cluster.echo.delay("the only one")
        if isinstance(policy.alone, Outcome):
            assert call().outcome is policy.alone
        else:
            with pytest.raises(policy.alone):
                call()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*WITNESSES, *further(*(name for name in POLICIES if name not in WITNESSES))])
@provokes(
    Transition.RELEASE, Transition.NOTIFY_CANVAS, logs=["Chord", "TaskRevokedError"],
    because="jobs were replaced, some expired, and Celery keeps a claim of the chord that failed",
)  # fmt: skip
def test_each_position_in_a_canvas(new_cluster: Callable[..., Cluster], name: str, kind: str) -> None:
    """A call in a canvas is rejected only at its caller; what its options say is its result, and the next task's."""
    cluster, policy = new_cluster(kind, onejob_lease=10), POLICIES[name]
    cluster.worker("--pool", "threads", "-c", "40")
    refused = BY_CALLER if policy.alone is QuotaExceededError else set()
    positions = [each for each in POSITIONS if not (name == "raise of the call" and each in TAKES_OVER)]
    firsts = {position: begin(cluster, policy, position) for position in positions}
    with onejob.submitter("a user", quota="1/day" if name == "quota" else None):
        if name == "quota":
            cluster.echo.delay("the only one")
        for position in refused:
            with pytest.raises(QuotaExceededError):
                POSITIONS[position](call_at(cluster, policy, position))
    for position in [each for each in positions if each not in refused]:
        POSITIONS[position](call_at(cluster, policy, position))
    for position, first in firsts.items():
        if first is not None and policy.alone is not Outcome.ADMITTED and position not in TAKES_OVER:
            await_(lambda: cluster.job(first).duplicate_count)  # noqa: B023 - called in this round
    cluster.open("all")
    if policy.exists == "waiting":
        cluster.ledger.run_now(firsts["the last of a chain that replaces a job"].id)
    for position in [each for each in positions if each not in refused]:
        value = "new" if position in TAKES_OVER else policy.value
        if value is not None and position not in UNSEEN:
            (mark,) = cluster.await_mark(f"after {position}")
            assert mark["value"] == value, position
    cluster.await_rest()
    for position in [each for each in positions if each not in refused]:
        takes_over = position in TAKES_OVER
        assert cluster.runs(position) == (bool(policy.exists) + 1 if takes_over else policy.runs), position
        assert takes_over or policy.value is not None or not cluster.marks(f"after {position}"), position
    assert not [job for job in cluster.jobs(states=frozenset({State.FAILED})) if "fails" not in job.payload]


def test_the_link_of_a_schedule_entry(new_cluster: Callable[..., Cluster]) -> None:
    """The link of a schedule entry is called after each of its ticks, once, also if its task requires a key."""
    cluster = new_cluster(onejob_beat=True)
    link = cluster.play_requires_key.si("linked", ["return"])
    entry = {"task": "echo", "schedule": 0.5, "args": ["tick"], "options": {"link": link}}
    cluster.worker("-c", "2", beat_schedule={"ticks": entry}, onejob_shutdown_grace=PATIENCE)  # a tick may be running
    cluster.await_mark("linked", times=3)
    cluster.workers[0].stop()
    ticks = cluster.jobs(task="echo", states=frozenset({State.COMPLETED}))
    assert len(cluster.jobs(task="play_requires_key")) <= len(ticks)


def test_items_of_map_and_chunks_are_no_jobs(shared: Cluster) -> None:
    """Celery calls the items of `map`, `starmap` and `chunks` within one task of its own: each runs, and is no job."""
    maps = [shared.anywhere.map(["item", "item"]), shared.anywhere.starmap([("item",), ("item",)])]
    assert [each.delay().get(timeout=PATIENCE) for each in maps] == [["item"] * 2] * 2
    assert shared.anywhere.chunks([("item",)] * 4, 2).group().delay().get(timeout=PATIENCE) == [["item"] * 2] * 2
    assert (shared.runs("item"), shared.jobs()) == (8, [])


def call_at(cluster: Cluster, policy: Policy, position: str) -> PositionedCall:
    """Return a call for a position."""
    call = getattr(cluster, policy.task).si(position, ["return"], "new").set(**policy.options)
    return PositionedCall(cluster, f"after {position}", call)
