"""Races: with any concurrent operations, one job holds an identity, one run has a job, and histories are legal."""

import itertools
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import methodcaller
from typing import Any

import pytest

from onejob.errors import QuotaExceededError, StaleTokenError
from onejob.jobs.handover import OFFERED
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Applied, JobRow, Outcome
from onejob.jobs.query import Query
from onejob.jobs.submitter import Charge, Quota
from onejob.jobs.transitions import new_nonce
from onejob.ledger.ledger import Ledger, NextRun
from onejob.stores.protocol import DUPLICATE_LIMIT, GroupBy, Store
from tests.services import eventually
from tests.stores.processes import (
    charge_in_rounds,
    killed_while_charged,
    race,
    submit_batches_in_rounds,
    submit_in_rounds,
    take_in_rounds,
)
from tests.stores.races import CROWD, RACES, together
from tests.stores.support import (
    CONFLICT_POLICIES,
    LEASE,
    REPLACE,
    RUN_AGAIN,
    ManualClock,
    StoreAddress,
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
)
from tests.tiers import rounds

THREADS = 64
BATCHES, BATCH = 8, 40
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


# --- the same at once ----------------------------------------------------------------------------------------------


def test_of_many_threads_one_submission_is_admitted(store: Store) -> None:
    """Of many submissions of one identity in threads that share a store one is admitted, and all return its job."""
    for number in range(5):
        new = [submission(f"job-{number}-{n}", identity=f"{number}", nonce=new_nonce()) for n in range(THREADS)]
        admissions = together(*[partial(submit_one, store, each, wake_after=LEASE) for each in new])
        outcomes = Counter(admission.outcome for admission in admissions)
        assert outcomes == {Outcome.ADMITTED: 1, Outcome.ATTACHED: THREADS - 1}
        (holder,) = holders(store, f"{number}")
        assert {admission.job.id for admission in admissions} == {holder.id}
        assert holder.duplicate_count == THREADS - 1


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


def test_one_request_that_is_sent_many_times_is_one(store_factory: Callable[[], Store]) -> None:
    """A new job, a duplicate, a follower, a claim and a change that are sent at once are applied once, and answered."""
    stores = [store_factory() for _ in range(CROWD)]

    def at_once(operation: Callable[[Store], Any]) -> Any:
        first, *others = together(*[partial(operation, store) for store in stores])
        assert others == [first] * (CROWD - 1)
        return first

    for number in range(20):
        name, nonce = f"run-{number}", new_nonce()
        new, late = submission(name), submission(f"next-{number}", identity=f"identity-of-{name}", **RUN_AGAIN)
        assert at_once(partial(submit_one, new=new, wake_after=LEASE)).outcome is Outcome.ADMITTED
        assert at_once(partial(claim, job_id=name, nonce=nonce)).applied
        assert at_once(partial(submit_one, new=late, wake_after=LEASE)).outcome is Outcome.QUEUED_NEXT
        followed = submission(f"after-{number}")
        assert at_once(methodcaller("follow", followed, follows_id=name)).follows_id == name
        ending = change(read(stores[0], name), Transition.RETRY, wake_after=1.0)
        assert at_once(methodcaller("apply", ending)).applied
        assert events(stores[0], name) == ["submit", "claim", "retry"]
        assert (read(stores[0], name).duplicate_count, len(stores[0].duplicates(name))) == (1, 1)
    assert counted(stores[0], GroupBy.TASK) == {("app.add", "queued_next"): 20}


@pytest.mark.parametrize("follows", [False, True])
def test_a_submission_during_an_end_is_attached_or_admitted(store_factory: Callable[[], Store], follows: bool) -> None:
    """A submission during an end is attached to the ending job, which wakes its follower, or admitted."""
    first, second = store_factory(), store_factory()
    for number in range(40):
        ending = run(first, f"job-{number}", identity="same")
        new = submission(f"next-{number}", identity="same", follows=follows)
        answer: Any = together(partial(end, first, ending), partial(submit_one, second, new, wake_after=LEASE))[1]
        admitted = answer.job.id == new.id
        assert answer.job.id in {ending.id, new.id}
        assert [holder.id for holder in holders(first, "same")] == [new.id] * admitted
        assert read(first, ending.id).duplicate_count == (not admitted)
        if follows and not admitted:
            assert (read(first, new.id).wake_at or 1e12) < read(first, new.id).created_at + LEASE
        if admitted:
            end(first, start(first, new.id))


def test_of_many_processes_one_claims_and_one_takes_a_due_job(store_address: StoreAddress) -> None:
    """Across processes a job is claimed once, a due job is taken once, and a step has one value."""
    with store_address.opened() as store:
        run(store, "running")
        for number in range(PROCESS_ROUNDS):
            submit(store, f"job-{number}", wake_after=600.0)
        for number in range(PROCESSES * 2):
            submit(store, f"due-{number}", wake_after=0.0)
        answers = race(store_address, PROCESSES, take_in_rounds, PROCESS_ROUNDS)
        for answers_of_round in zip(*answers, strict=True):
            assert sum(claimed for claimed, _, _ in answers_of_round) == 1
            assert len({kept for _, _, kept in answers_of_round}) == 1
        due = Counter(job_id for answer in answers for _, ids, _ in answer for job_id in ids)
        assert due == {f"due-{number}": 1 for number in range(PROCESSES * 2)}
        assert len(store.steps("running")) == PROCESS_ROUNDS


@pytest.mark.parametrize("fresh_address", ["sqlite", "postgresql"], indirect=True)
def test_workers_that_look_at_once_take_different_jobs(store_factory: Callable[[], Any]) -> None:
    """Of many workers that take jobs from the ledger each job goes to one, and all are taken."""
    stores, ids = [store_factory() for _ in range(CROWD)], {f"job-{number}" for number in range(100)}
    offered = [submission(job_id, route="celery") for job_id in ids]
    stores[0].submit_many(offered, handover_of=lambda _: OFFERED)

    def work(store: Any) -> list[str]:
        found: list[str] = []
        while (seconds := store.next_delivery(["celery"])) is not None and seconds <= 0:
            found += [job.id for job in store.deliver(["celery"], limit=3)]
        return found

    taken = [job_id for each in together(*[partial(work, store) for store in stores]) for job_id in each]
    assert (len(taken), set(taken)) == (100, ids)


@pytest.mark.parametrize("crossed", [False, True])
def test_batches_in_opposite_order_do_not_block_each_other(fresh_address: StoreAddress, *, crossed: bool) -> None:
    """Processes that open a new store, with batches in opposite order or crossed keys, make a job for each identity."""
    answers = race(fresh_address, 2, submit_batches_in_rounds, BATCHES, BATCH, crossed)
    number = Counter(each for answers_of_process in answers for each in answers_of_process)
    assert sum(number.values()) == 2 * BATCHES * BATCH
    with fresh_address.opened() as store:
        found = [job for job in store.find(Query(limit=10_000)) if job.follows_id is None]
        assert len(found) == len({job.identity for job in found})
        assert {job_id for outcome, job_id in number if outcome == "admitted"} == {job.id for job in found}
        assert all(number["admitted", job.id] == 1 for job in found)
        assert crossed or [job.duplicate_count for job in found] == [1] * BATCHES * BATCH


# --- quotas ---------------------------------------------------------------------------------------------------------


def is_admitted(store: Store, job_id: str, name: str, limit: int) -> bool:
    """Submit a new job with a quota, and return whether that is not used up."""
    try:
        submit(store, job_id, charges=(Charge("quota", Quota(limit, 60), name),))
    except QuotaExceededError:
        return False
    return True


def test_concurrent_processes_cannot_exceed_a_quota(fresh_address: StoreAddress) -> None:
    """Processes that submit jobs and batches, new and equal ones, admit exactly as many jobs as each quota allows."""
    answers = race(fresh_address, 4, charge_in_rounds, 10, limit := 7)
    with fresh_address.opened() as store:
        for number in range(10):
            assert sum(each[number] for each in answers) == limit
            assert not is_admitted(store, f"last-{number}", f"name-{number}", limit)
        assert sum(store.counts(Query()).values()) == 10 * limit


def test_a_killed_submitter_loses_no_use(fresh_address: StoreAddress) -> None:
    """When submitters are killed at any moment, a quota has counted exactly the jobs that exist."""
    killed_while_charged(fresh_address, 100_000)
    with fresh_address.opened() as store:

        def jobs() -> int:
            return sum(store.counts(Query()).values())

        assert jobs() > 0
        eventually(lambda: is_admitted(store, "next", "webshop", jobs() + 1))  # a server ends what it has begun
        assert not is_admitted(store, "over", "webshop", jobs())


# --- pairs ----------------------------------------------------------------------------------------------------------


@rounds(10, 200)
@pytest.mark.parametrize("name", RACES)
def test_a_race_ends_as_returned(store_factory: Callable[[], Store], name: str, rounds: int) -> None:
    """In every round the stored state is what the operations returned, whichever was first."""
    outcome_counts = RACES[name]([store_factory() for _ in range(CROWD)], rounds)
    assert sum(outcome_counts.values()) == rounds


@dataclass
class Actor:
    """A thread that operates on a job at the same time as another, with a store of its own."""

    ledger: Ledger
    clock: ManualClock
    runs: list[JobRow] = field(default_factory=list)
    accepted: list[Transition] = field(default_factory=list)
    """The transitions that the ledger accepted from this actor."""

    def act(self, name: str, job: JobRow) -> None:
        """Operate on a job; what is refused is not accepted."""
        self.clock.advance({"expire": EXPIRES_IN, "crash": LEASE, "sweep": LEASE}.get(name, 0.0))
        try:
            answer: Any = OPERATIONS[name](self.ledger, job)
        except StaleTokenError:
            return
        if isinstance(answer, Applied) and not answer.applied:
            return
        if name == "claim":
            self.runs.append(answer.job)
        elif name in RUN_ENDS | {"expire"}:
            self.accepted.append(Transition(name))


def submit_again(ledger: Ledger, job: JobRow, policy: dict[str, Any]) -> None:
    """Submit the identity of a job with other arguments."""
    nonce = new_nonce()
    ledger.submit(submission(nonce, identity=job.identity, nonce=nonce, fingerprint=nonce, **policy))


AGAIN = NextRun(payload="[]", options="[]", retries=1)
OPERATIONS: dict[str, Callable[[Ledger, JobRow], object]] = {
    "claim": lambda ledger, job: ledger.claim(job.id, nonce=new_nonce(), node="node-2"),
    "cancel": lambda ledger, job: ledger.cancel(job.id),
    "expire": lambda ledger, job: ledger.store.apply(change(job, Transition.EXPIRE, overdue=True, wake_after=1000.0)),
    "complete": lambda ledger, job: ledger.complete(job, "1"),
    "fail": lambda ledger, job: ledger.fail(job, "1", "broken"),
    "retry": lambda ledger, job: ledger.retry(job, AGAIN, error=None, reason="again"),
    "release": lambda ledger, job: ledger.release(job, "shutting down"),
    "crash": lambda ledger, job: ledger.crash(job, "no heartbeat", "{}", lapsed=True),
    "renew": lambda ledger, job: ledger.renew([(job.id, job.claim)]),
    "sweep": lambda ledger, job: sweep(ledger, lambda _: None),
    "replace": lambda ledger, job: submit_again(ledger, job, REPLACE | {"max_wait": 0.0}),
    "run_again": lambda ledger, job: submit_again(ledger, job, RUN_AGAIN),
}
RUN_ENDS = {"complete", "fail", "retry", "release", "crash"}
PAIRS = [
    pytest.param(one, other, marks=() if {"complete", "cancel"} & {one, other} else pytest.mark.deep)
    for one, other in itertools.combinations_with_replacement(OPERATIONS, 2)
]
STARTS = (State.QUEUED, State.RUNNING, State.RETRYING)


def bring_into_state(store: Store, job_id: str, state: State) -> tuple[JobRow, list[JobRow]]:
    """Bring a job that can expire, or has run, into a state; return it and its runs so far."""
    job = submit(store, job_id, expires_in=EXPIRES_IN)
    if state is State.QUEUED:
        return job, []
    job = start(store, job_id)
    return (job if state is State.RUNNING else apply(store, job, Transition.RETRY, wake_after=LEASE)), [job]


def assert_legal_after(store: Store, job_id: str, runs: Sequence[JobRow], accepted: Sequence[Transition]) -> None:
    """Assert that a job's history is legal and contains every granted run and every accepted transition."""
    history, job = store.history(job_id), read(store, job_id)
    assert_legal(history, job, sorted(runs, key=lambda run: run.attempt))
    assert Counter(accepted) <= Counter(Transition(entry.event) for entry in history if entry.event in {*Transition})


def assert_one_holder_per_identity(found: Sequence[JobRow]) -> None:
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
    """Any two concurrent operations on a job leave a history that the lifecycle rules allow, and cancel it if told."""
    stores = [store_factory(), store_factory()]
    for number, state in itertools.product(range(PAIR_ROUNDS), STARTS):
        job, runs = bring_into_state(stores[0], f"{state}-{number}", state)
        actors = [Actor(Ledger(store), clock, runs) for store in stores]
        names = (one, other) if number % 2 else (other, one)
        together(*[partial(actor.act, name, job) for actor, name in zip(actors, names, strict=True)])
        assert_legal_after(stores[0], job.id, runs, [event for actor in actors for event in actor.accepted])
        assert_one_holder_per_identity(stores[0].find(Query(identity=job.identity)))
        left = read(stores[0], job.id)
        assert "cancel" not in names or left.state.final or (left.state is State.RUNNING and left.cancel)


def test_many_concurrent_operations_leave_legal_histories(
    store_factory: Callable[[], Store], clock: ManualClock
) -> None:
    """Many concurrent operations on many jobs leave legal histories and one holder per identity."""
    runs: list[JobRow] = []
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
            actor.act(chance.choice([*OPERATIONS]), actor.ledger.get_or_none(job_id) or admission.job)

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
