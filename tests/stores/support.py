"""What the contract tests share: a clock that tests set, short forms of operations, and a check of legal histories."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from onejob.jobs.costs import CostWrite, JobCosts, by_key, checked_amounts
from onejob.jobs.handover import Handover, Way, held
from onejob.jobs.history import Entry
from onejob.jobs.lifecycle import FINAL, RULES, State, Transition
from onejob.jobs.model import Admission, Applied, Change, Duplicate, HandoverOf, JobRow, Outcome, Submission
from onejob.jobs.query import Query
from onejob.jobs.transitions import new_nonce
from onejob.ledger.ledger import Ledger
from onejob.ledger.sweep import Publishing, SweepResult
from onejob.ledger.sweep import sweep as sweep_tasks
from onejob.stores import open_store
from onejob.stores.protocol import CoreStore, GroupBy, Store

T = TypeVar("T")
START = 1_800_000_000.0
LEASE = 30.0
WAITING = RULES[Transition.CLAIM].sources
RUNNING = RULES[Transition.RENEW].sources
ANY = frozenset(State)
UNKNOWN = "no-such-job"
TASKS = frozenset({"app.add", "other.task", "carried", "shop.invoice"})
"""The tasks of the jobs in these tests."""
REPLACE: dict[str, Any] = {"replaces": True, "queue_next": True, "max_wait": 60.0}
RUN_AGAIN: dict[str, Any] = {"replaces": True, "queue_next": True}
CONFLICT_POLICIES: dict[str, dict[str, Any]] = {
    "attach": {},
    "raise": {"rejects": True},
    "replace": REPLACE,
    "run_again": RUN_AGAIN,
}
"""The conflict policies by their names, as values of a submission."""


class ManualClock:
    """Seconds since the epoch, which only a test advances."""

    def __init__(self, now: float = START) -> None:
        self._lock = threading.Lock()
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> float:
        """Advance the clock (or set it back) and return the new time."""
        with self._lock:
            self.now += seconds
            return self.now


@dataclass(frozen=True)
class StoreAddress:
    """The URL and the namespace of a store. It pickles, so that other processes can open the same store."""

    url: str
    namespace: str

    @property
    def kind(self) -> str:
        """Return the name of the store's kind."""
        return self.url.partition(":")[0]

    def open(self, clock: Callable[[], float] | None = None) -> Store:
        """Open the store, on its own clock or on the given one."""
        if clock is None:
            return open_store(self.url, namespace=self.namespace)
        if self.kind == "sqlite":
            from onejob.stores.sqlite import SQLiteStore

            return SQLiteStore(self.url.removeprefix("sqlite:///"), clock=clock)
        if self.kind == "postgresql":
            from onejob.stores.postgres import PostgresStore

            return PostgresStore(self.url, schema=self.namespace, clock=clock)
        from onejob.stores.redis import RedisStore

        return RedisStore.from_url(self.url, prefix=self.namespace, clock=clock)

    def opened(self, clock: Callable[[], float] | None = None) -> closing[Store]:
        """Open the store for the length of a block."""
        return closing(self.open(clock))


def not_none(value: T | None) -> T:
    """Return a value that there is."""
    assert value is not None
    return value


def accepted(answer: Applied) -> JobRow:
    """Return the job of a request that was accepted."""
    assert answer.applied, answer
    return not_none(answer.job)


# --- short forms of operations --------------------------------------------------------------------------------------


def submission(job_id: str = "job-1", **values: Any) -> Submission:
    """Return a submission, by default with an identity of its own."""
    defaults: dict[str, Any] = {
        "task": "app.add", "identity": f"identity-of-{job_id}", "fingerprint": "fingerprint-1",
        "nonce": f"nonce-of-{job_id}", "payload": '{"args": [1, 2]}', "lease": LEASE,
    }  # fmt: skip
    return Submission(id=job_id, **(defaults | values))


def duplicate(job_id: str = "job-1", **values: Any) -> Duplicate:
    """Return the record of a duplicate of a job, which answers it."""
    defaults: dict[str, Any] = dict.fromkeys(("submission_nonce", "source", "submitter", "host", "fingerprint"), "")
    defaults |= {"outcome": Outcome.ATTACHED, "answered_by": job_id, "arguments_differ": False}
    return Duplicate(job_id=job_id, **defaults | values)


def admission(store: Store, job_id: str = "job-1", *, wake_after: float = LEASE, **values: Any) -> Admission:
    """Submit a job and return the whole admission."""
    return submit_one(store, submission(job_id, **values), wake_after=wake_after)


def submit_one(store: CoreStore, new: Submission, *, wake_after: float = LEASE) -> Admission:
    """Submit one job; `wake_after`: seconds until a sweep looks at it, whose message its caller sends; 0: a sweep."""
    return store.submit_many([new], handover_of=looked_at(wake_after))[0]


def looked_at(wake_after: float) -> HandoverOf:
    """Return the hand-over of due jobs by their caller, at which a sweep looks in so many seconds; 0: by that sweep."""
    handover = Handover(Way.CALLER if wake_after > 0 else Way.SWEPT, wake_after)
    return lambda _: handover


def holding(handover_of: HandoverOf) -> HandoverOf:
    """Return the hand-over of submissions, of which those that wait for room are held, as the ledger does."""
    return lambda new: handover_of(new) if new.parked_on is None else held(new.lease)


def get(store: CoreStore, job_id: str) -> JobRow | None:
    """Return a job, or None when there is none."""
    return store.get_many([job_id]).get(job_id)


def submit(store: Store, job_id: str = "job-1", *, wake_after: float = LEASE, **values: Any) -> JobRow:
    """Submit a job and return the job of the admission."""
    return admission(store, job_id, wake_after=wake_after, **values).job


def queue_next(store: Store, job_id: str = "job-2", *, identity: str = "same", **values: Any) -> JobRow:
    """Queue a run after the started job that holds an identity."""
    answer = admission(store, job_id, identity=identity, **(RUN_AGAIN | values))
    assert answer.outcome is Outcome.QUEUED_NEXT, answer
    return answer.job


def claim(store: Store, job_id: str = "job-1", *, nonce: str = "", node: str = "node-1") -> Applied:
    """Claim a job with the sources and the target of the lifecycle."""
    return store.claim(job_id, nonce=nonce or new_nonce(), node=node, sources=WAITING, target=State.RUNNING)


def start(store: Store, job_id: str = "job-1", **values: Any) -> JobRow:
    """Claim a job that can be claimed."""
    return accepted(claim(store, job_id, **values))


def run(store: Store, job_id: str = "job-1", **values: Any) -> JobRow:
    """Submit a job and claim it."""
    submit(store, job_id, **values)
    return start(store, job_id)


def change(job: JobRow, event: Transition, **values: Any) -> Change:
    """Return a change with the states of the lifecycle; an event that ends a job ends it."""
    rule = RULES[event]
    defaults: dict[str, Any] = {
        "job_id": job.id, "identity": job.identity, "request_id": new_nonce(), "event": event, "sources": rule.sources,
        "target": rule.target, "token": job.token if rule.fenced else None,
    }  # fmt: skip
    if rule.target in FINAL:
        defaults |= {"ends": True, "keeps_identity": False}
    return Change(**(defaults | values))


def cost_write(job: JobRow, number: int = 0, **amounts: int | str) -> CostWrite:
    """Return the write that adds amounts, or 0.031 usd, to the costs of a run; `number` makes it another request."""
    added = checked_amounts(amounts or {"usd": "0.031"})
    return CostWrite(
        job_id=job.id, token=job.token, request_id=f"{number:016}", expected=job.costs,
        costs=JobCosts.of(job.costs).add(job.attempt, added).to_json(), spent=by_key(job, added),
    )  # fmt: skip


def apply(store: Store, job: JobRow, event: Transition, **values: Any) -> JobRow:
    """Apply a change, and assert that it was accepted."""
    return accepted(store.apply(change(job, event, **values)))


def end(store: Store, job: JobRow, event: Transition = Transition.COMPLETE) -> JobRow:
    """End a run."""
    return apply(store, job, event, wake_after=100.0)


def read(store: Store, job_id: str = "job-1") -> JobRow:
    """Return a job that exists."""
    return not_none(get(store, job_id))


def steps_to(store: Store, job_id: str, state: State) -> JobRow:
    """Submit a job and bring it into a state."""
    if state is State.QUEUED:
        return submit(store, job_id)
    if state is State.CANCELED:
        return apply(store, submit(store, job_id), Transition.CANCEL)
    job = run(store, job_id)
    events_to = {State.RETRYING: Transition.RETRY, State.COMPLETED: Transition.COMPLETE, State.FAILED: Transition.FAIL}
    return apply(store, job, events_to[state]) if state in events_to else job


def take_due(store: CoreStore, *, limit: int = 100, hold: float = 5.0) -> list[JobRow]:
    """Take the due jobs of all tasks of these tests."""
    return store.take_due(tasks=TASKS, limit=limit, hold=hold)


def sweep(ledger: Ledger, publish: Callable[[JobRow], object], **values: Any) -> SweepResult:
    """Sweep with all tasks of these tests; `values` are those of `Publishing` and of `sweep`."""
    given = {
        name: values.pop(name) for name in ("by_store", "gone_in", "workers_take", "dispatchers") if name in values
    }
    return sweep_tasks(ledger, Publishing(publish, **given), **{"tasks": TASKS} | values)


# --- stored data ----------------------------------------------------------------------------------------------------


def events(store: Store, job_id: str = "job-1") -> list[str]:
    """Return the names of the events in a job's history."""
    return [entry.event for entry in store.history(job_id)]


def holders(store: Store, identity: str) -> list[JobRow]:
    """Return the jobs that hold an identity."""
    return [job for job in store.find(Query(identity=identity, limit=10_000)) if job.holds_identity]


def counted(store: Store, by: GroupBy) -> dict[tuple[str, str], int]:
    """Return the numbers of duplicates, by name and outcome."""
    return {(each.name, str(each.outcome)): each.count for each in store.duplicate_counts(by, limit=1000)}


@contextmanager
def untouched(store: Store, *job_ids: str) -> Iterator[None]:
    """Assert that a block leaves these jobs, their steps, their history and their duplicates unchanged."""
    ids = job_ids or ("job-1",)
    before = [_all_of(store, job_id) for job_id in ids]
    yield
    assert [_all_of(store, job_id) for job_id in ids] == before


def _all_of(store: Store, job_id: str) -> tuple[object, ...]:
    return get(store, job_id), store.steps(job_id), store.history(job_id), store.duplicates(job_id)


class _After:
    def __init__(self, store: Store, operation: str, action: Callable[[], object]) -> None:
        self._store = store
        self._operation = operation
        self._action = action

    def __getattr__(self, name: str) -> Any:
        return self._and_then if name == self._operation else getattr(self._store, name)

    def _and_then(self, *args: Any, **values: Any) -> Any:
        answer = getattr(self._store, self._operation)(*args, **values)
        action, self._action = self._action, lambda: None
        action()
        return answer


def after(store: Store, operation: str, action: Callable[[], object]) -> Store:
    """Return a store that runs an action once, just after the next call of an operation has returned."""
    return cast("Store", _After(store, operation, action))


# --- a legal history ------------------------------------------------------------------------------------------------

RUN_ENDS = frozenset(event for event, rule in RULES.items() if rule.fenced and rule.target is not None)


def assert_legal(history: Sequence[Entry], job: JobRow, runs: Sequence[JobRow] = ()) -> None:
    """Assert that a history follows the lifecycle rules. `runs`: the granted claims, in the order of their attempts."""
    _assert_path_follows_rules(history)
    _assert_attempts_count_claims(history, job)
    _assert_row_agrees(history, job)
    tokens = [claimed.token for claimed in runs]
    assert tokens == sorted(set(tokens)), "tokens strictly increase"
    assert [claimed.attempt for claimed in runs] == list(range(1, len(runs) + 1)), "one grant per attempt"
    if runs:
        assert job.token == tokens[-1], "the job's token is the last claim's"


def _assert_path_follows_rules(history: Sequence[Entry]) -> None:
    assert history[0].event in {"submit", "follow", "queue_next", "wait"}
    assert history[0].state is State.QUEUED
    names = [entry.event for entry in history]
    if names[0] == "queue_next" and Transition.CLAIM in names:
        assert Transition.PROMOTE in names[: names.index(Transition.CLAIM)], (
            "a job that is queued next is promoted before its claim"
        )
    ended = 0
    for before, entry in itertools.pairwise(history):
        rule = RULES[Transition(entry.event)]
        assert before.state in rule.sources, f"{entry.event} from {before.state}"
        assert entry.state is (rule.target or before.state), f"{entry.event} to {entry.state}"
        ended = 0 if entry.event == Transition.REDRIVE else ended + (entry.state in FINAL and rule.target is not None)
    assert ended <= 1, "at most one terminal transition, unless the job was redriven"


def _assert_attempts_count_claims(history: Sequence[Entry], job: JobRow) -> None:
    attempt = 0
    ends: dict[int, int] = {}
    for entry in history:
        attempt += entry.event == Transition.CLAIM
        assert entry.attempt == attempt
        if entry.event in RUN_ENDS:
            ends[attempt] = ends.get(attempt, 0) + 1
    assert job.attempt == attempt
    assert max(ends.values(), default=0) <= 1, "one accepted end per token"


def _assert_row_agrees(history: Sequence[Entry], job: JobRow) -> None:
    assert job.state is history[-1].state
    released = any(entry.event == Transition.RELEASE_IDENTITY for entry in history)
    kept = job.state is State.COMPLETED and job.identity_until is not None
    assert job.holds_identity is (job.follows_id is None and (kept or not job.state.final) and not released)
    assert (job.finished_at is not None) is job.state.final
    assert (job.lease_until is not None) is (job.state is State.RUNNING)
    assert not job.queued_next or job.follows_id is not None
    assert job.wake_at is not None or job.state.final, "a job that has not ended has a `wake_at`"
