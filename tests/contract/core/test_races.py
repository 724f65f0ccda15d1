"""Races: with any concurrent operations, one job holds an identity, one run has a job, and histories are legal."""

from __future__ import annotations

import itertools
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from onejob.errors import StaleTokenError
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Job, Outcome
from onejob.jobs.records import Query
from onejob.jobs.transitions import new_nonce
from onejob.ledger.ledger import Ledger
from onejob.stores.protocol import DUPLICATE_LIMIT, GroupBy
from tests.contract.processes import race, submit_in_rounds, take_in_rounds
from tests.contract.races import CROWD, RACES, together
from tests.contract.support import (
    CONFLICT_POLICIES,
    LEASE,
    REPLACE,
    RUN_AGAIN,
    RUNNING,
    ManualClock,
    apply,
    assert_legal,
    change,
    claim,
    counted,
    end,
    events,
    holders,
    read,
    run,
    start,
    submission,
    submit,
    submit_one,
    sweep,
    take_due,
)
from tests.tiers import rounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from onejob.jobs.model import Submission
    from onejob.stores.protocol import Store
    from tests.contract.support import StoreAddress

THREADS = 64
PROCESSES = 8
PROCESS_ROUNDS = 25
PAIR_ROUNDS = 6
EXPIRES_IN = 20.0
JOBS = 24
IDENTITIES = 6
KEYED = 0.2
FOLLOWING = 0.2


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    """Let the interpreter switch threads far more often than usual."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


# --- concurrent submissions -----------------------------------------------------------------------------------------


def test_of_many_threads_one_submission_is_admitted(ledger: Ledger, store: Store) -> None:
    """Of many concurrent submissions of one identity exactly one is admitted, and all return its job."""
    for number in range(5):
        identity = f"identity-{number}"
        new = [submission(f"job-{number}-{n}", identity=identity, nonce=new_nonce()) for n in range(THREADS)]
        admissions = together(*[partial(ledger.submit, each) for each in new])
        outcomes = Counter(admission.outcome for admission in admissions)
        assert outcomes == {Outcome.ADMITTED: 1, Outcome.ATTACHED: THREADS - 1}
        assert len({admission.job.id for admission in admissions}) == 1
        (holder,) = holders(store, identity)
        assert (holder.id, holder.duplicate_count) == (admissions[0].job.id, THREADS - 1)
        assert len(store.find(Query(identity=identity))) == 1


def test_of_many_processes_one_submission_is_admitted(fresh_address: StoreAddress) -> None:
    """Of submissions by many processes, including the first on a new store, exactly one per identity is admitted."""
    answers = race(fresh_address, PROCESSES, submit_in_rounds, PROCESS_ROUNDS)
    with fresh_address.opened() as store:
        for number, answers_of_round in enumerate(zip(*answers, strict=True)):
            assert Counter(outcome for outcome, _ in answers_of_round) == {"admitted": 1, "attached": PROCESSES - 1}
            (holder,) = holders(store, f"identity-{number}")
            assert {job_id for _, job_id in answers_of_round} == {holder.id}
            assert holder.duplicate_count == PROCESSES - 1
            assert_legal(store.history(holder.id), holder)


def test_one_submission_sent_many_times_is_one_submission(ledger: Ledger, store: Store) -> None:
    """One submission that is sent many times at once writes one row and returns the same each time."""
    new = submission()
    admissions = together(*[partial(ledger.submit, new)] * 16)
    assert {(admission.outcome, admission.job, admission.follower) for admission in admissions} == {
        (Outcome.ADMITTED, read(store), None)
    }
    assert events(store) == ["submit"]


def test_one_submission_sent_many_times_is_one_duplicate(store_factory: Callable[[], Store]) -> None:
    """One submission that is sent many times while another job runs is queued next once and counted once."""
    stores = [store_factory() for _ in range(CROWD)]
    for number in range(40):
        holder = run(stores[0], f"run-{number}", identity=f"identity-{number}")
        new = submission(f"next-{number}", identity=holder.identity, **RUN_AGAIN)
        admissions = together(*[partial(submit_one, store, new, wake_in=LEASE) for store in stores])
        expected = (Outcome.QUEUED_NEXT, read(stores[0], new.id))
        assert {(admission.outcome, admission.job) for admission in admissions} == {expected}
        assert (read(stores[0], holder.id).duplicate_count, len(stores[0].duplicates(holder.id))) == (1, 1)
    assert counted(stores[0], GroupBy.TASK) == {("app.add", "queued_next"): 40}


def test_a_submission_during_an_end_is_attached_or_admitted(store_factory: Callable[[], Store]) -> None:
    """A submission concurrent with an end is either attached to the ending job or admitted."""
    first, second = store_factory(), store_factory()
    for number in range(40):
        ending = run(first, f"job-{number}", identity="same")
        new = submission(f"next-{number}", identity="same", nonce=new_nonce())
        returned_jobs: list[Job] = []
        together(partial(end, first, ending), partial(_submit_into, second, new, returned_jobs))
        (job,) = returned_jobs
        assert job.id in {ending.id, new.id}
        assert [holder.id for holder in holders(first, "same")] == [new.id] * (job.id == new.id)
        assert read(first, ending.id).duplicate_count == (job.id == ending.id)
        if job.id == new.id:
            end(first, start(first, new.id))


def _submit_into(store: Store, new: Submission, returned_jobs: list[Job]) -> None:
    returned_jobs.append(submit_one(store, new, wake_in=LEASE).job)


def test_a_follower_submitted_during_an_end_is_woken(store_factory: Callable[[], Store], clock: ManualClock) -> None:
    """A follower that is submitted during an end is either woken by it or admitted as a job of its own."""
    first, second = store_factory(), store_factory()
    for number in range(40):
        ending = run(first, f"job-{number}", identity="same")
        new = submission(f"next-{number}", identity="same", follows=True)
        together(partial(end, first, ending), partial(submit_one, second, new, wake_in=LEASE))
        job = read(first, new.id)
        assert job.wake_at is not None
        assert job.holds_identity is (job.follows_id is None)
        if job.holds_identity:
            end(first, start(first, new.id))


# --- concurrent claims and sweeps -----------------------------------------------------------------------------------


def test_of_many_threads_one_claim_is_granted(store: Store) -> None:
    """Of many concurrent claims of one job exactly one is granted."""
    for number in range(3):
        submit(store, f"job-{number}")
        answers = together(*[partial(claim, store, f"job-{number}")] * 32)
        granted = [answer.job for answer in answers if answer.applied]
        assert granted == [read(store, f"job-{number}")]
        assert events(store, f"job-{number}") == ["submit", "claim"]


def test_of_many_processes_one_claims_and_one_takes_a_due_job(store_address: StoreAddress) -> None:
    """Across processes a job is claimed once, a due job is taken once, and a step has one value."""
    with store_address.opened() as store:
        run(store, "running")
        for number in range(PROCESS_ROUNDS):
            submit(store, f"job-{number}", wake_in=600.0)
        for number in range(PROCESSES * 2):
            submit(store, f"due-{number}", wake_in=0.0)
        answers = race(store_address, PROCESSES, take_in_rounds, PROCESS_ROUNDS)
        for answers_of_round in zip(*answers, strict=True):
            assert sum(claimed for claimed, _, _ in answers_of_round) == 1
            assert len({kept for _, _, kept in answers_of_round}) == 1
        due = Counter(job_id for answer in answers for _, ids, _ in answer for job_id in ids)
        assert due == {f"due-{number}": 1 for number in range(PROCESSES * 2)}
        assert len(store.steps("running")) == PROCESS_ROUNDS


def test_of_many_sweepers_one_takes_each_job(store_factory: Callable[[], Store], clock: ManualClock) -> None:
    """Concurrent sweepers take different due jobs, each job once."""
    stores = [store_factory() for _ in range(4)]
    for number in range(40):
        submit(stores[0], f"job-{number}", wake_in=1.0)
    clock.advance(2.0)
    taken = together(*[partial(take_due, store, limit=15, hold=5.0) for store in stores])
    assert sorted(job.id for jobs in taken for job in jobs) == sorted(f"job-{number}" for number in range(40))


def test_of_many_values_one_is_kept(store: Store) -> None:
    """Of many concurrent values of a step one is kept, and all calls return it."""
    job = run(store)
    keep = partial(store.keep_step, job.id, job.token, "one", sources=RUNNING)
    assert set(together(*[partial(keep, str(value)) for value in range(16)])) == {store.steps(job.id)["one"]}


def test_many_equal_requests_are_one_request(store_factory: Callable[[], Store]) -> None:
    """A change and a claim that are sent several times at once are applied once, and every call returns `applied`."""
    stores = [store_factory() for _ in range(4)]
    submit(stores[0])
    nonce = new_nonce()
    claims = together(*[partial(claim, store, nonce=nonce) for store in stores])
    assert all(answer.applied for answer in claims)
    request = change(read(stores[0]), Transition.RETRY, wake_in=1.0)
    assert all(answer.applied for answer in together(*[partial(store.apply, request) for store in stores]))
    assert events(stores[0]) == ["submit", "claim", "retry"]


# --- pairs ----------------------------------------------------------------------------------------------------------


@rounds(20, 200)
@pytest.mark.parametrize("name", RACES)
def test_a_race_ends_as_returned(store_factory: Callable[[], Store], name: str, rounds: int) -> None:
    """In every round the stored state is what the operations returned, whichever was first."""
    outcome_counts = RACES[name]([store_factory() for _ in range(CROWD)], rounds)
    assert sum(outcome_counts.values()) >= rounds


@dataclass
class Actor:
    """A thread that operates on a job at the same time as another, with a store of its own."""

    ledger: Ledger
    clock: ManualClock
    runs: list[Job] = field(default_factory=list)
    accepted: list[Transition] = field(default_factory=list)
    """The transitions that the ledger accepted from this actor."""

    def claim(self, job: Job) -> None:
        answer = self.ledger.claim(job.id, nonce=new_nonce(), node="node-2")
        if answer.applied and answer.job is not None:
            self.runs.append(answer.job)

    def cancel(self, job: Job) -> None:
        self.ledger.cancel(job.id)

    def replace(self, job: Job) -> None:
        self._submit(job, REPLACE | {"max_wait": 0.0})

    def run_again(self, job: Job) -> None:
        self._submit(job, RUN_AGAIN)

    def _submit(self, job: Job, values: dict[str, Any]) -> None:
        nonce = new_nonce()
        self.ledger.submit(submission(nonce, identity=job.identity, nonce=nonce, fingerprint=nonce, **values))

    def expire(self, job: Job) -> None:
        self.clock.advance(EXPIRES_IN)
        if self.ledger.store.apply(change(job, Transition.EXPIRE, overdue=True, wake_in=1000.0)).applied:
            self.accepted.append(Transition.EXPIRE)

    def complete(self, job: Job) -> None:
        self._transition(Transition.COMPLETE, lambda: self.ledger.complete(job, "1"))

    def fail(self, job: Job) -> None:
        self._transition(Transition.FAIL, lambda: self.ledger.fail(job, "1", "broken"))

    def retry(self, job: Job) -> None:
        values = {"delay": 0.0, "payload": "[]", "options": "[]", "retries": 1, "error": None, "reason": "again"}
        self._transition(Transition.RETRY, lambda: self.ledger.retry(job, **values))  # type: ignore[arg-type]

    def release(self, job: Job) -> None:
        self._transition(Transition.RELEASE, lambda: self.ledger.release(job, "shutting down"))

    def crash(self, job: Job) -> None:
        self.clock.advance(LEASE)
        if self.ledger.crash(job, "no heartbeat", "{}", lapsed=True).applied:
            self.accepted.append(Transition.CRASH)

    def renew(self, job: Job) -> None:
        self.ledger.renew([(job.id, job.claim)])

    def sweep(self, job: Job) -> None:
        self.clock.advance(LEASE)
        sweep(self.ledger, lambda _: None)

    def _transition(self, event: Transition, operation: Callable[[], Job]) -> None:
        try:
            operation()
        except StaleTokenError:
            return
        self.accepted.append(event)


ACTIONS = (
    "claim", "cancel", "expire", "complete", "fail", "retry", "release", "crash", "renew", "sweep", "replace",
    "run_again",
)  # fmt: skip
PAIRS = [
    pytest.param(one, other, marks=() if one == "complete" else pytest.mark.deep)
    for one, other in itertools.combinations_with_replacement(ACTIONS, 2)
]
STARTS = (State.QUEUED, State.RUNNING, State.RETRYING)


def bring_into_state(store: Store, job_id: str, state: State) -> tuple[Job, list[Job]]:
    """Bring a job that can expire, or has run, into a state; return it and its runs so far."""
    job = submit(store, job_id, expires_in=EXPIRES_IN)
    if state is State.QUEUED:
        return job, []
    job = start(store, job_id)
    return (job if state is State.RUNNING else apply(store, job, Transition.RETRY, wake_in=LEASE)), [job]


def assert_legal_after(store: Store, job_id: str, runs: Sequence[Job], accepted: Sequence[Transition]) -> None:
    """Assert that a job's history is legal and contains every granted run and every accepted transition."""
    history, job = store.history(job_id), read(store, job_id)
    assert_legal(history, job, sorted(runs, key=lambda run: run.attempt))
    assert Counter(accepted) <= Counter(Transition(entry.event) for entry in history if entry.event in {*Transition})


def assert_one_holder_per_identity(found: Sequence[Job]) -> None:
    """Assert that each identity has at most one holder and one queued job, after a live job or with `wake_at`."""
    live_ids = {job.id for job in found if not job.state.final}
    for kind in ([job for job in found if job.holds_identity], [job for job in found if job.queued_next]):
        assert len({job.identity for job in kind}) == len(kind)
    for job in found:
        assert not job.queued_next or job.follows_id in live_ids or job.wake_at is not None
        assert not (job.holds_identity and job.queued_next)


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_two_concurrent_operations_leave_a_legal_history(
    store_factory: Callable[[], Store], clock: ManualClock, one: str, other: str
) -> None:
    """Any two concurrent operations on a job leave a history that the lifecycle rules allow."""
    stores = [store_factory(), store_factory()]
    for number, state in itertools.product(range(PAIR_ROUNDS), STARTS):
        job, runs = bring_into_state(stores[0], f"{state}-{number}", state)
        actors = [Actor(Ledger(store), clock, runs) for store in stores]
        names = (one, other) if number % 2 else (other, one)
        operations = [getattr(actor, name) for actor, name in zip(actors, names, strict=True)]
        together(*[partial(operation, job) for operation in operations])
        assert_legal_after(stores[0], job.id, runs, [event for actor in actors for event in actor.accepted])
        assert_one_holder_per_identity(stores[0].find(Query(identity=job.identity)))


def test_many_concurrent_operations_leave_legal_histories(
    store_factory: Callable[[], Store], clock: ManualClock
) -> None:
    """Many concurrent operations on many jobs leave legal histories and one holder per identity."""
    runs: list[Job] = []
    actors = [Actor(Ledger(store_factory()), clock, runs) for _ in range(4)]

    def operate(actor: Actor, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(150):
            number = chance.randrange(JOBS)
            job_id = f"job-{number}"
            values = CONFLICT_POLICIES[chance.choice(list(CONFLICT_POLICIES))] | {
                "fingerprint": str(chance.randrange(3))
            }
            values |= {"key": str(chance.randrange(JOBS)), "key_for": 5 * LEASE} if chance.random() < KEYED else {}
            values |= {"delay": LEASE * chance.randrange(2), "follows": chance.random() < FOLLOWING}
            new = submission(job_id, identity=f"identity-{number % IDENTITIES}", nonce=new_nonce(), **values)
            admission = actor.ledger.submit(new)
            getattr(actor, chance.choice(ACTIONS))(actor.ledger.get_or_none(job_id) or admission.job)

    together(*[partial(operate, actor, seed) for seed, actor in enumerate(actors)])
    store = actors[0].ledger.store
    found = store.find(Query(limit=1000))
    assert found
    for job in found:
        assert_legal_after(store, job.id, [run for run in runs if run.id == job.id], [])
    assert_one_holder_per_identity(found)
    assert sum(counted(store, GroupBy.TASK).values()) >= sum(job.duplicate_count for job in found) > 0
    for job in found:
        assert len(store.duplicates(job.id)) == min(job.duplicate_count, DUPLICATE_LIMIT)
