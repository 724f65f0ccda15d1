"""Random operations on every store: the outcomes are those of docs/on-duplicate.md, and all histories are legal."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from onejob.errors import IdentityHeldError, NotWaitingError
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Admission, Job, Outcome, Retention, Submission
from onejob.jobs.records import Query
from onejob.jobs.transitions import new_nonce
from onejob.ledger.ledger import Ledger
from onejob.stores.protocol import GroupBy
from onejob.uniqueness.on_duplicate import CONFLICT_POLICIES
from tests.contract.support import LEASE, apply, assert_legal, get, read, start, submission, submit_one, sweep
from tests.tiers import rounds

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.stores.protocol import Store
    from onejob.uniqueness.on_duplicate import ConflictPolicy
    from tests.contract.support import ManualClock

PAGE = Path(__file__).parents[3] / "docs" / "on-duplicate.md"
NAMES = st.sampled_from(("one", "two"))
MAX_WAIT = 60.0
KEY_FOR = 300.0
ANY_NUMBER = st.integers(0, 7)
LIVE = (State.QUEUED, State.RUNNING, State.RETRYING)
ENDS: dict[str, Callable[[Ledger, Job], object]] = {
    "complete": lambda ledger, job: ledger.complete(job, '"done"'),
    "complete and answer": lambda ledger, job: ledger.complete(job, '"done"', keep=Retention(identity_for=20.0)),
    "fail": lambda ledger, job: ledger.fail(job, '"error"', "failed"),
    "retry": lambda ledger, job: ledger.retry(
        job, delay=3.0, payload=job.payload, options=job.options, retries=1, error=None, reason="again"
    ),
    "release": lambda ledger, job: ledger.release(job, "released"),
    "crash": lambda ledger, job: ledger.crash(job, "crashed", '"lost"'),
    "abandon": lambda ledger, job: ledger.abandon(job, "abandoned"),
    "release_identity": lambda ledger, job: ledger.release_identity(job),
}
"""Operations that end a run, or release its identity."""


def _table() -> dict[tuple[str, str, str], Outcome]:
    """Return the table of the page: (situation, arguments, conflict policy) to outcome."""
    lines = [line.strip("|").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    head, *rows = [[cell.strip(" `") for cell in line] for line in lines]
    return {(row[0], row[1], head[n]): Outcome(row[n]) for row in rows for n in range(2, len(head))}


TABLE = _table()


def test_the_table_has_every_case() -> None:
    """The page has a row for each situation of the existing job, with the same and with other arguments."""
    assert {conflict_policy for _, _, conflict_policy in TABLE} == set(CONFLICT_POLICIES)
    assert len(TABLE) == 5 * 2 * len(CONFLICT_POLICIES)


@pytest.mark.parametrize(("situation", "arguments", "conflict_policy"), TABLE, ids=" / ".join)
def test_each_case_of_the_table(store: Store, situation: str, arguments: str, conflict_policy: str) -> None:
    """Every store returns the outcome of the table in each case."""
    policy: dict[str, Any] = asdict(CONFLICT_POLICIES[conflict_policy]) | {"max_wait": 0.0}
    first = submission("first", identity="i", fingerprint="same")
    if situation != "none, or one that released its identity":
        submit_one(store, first, wake_in=LEASE)
    if situation.startswith("has"):
        start(store, "first")
    if "queued" in situation:
        submit_one(store, replace(first, id="next", nonce="next", queues_next=True), wake_in=LEASE)
    if "completed" in situation:
        apply(store, read(store, "first"), Transition.COMPLETE, keeps_identity=True, identity_for=60.0)
    new = submission("new", identity="i", fingerprint=arguments, **policy)
    assert submit_one(store, new, wake_in=LEASE).outcome is TABLE[situation, arguments, conflict_policy]


@dataclass(frozen=True)
class _Existing:
    """The existing jobs of an identity: its holder, and the job that is queued next."""

    holder: Job | None
    queued: Job | None

    @property
    def situation(self) -> str:
        """The first column of the table."""
        if self.holder is None:
            return "none, or one that released its identity"
        if self.holder.state is State.COMPLETED:
            return "has completed, and its result is kept"
        if self.holder.attempt == 0:
            return "waits for its first run"
        return "has started, and another one is queued next" if self.queued else "has started"

    def job_to_compare(self, policy: ConflictPolicy) -> Job | None:
        """Return the job whose arguments are compared: the queued one if the submission policy one more run."""
        begun = self.holder is not None and self.holder.attempt > 0 and self.holder.finished_at is None
        return self.queued if begun and self.queued and policy.queues_next else self.holder


@dataclass(frozen=True)
class _RetainedKey:
    """A retained idempotency key: its arguments, its job and its expiry."""

    fingerprint: str
    job_id: str
    until: float


class OperationSequences(RuleBasedStateMachine):
    """Submissions, runs and ends of jobs of two identities, in any order."""

    store: Store
    clock: ManualClock
    numbers = itertools.count()

    @initialize(steps=st.integers(0, 4))
    def begin(self, steps: int) -> None:
        """Begin with new identities, because all examples share the store; one of them is some steps ahead."""
        self.ledger = Ledger(self.store)
        self.example = f"example-{next(self.numbers)}"
        self.ids: set[str] = set()
        self.keys: dict[str, _RetainedKey] = {}
        self.duplicate_count = 0
        plain: dict[str, Any] = {"delay": 0.0, "priority_rank": 0, "follows": False, "key": None}
        if steps > 0:
            self.submit(name="one", fingerprint="same", conflict_policy="attach", **plain)
        if steps > 1:
            self.claim(index=0, when_due=True)
        if steps == 3:
            self.submit(name="one", fingerprint="other", conflict_policy="run_again", **plain)
        if steps == 4:
            self.end_run(index=0, end="complete and answer")

    # --- submissions ------------------------------------------------------------------------------------------------

    @rule(
        name=NAMES,
        fingerprint=st.sampled_from(("same", "other")),
        conflict_policy=st.sampled_from(sorted(CONFLICT_POLICIES)),
        delay=st.sampled_from((0.0, 5.0, 50.0)),
        priority_rank=st.integers(0, 2),
        follows=st.booleans(),
        key=st.sampled_from((None, None, None, None, "k1", "k2")),
    )
    def submit(  # noqa: PLR0917 - the choices of a submission
        self,
        name: str,
        fingerprint: str,
        conflict_policy: str,
        delay: float,
        priority_rank: int,
        follows: bool,
        key: str | None,
    ) -> None:
        """Submit: the outcome and the change of the existing job are those of the table."""
        conflict_policy = "attach" if follows and conflict_policy == "raise" else conflict_policy
        policy = CONFLICT_POLICIES[conflict_policy]
        new = submission(
            f"{self.example}-job-{len(self.ids)}-{self.duplicate_count}", identity=self.identity(name),
            fingerprint=fingerprint, payload=f'"{fingerprint} of {self.duplicate_count}"', delay=delay,
            priority_rank=priority_rank, follows=follows, nonce=new_nonce(),
            submitter=self.example, rejects=policy.rejects, replaces=policy.replaces, queues_next=policy.queues_next,
            max_wait=MAX_WAIT if policy.max_wait and delay else 0.0,
            key=key and f"{self.example}-{key}", key_for=KEY_FOR,
        )  # fmt: skip
        existing, retained = self.existing_jobs(name), self.retained_key(key)
        answer = submit_one(self.store, new, wake_in=LEASE)
        assert submit_one(self.store, new, wake_in=LEASE).job.id == answer.job.id, (
            "a repeated submission returns the same job"
        )
        self.ids |= {answer.job.id, *([answer.follower.id] if answer.follower else [])}
        self.duplicate_count += answer.outcome is not Outcome.ADMITTED
        if retained is not None:
            self.check_key(new, retained, answer)
            return
        job = existing.job_to_compare(policy)
        arguments = "same" if job is None or job.fingerprint == fingerprint else "other"
        assert answer.outcome is TABLE[existing.situation, arguments, conflict_policy]
        self.check_answer(new, existing, job, answer)
        if key is not None and answer.outcome is not Outcome.REJECTED:
            self.keys[key] = _RetainedKey(fingerprint, answer.job.id, self.clock.now + KEY_FOR)

    def check_answer(self, new: Submission, existing: _Existing, before: Job | None, answer: Admission) -> None:
        """Check the change of the existing job."""
        job, new_job = answer.job, answer.outcome in {Outcome.ADMITTED, Outcome.QUEUED_NEXT}
        assert (job.id == new.id) is new_job
        assert job.holds_identity is (answer.outcome is not Outcome.QUEUED_NEXT and not job.queued_next)
        if new.follows and not new_job:
            assert answer.follower is not None
            assert answer.follower.follows_id == job.id
        if new_job or before is None:
            assert (job.payload, job.run_at) == (new.payload, self.clock.now + new.delay)
            return
        assert job.id == before.id
        assert job.duplicate_count == before.duplicate_count + (existing.holder is before)
        changeable = before.attempt == 0 and before.finished_at is None and answer.outcome is not Outcome.REJECTED
        latest = max(before.run_at, before.created_at + new.max_wait)
        assert job.run_at == (min(self.clock.now + new.delay, latest) if changeable else before.run_at)
        assert job.priority_rank == (
            max(before.priority_rank, new.priority_rank) if changeable else before.priority_rank
        )
        assert answer.rescheduled is ((job.run_at, job.priority_rank) != (before.run_at, before.priority_rank))
        source = new if answer.outcome is Outcome.REPLACED else before
        assert (job.payload, job.fingerprint) == (source.payload, source.fingerprint)

    def check_key(self, new: Submission, retained: _RetainedKey, answer: Admission) -> None:
        """Check that a retained key returns its job, whatever the conflict policy."""
        assert answer.job.id == retained.job_id
        if new.fingerprint != retained.fingerprint:
            assert (answer.outcome, answer.key_reused) == (Outcome.REJECTED, True)
        else:
            ended = answer.job.finished_at is not None
            assert answer.outcome is (Outcome.REPLAYED if ended else Outcome.ATTACHED)

    # --- runs and other operations ----------------------------------------------------------------------------------

    @rule(index=ANY_NUMBER, when_due=st.booleans())
    def claim(self, index: int, when_due: bool) -> None:
        """Claim a waiting job, with `when_due` at `run_at`. A job that is not due or is queued next is refused."""
        job = self.pick(index, State.QUEUED, State.RETRYING)
        if job is None:
            return
        if when_due:
            self.clock.advance(max(0.0, job.run_at - self.clock.now))
        applied = self.ledger.claim(job.id, nonce=new_nonce(), node="node").applied
        assert applied is (job.run_at <= self.clock.now and not job.queued_next)

    @rule(index=ANY_NUMBER, end=st.sampled_from(sorted(ENDS)))
    def end_run(self, index: int, end: str) -> None:
        """End or release a run, or release its identity."""
        job = self.pick(index, State.RUNNING)
        if job is not None:
            ENDS[end](self.ledger, job)

    @rule(index=ANY_NUMBER, redrive=st.booleans())
    def cancel_or_redrive(self, index: int, redrive: bool) -> None:
        """Cancel a job, or redrive a dead letter, which is refused exactly when another job holds its identity."""
        job = self.pick(index, *([State.FAILED] if redrive else LIVE))
        if job is None:
            return
        if not redrive:
            self.ledger.cancel(job.id, force=bool(index % 2))
            return
        held = any(other.holds_identity for other in self.store.find(Query(identity=job.identity, limit=1000)))
        with pytest.raises(IdentityHeldError) if held else nullcontext():
            self.ledger.redrive(job.id)

    @rule(index=ANY_NUMBER)
    def run_now(self, index: int) -> None:
        """Make a waiting job due at once, which is refused exactly when it is queued next."""
        job = self.pick(index, State.QUEUED, State.RETRYING)
        if job is None:
            return
        with pytest.raises(NotWaitingError) if job.queued_next else nullcontext():
            assert self.ledger.run_now(job.id).run_at == min(job.run_at, self.clock.now)

    @rule(seconds=st.sampled_from((0.5, 4.0, 25.0, 200.0)))
    def pass_time(self, seconds: float) -> None:
        """Advance the clock, and sweep all jobs that are due."""
        self.clock.advance(seconds)
        sweep(self.ledger, lambda job: None, limit=1000)

    # --- invariants -------------------------------------------------------------------------------------------------

    @invariant()
    def at_most_one(self) -> None:
        """At most one job holds an identity, at most one waits for it, and only while another job holds it."""
        for name in ("one", "two"):
            jobs = self.all_of(name)
            holders, queued = [job for job in jobs if job.holds_identity], [job for job in jobs if job.queued_next]
            assert len(holders) <= 1
            assert len(queued) <= 1

    @invariant()
    def every_unfinished_job_has_a_wake_at(self) -> None:
        """A sweep looks at every job that has not ended, so that none waits for ever."""
        jobs = [job for name in ("one", "two") for job in self.all_of(name)]
        assert [job for job in jobs if job.wake_at is None and not job.state.final] == []

    @invariant()
    def every_duplicate_is_counted(self) -> None:
        """The statistics count exactly the submissions that were duplicates."""
        duplicate_counts = [
            each for each in self.store.duplicate_counts(GroupBy.SUBMITTER, limit=10_000) if each.name == self.example
        ]
        assert sum(each.count for each in duplicate_counts) == self.duplicate_count

    def teardown(self) -> None:
        """Check that every history is legal."""
        for job_id in getattr(self, "ids", ()):
            job = get(self.store, job_id)
            if job is not None:
                assert_legal(self.store.history(job_id), job)

    # --- stored jobs and keys ---------------------------------------------------------------------------------------

    def identity(self, name: str) -> str:
        """Return an identity of this example."""
        return f"{self.example}-{name}"

    def all_of(self, name: str) -> list[Job]:
        """Return all jobs of an identity."""
        return self.store.find(Query(identity=self.identity(name), limit=1000))

    def existing_jobs(self, name: str) -> _Existing:
        """Return the existing jobs that a submission is resolved against; a holder whose window is over is none."""
        jobs = self.all_of(name)
        holder = next((job for job in jobs if job.holds_identity), None)
        if holder is not None and holder.identity_until is not None and holder.identity_until <= self.clock.now:
            holder = None
        return _Existing(holder, next((job for job in jobs if job.queued_next), None))

    def retained_key(self, key: str | None) -> _RetainedKey | None:
        """Return a key that is still retained."""
        retained = self.keys.get(key) if key is not None else None
        return retained if retained is not None and retained.until > self.clock.now else None

    def pick(self, index: int, *states: State) -> Job | None:
        """Return one of the jobs in these states that is not a follower."""
        jobs = [job for name in ("one", "two") for job in self.all_of(name) if job.state in states]
        found = [job for job in jobs if job.follows_id is None or job.queued_next]
        return found[index % len(found)] if found else None


@rounds(15, 100)
def test_random_sequences_follow_the_table(store: Store, clock: ManualClock, rounds: int) -> None:
    """In random sequences of operations, outcomes are those of the table, and histories are legal."""

    class SequencesOnStore(OperationSequences):
        pass

    SequencesOnStore.store, SequencesOnStore.clock = store, clock
    run_state_machine_as_test(
        SequencesOnStore,
        settings=settings(
            max_examples=rounds, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck),
            derandomize=True,
        ),
    )  # fmt: skip
