"""The store protocols: atomic operations on rows. The ledger is the use cases on top of them.

A new store begins with `CoreStore`; each other protocol is a capability of its own. `tests/stores` tests them all.

Every store guarantees:

- An operation is atomic, also when the process or the connection dies during it; of `submit_many`, each submission.
- At most one job with `holds_identity` exists for one identity, under any concurrency.
- Time is the store's clock, never the caller's.
- Every job that has not ended has a `wake_at`.
- A repeated call with the same request id (for `submit_many` the job id or the nonce, for `claim` the nonce) changes
  nothing and gets the same answer, as long as it is one of the last eight of the job, or its duplicate is kept.
- A quota counts the new jobs that were charged with it in its current window, which begins with the first of them: each
  in the operation that writes the job, and none beyond the limit. A submission that writes no new job never counts.
- The job that is queued next gets its identity in the same change that ends the job before it, with no submission in
  between. At most one job is queued next per identity.
- A token is larger than every earlier token of the job, and at least the clock in microseconds.
- No store implements a rule of the lifecycle: a change contains what to compare and what to set.
- Driver errors leave a store only as `StoreError`, of the class that its verdict has (`verdicts.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from typing import Protocol, TypeAlias, runtime_checkable

from onejob.jobs.audit_entries import AuditEntry
from onejob.jobs.backlog import Backlog
from onejob.jobs.blocks import Block
from onejob.jobs.broker_messages import Delivery, NewMessage
from onejob.jobs.costs import CostAnswer, CostKey, CostSum, CostWrite, Label
from onejob.jobs.handover import Way
from onejob.jobs.history import Entry
from onejob.jobs.lifecycle import State
from onejob.jobs.limits import Freed, LimitUse, LimitValue
from onejob.jobs.metric_buckets import NO_AMOUNTS, Bucket, Period
from onejob.jobs.model import (
    Admission,
    Applied,
    Cancel,
    Change,
    Duplicate,
    DuplicateCount,
    HandoverOf,
    JobRow,
    Renewal,
    Submission,
    Tombstone,
)
from onejob.jobs.query import Query
from onejob.jobs.schedule_state import ScheduleState
from onejob.jobs.workers import UNREGISTERED, Registration, WorkerInfo
from onejob.transactions.sessions import OpenTransaction

HISTORY_LIMIT = 200
"""How many entries of a job's history a store keeps: the newest entries."""
WINDOW_OVER, HAS_EXPIRED = "its uniqueness window is over", "it has expired"
"""The two details in the history of a job whose identity was released for a submission."""
DUPLICATE_LIMIT = 20
"""How many duplicates of one job a store keeps: the newest duplicates. All are counted."""
SUBMITTER_LIMIT = 1000
"""About how many submitters the statistics of a task, and of a job that is kept, distinguish."""
OTHER_SUBMITTERS = "(others)"
"""The submitter under which the duplicates of all further submitters are counted."""
LISTED_HOLDERS = 100
"""How many of the jobs that use a key are listed."""
LOGS_KEPT = 10
"""How many attempts of a job, the newest ones, have a log."""
BATCH_LIMIT = 1000
"""How many submissions one call may have."""
FORGOTTEN_AFTER = 3_600.0
"""Seconds for which an expired queue and its bindings are kept, so that a suspended consumer can renew the queue."""
LOOK_INTERVAL = 10.0
"""Seconds after which workers look for jobs and messages without a signal; signals announce all that are due before."""
Wake: TypeAlias = Callable[[str], object]
BACKSTOP = 1.0
"""Seconds after which each subscriber looks for itself, so that a lost signal delays it by no more than that."""
POLL = 0.05
"""Seconds after which each subscriber looks for itself where no signals arrive."""
JOB = "job"
MESSAGE = "message"
INDEXED_STATES = (State.CANCELED, State.FAILED, State.RETRYING)
"""The states that have an index in the order of `created_at`. Running jobs are found by their leases."""


class Index(StrEnum):
    """The indexes that lead to the jobs of a query, in the order of `created_at`. The values name the statements."""

    TIMES = ""
    RUNS = "of_runs"
    SUBMITTER = "of_submitter"
    STATE = "of_state"


INDEXED = {
    Index.TIMES: frozenset[str](),
    Index.RUNS: frozenset({"states"}),
    Index.SUBMITTER: frozenset({"submitter"}),
    Index.STATE: frozenset({"states"}),
}
"""The filters of a query that each index applies."""


def index_of(query: Query) -> Index:
    """Return the index that leads to the jobs of a query.

    Runs are few. The jobs of a submitter precede those of a state, so that a caller with own jobs reads no others.
    """
    if query.states == {State.RUNNING}:
        return Index.RUNS
    if query.submitter:
        return Index.SUBMITTER
    return Index.TIMES if indexed_state(query) is None else Index.STATE


def indexed_state(query: Query) -> State | None:
    """Return the state of all jobs of a query if the query has one state, of `INDEXED_STATES`; None otherwise."""
    (state,) = query.states if len(query.states) == 1 else (None,)
    return state if state in INDEXED_STATES else None


def is_indexed(query: Query) -> bool:
    """Return whether the index of a query has its jobs and no others."""
    return query.filters <= INDEXED[index_of(query)]


class GroupBy(StrEnum):
    """How duplicates are grouped for counting."""

    TASK = "task"
    IDENTITY = "identity"
    SUBMITTER = "submitter"


class CoreStore(Protocol):
    """The operations that every store must have. A store is safe to use from many threads, and after a fork."""

    def submit_many(
        self, submissions: Sequence[Submission], *, handover_of: HandoverOf, wait_for_locks: bool = True
    ) -> list[Admission]:  # fmt: skip
        """Submit at most `BATCH_LIMIT` submissions in order, in a few round trips; return the admissions in that order.

        Each submission is written as a queued job that holds its identity, unless a job holds it already. A job with
        the submission's id answers, or the job that has answered its key, while the key is retained;
        `Admission.repeated` decides if there are both. A new key is stored for the job that answers. For others,
        `onejob.jobs.on_duplicate.resolve` decides whether the holder of the identity takes over the payload, or
        the submission is written as the job that is queued next (if a job is queued next already, that job may take
        over the payload). With `follows` a follower of the job that answers is written, too.

        A duplicate is counted in the job's row and in the statistics, and stored.

        `handover_of` says how a job that is due now gets to a worker, and when `take_due` returns it; a delayed job
        is returned when it is due. A store calls the function for each submission that may write or move such a job,
        once or several times. An admission says whether the job was handed over.

        A new job, also one that is queued next, is charged with the `charges` of its submission. If one of these quotas
        is used up, nothing is written, and the result is a `QuotaExceededError`. Expired windows are deleted in small
        portions by later uses of any quota.

        Without `wait_for_locks` a row that another transaction has locked raises `StoreBusyError` after a short wait.
        Raises `QuotaExceededError` for a single submission, and `PartlySubmittedError` if some of several were refused.
        """

    def follow(self, submission: Submission, *, follows_id: str) -> JobRow | None:
        """Write a follower: a queued job without an identity that becomes due with the end of the job that it follows.

        It is due at once if that job has ended already, and otherwise in one lease at the latest. A job that has its id
        is returned instead; None if the followed job does not exist. The submission's delay, expiry, key and conflict
        policy are ignored. A new follower is charged as a new job is. Raises `QuotaExceededError`.
        """

    def claim(self, job_id: str, *, nonce: str, node: str, sources: frozenset[State], target: State) -> Applied:
        """Start a run: new token, new lease.

        The job must be in `sources`, due, not expired and not queued next, and no cancellation requested.
        """

    def renew(self, claims: Sequence[tuple[str, str]], *, sources: frozenset[State]) -> list[Renewal]:
        """Extend the leases of claims, which are pairs of job id and nonce; return the renewals in the same order."""

    def apply(self, change: Change) -> Applied:
        """Apply a change if its conditions hold."""

    def report(self, job_id: str, token: int, progress: str, *, sources: frozenset[State]) -> Cancel | None:
        """Store a run's progress. Return the job's `cancel`, or None if the token is stale."""

    def keep_step(self, job_id: str, token: int, name: str, value: str, *, sources: frozenset[State]) -> str | None:
        """Memoise a step. Return the stored value (an earlier value wins), or None if the token is stale."""

    def steps(self, job_id: str) -> Mapping[str, str]:
        """Return the memoised steps of a job by name."""

    def keep_run_log(self, job_id: str, token: int, text: str) -> bool:
        """Write the log of the latest attempt, in place of the log before; return False if the token is stale.

        The run may have ended. The newest `LOGS_KEPT` attempts of a job have a log.
        """

    def run_logs(self, job_id: str) -> dict[int, str]:
        """Return the logs of a job by attempt."""

    def take_due(self, *, tasks: frozenset[str], limit: int, hold: float, expired_runs: bool = True) -> list[JobRow]:
        """Return jobs whose `wake_at` is due, and postpone it by `hold` seconds: only one sweeper gets each job.

        Runs whose lease has expired come first (none without `expired_runs`), then all others; each in the order of
        `wake_at`. A job that waits, or whose canvas waits, is returned only if its `publisher_task`, or else its task,
        is one of `tasks`; all others are neither changed nor counted, and cost nothing. Lost rows' entries are deleted.
        """

    def postpone(
        self, wake_after: Mapping[str, float], *, taken: Mapping[str, float] | None = None, lost: bool = False
    ) -> None:
        """Set `wake_at` of jobs by id, in seconds from now; jobs that run or are settled do not change.

        `taken`: the `wake_at` of some of the jobs as the caller has seen it; a job with another one does not change.
        `lost`: change only published jobs that may run and are not parked; their `published_at` is cleared: a sweep
        publishes them again.
        """

    def get_many(self, job_ids: Sequence[str]) -> dict[str, JobRow]:
        """Return the jobs that exist by id, in one round trip."""

    def delete(
        self, job_ids: Sequence[str], *, sources: frozenset[State], skip_referenced: bool = False,
        skip_needed: bool = False, successor: str | None = None, tombstone_for: float = 0.0,
    ) -> list[str]:  # fmt: skip
        """Delete the jobs that are in `sources` and hold no identity, with all that belongs to them; return their ids.

        `skip_referenced`: a job that an idempotency key or an unfinished follower points to stays. It becomes due when
        the key expires, or when the time since its end has doubled. A store may skip a locked row. Statistics stay.
        `skip_needed`: such a job stays unchanged, and so does a job whose canvas is still to be notified.

        `successor`: another job, if it exists, answers their idempotency keys from then on; else the keys are free.

        `tombstone_for`: how many seconds the tombstone of each ended job is kept. Each call also deletes expired
        tombstones, at most twice as many as there are `job_ids`, so that they do not accumulate.
        """

    def close(self) -> None:
        """Close the connections. The store may be used again afterwards."""


class Queries(Protocol):
    """The reads that find jobs by other criteria than their ids, and that return their histories and tombstones."""

    def read_clock(self) -> float:
        """Return the time on the store's clock, with which the times of jobs are compared."""

    def find_existing(self, identity: str, key: str | None) -> JobRow | None:
        """Return the job that would answer a submission: the job of its key, or else the holder of its identity.

        A holder whose uniqueness window is over would not answer: the next submission, redrive or sweep releases it.
        """

    def find(self, query: Query) -> list[JobRow]:
        """Return the jobs of a query, newest first."""

    def counts(self, query: Query, *, limit: int | None = None) -> dict[State, int]:
        """Return how many jobs match, by state, without states that have none; the page of the query is ignored.

        `limit`: only the newest so many matching jobs are counted.
        """

    def count_states(self, *, limit: int) -> dict[State, int]:
        """Return how many jobs are in each state, read from indexes; a number of `limit` means so many or more.

        A job that has ended counts as queued, and not as completed, until its canvas is notified.
        """

    def is_indexed(self, query: Query) -> bool:
        """Return whether an index has the jobs of a query and no others, so that `find` reads few others."""

    def edge(self, query: Query, *, skip: int) -> float | None:
        """Return the `created_at` of the job `skip` places after the position of a query; None if there is no such job.

        `before`, `before_id` and `until` are the position. All jobs of the time range count that the index of the query
        leads to, newest first: the other filters are ignored.
        """

    def backlog(self, *, tasks: frozenset[str], limit: int, submitter: str | None = None) -> list[Backlog]:
        """Count the jobs that wait for a run or run, by task, queue and state, sorted.

        Jobs that wait for another job, or for the end of a pause, are left out.
        Of each of the tasks whose workers handle them, the `limit` waiting jobs with the earliest `wake_at` are looked
        at, and all running ones, which are as few as the slots of the workers. `submitter`: only its jobs count.
        """

    def followers(self, job_id: str, *, limit: int) -> list[JobRow]:
        """Return the jobs whose `follows_id` is this job, also ended jobs, oldest first. Webhooks are such jobs."""

    def history(self, job_id: str) -> list[Entry]:
        """Return a job's history, oldest first: the stored entries and those that the row implies (`full_history`)."""

    def tombstone(self, job_id: str) -> Tombstone | None:
        """Return the tombstone of a deleted job; None if a new job has this id."""


class DuplicateStats(Protocol):
    """The duplicates of jobs, and their statistics.

    Sums by task, submitter and outcome are kept for ever; the numbers of an identity come from its jobs that are kept.
    At most `SUBMITTER_LIMIT` submitters have sums of their own.
    """

    def record(self, duplicate: Duplicate, *, also: Sequence[str] = ()) -> None:
        """Store and count a duplicate that was found outside of `submit_many`, in the same way.

        `also`: the nonces of further submissions that differ only by their nonces, in order.

        A redelivered message (a duplicate without `submission_nonce`) is counted as such, and not in the job's row.
        Nothing happens if the job does not exist.
        """

    def duplicates(self, job_id: str) -> list[Duplicate]:
        """Return the newest duplicates of a job, oldest first."""

    def duplicate_counts(
        self, by: GroupBy, *, limit: int, submitter: str | None = None, tasks: frozenset[str] | None = None
    ) -> list[DuplicateCount]:
        """Return the counts of the `limit` groups with the most duplicates, largest first.

        Redelivered messages have counts of their own, which do not affect the order. `submitter`: count only the
        duplicates of this submitter (by identity: those of the jobs of this submitter). `tasks`: only of these tasks.
        """


class Costs(Protocol):
    """The costs of runs, and their sums by day, task, submitter and tag, which are kept for `COST_DAYS` days.

    On each day at most `SUBMITTER_LIMIT` submitters of a task have sums of their own, and as many tags; all others are
    added up as `OTHER_SUBMITTERS`.
    """

    def add_cost(self, write: CostWrite, *, sources: frozenset[State]) -> CostAnswer | None:
        """Set the costs of a run if they are the expected ones, and add to the sums of today; None: the token is stale.

        What is spent is added once, and to what is saved once for each duplicate of the job in `SAVED` so far.
        """

    def add_saved(self, amounts: Mapping[CostKey, Decimal]) -> None:
        """Add amounts to what is saved today.

        This is not idempotent: after a lost reply, a retry may add all amounts twice. No decision depends on them.
        """

    def cost_sums(self, *, first: int, last: int, label: Label) -> list[CostSum]:
        """Return the sums with a label of these days, numbered from the epoch (UTC), in any order."""


class WebhookEvents(Protocol):
    """The events that webhooks report, stored once for all webhooks of a job."""

    def keep_event(self, event_id: str, body: str | None, *, keep_for: float) -> str | None:
        """Store an event, unless it is stored, for at least `keep_for` seconds from now, and return the stored body.

        With None as the body only the time is extended; None is returned if no event is stored then. An event whose
        time is over is gone, and some of those are deleted by each call.
        """


class Results(Protocol):
    """The results of Celery tasks that are no jobs, and of groups, for `result_backend = "onejob://"`."""

    def put_result(self, name: str, body: str, *, keep_for: float) -> None:
        """Store a result, which is not empty, for so many seconds, in place of an earlier result of this name.

        Each call deletes a few results whose time is over.
        """

    def results(self, names: Sequence[str]) -> dict[str, str]:
        """Return the results that are stored, by name, in one round trip."""

    def delete_result(self, name: str) -> None:
        """Delete a result, if it is stored."""


class AuditLog(Protocol):
    """The audit log: the actions of operators, and the refused requests."""

    def append_audit(self, entry: AuditEntry, *, keep: int, keep_for: float) -> None:
        """Append an entry, with an id and the time; delete at most two of the entries that exceed a limit.

        The limits: older than `keep_for` seconds, or not one of the newest `keep` of its kind. So entries of one kind
        never displace entries of another kind.

        This is not idempotent: after a lost reply, a retry may append the entry twice.
        """

    def audit(self, *, limit: int, before: int | None, keep_for: float) -> list[AuditEntry]:
        """Return entries of the last `keep_for` seconds, newest first; with `before` only entries with smaller ids."""


class Metrics(Protocol):
    """The metrics that all processes add up, in total and by time, and the heartbeats of workers."""

    def increment(self, amounts: Mapping[str, float], *, recent: Mapping[str, float] = NO_AMOUNTS) -> None:
        """Add `amounts` to totals by name, and `recent` to the current bucket of each `Period`; a missing number is 0.

        Each call deletes some of the expired buckets: at most twice as many amounts as it may add.

        This is not idempotent: after a lost reply, a retry may add all amounts twice. No decision depends on them.
        """

    def totals(self) -> dict[str, float]:
        """Return all totals by name."""

    def series(self, period: Period, *, since: float) -> list[Bucket]:
        """Return the buckets that begin at `since` or later, oldest first, without empty buckets.

        A bucket expires `Period.kept_for` seconds after its begin. A bucket that begins later than now is left out.
        """

    def heartbeat(self, node: str, *, lasts: float, registration: Registration = UNREGISTERED) -> None:
        """Record a worker's heartbeat, which lasts so many seconds; 0 removes the worker.

        `registration` replaces the registration of the worker's previous heartbeat.
        """

    def workers(self) -> list[WorkerInfo]:
        """Return the workers whose heartbeats have not expired, by name."""

    def take_dead_workers(self) -> list[WorkerInfo]:
        """Remove the workers whose heartbeats have expired, and return them: each to one caller."""


class Channel(StrEnum):
    """The channels of signals: the kinds of things that a signal is about."""

    END = "end"
    """A job has ended; the key is its id."""
    DUE = "due"
    """A job or a message may be due; the key is the name of its queue, or "" for a job that became due by the end of
    another job. The payload is `JOB` or `MESSAGE`."""


class Signals(Protocol):
    """The signals of one store. Safe to use from many threads; a forked child has no subscriptions of its parent."""

    interval: float
    """Seconds after which each subscriber should look for itself: `BACKSTOP`, or `POLL` where no signals arrive."""

    def subscribe(self, channel: Channel, key: str, wake: Wake) -> Callable[[], None]:
        """Have `wake` called with the payload of each signal, and return the function that ends the subscription.

        `wake` is called in the thread that listens, must not block, and may be called without a reason. With an empty
        payload something may have happened: also when a connection was lost, and when a new connection listens. So a
        subscriber looks for itself once after this call, which never raises, after each wake, and at each `interval`.
        """

    def close(self) -> None:
        """Close the connection. The next subscription opens another one."""


class SignalingStore(Protocol):
    """A store that sends signals of its changes to subscribers, in any process."""

    @property
    def signals(self) -> Signals:
        """The signals of the store. In a user's transaction a store has none."""

    def get_awaited(self, job_ids: Sequence[str]) -> dict[str, JobRow]:
        """Return the jobs that exist by id, and signal the later end (`Channel.END`) of each that has not ended.

        A store may signal only the ends of jobs that were read so. A caller that subscribes first misses no end.
        """


class Schedules(Protocol):
    """The states of the entries of the beat schedule."""

    def schedules(self) -> list[ScheduleState]:
        """Return all states, by name."""

    def put_schedule(self, state: ScheduleState, *, expected: str) -> bool:
        """Write a state if the stored nonce of its entry is `expected` ("": none is stored); return whether it was.

        A repeated call, which finds its own nonce, gets True again.
        """

    def delete_schedule(self, name: str, *, expected: str) -> None:
        """Delete the state of an entry if the stored nonce is `expected`."""


class Blocks(Protocol):
    """The pauses and strikes, and the jobs that are parked on a pause (`Change.parked_on`)."""

    def blocks(self) -> list[Block]:
        """Return all blocks, by id."""

    def put_block(self, block: Block) -> None:
        """Write a block, unless its id exists."""

    def delete_block(self, block_id: str) -> None:
        """Delete a block, if it exists. Jobs that are parked on it stay parked."""

    def unpark(self, block_id: str, *, limit: int, reason: str) -> list[str]:
        """Make the first jobs that are parked on a pause due, at most `limit`, and return their ids.

        The most urgent jobs come first, and then the oldest. These jobs are parked no longer, a sweep or the workers of
        their queues take them, and `reason` says why.
        """


class Limits(Protocol):
    """The limits of keys: their values, the slots and tokens that jobs have, and the jobs that are parked on keys.

    A key has the value of its own exception, or else of its name's exception, or else of its name's definition; without
    a value it limits nothing. It has *room* for a job

    - if the job has room on it already, which `free_slots` has given to it less than one lease ago, and the job has
      waited for its run since then: parked on nothing, not ended, and with the key;
    - else if no other job that is parked on it comes first, and a slot is free: fewer jobs than `running` have one; or
      the bucket of a rate has enough tokens. The bucket of an `interval` and a `burst` has enough for a weight if
      `max(full_at, now) + (min(weight, burst) - burst) * interval <= now`; taking them moves `full_at` to
      `max(full_at, now) + weight * interval`.

    A slot is a fact about a job, never a counter: it is taken while the job's run has a valid lease, or for one lease
    while the job is about to run. So a lost run's slot is free when its lease ends, and a late run frees none; `renew`
    extends no lease of a job with limits that has ended, since another job may have its slot.

    `CoreStore.claim` starts a run of a job with limits only if all its keys have room, in the same operation, and then
    takes a slot of each, or the tokens unless the job has got them. Otherwise the claim is refused, and the job parked
    on the first key that is full (`parked_on` is `limit:` and that key, `published_at` now, `wake_at` in
    `PARKED_SECONDS`, `reason` is that of `waits_for`, and the history gets an entry `park` with it); its room on other
    keys is free again, with the tokens. A job that is parked there already stays unchanged.
    """

    def limit_values(self) -> list[LimitValue]:
        """Return all values, by key, the definition of a name before its exception; also exceptions that are over."""

    def put_limits(self, values: Sequence[LimitValue]) -> None:
        """Write values, each in place of the value with the same key and `is_default`."""

    def delete_limit(self, key: str) -> None:
        """Delete the exception of a key or a name, if there is one."""

    def free_slots(self, key: str, *, way: Way, limit: int) -> Freed:
        """Make the first jobs that are parked on a key due for which all their keys have room, at most `limit`.

        The most urgent jobs come first, and then the oldest, as in `unpark`, up to the first one without room on this
        key. Each gets a slot, or the tokens, of all its keys for one lease, or until its claim; `parked_on` is cleared,
        `reason` is that of `has_room`, `run_at` is now, so that the keys take turns, whatever has waited on them;
        `wake_at` and `published_at` are those of a hand-over in this `way` (at once for a sweep) with the job's route,
        and its workers are signaled. A job without room on another of its keys is parked on that one instead. A job
        that is due later is parked no longer, has no room, and is due at its `run_at`.

        Tokens that a job has got are given back first if it has not run within its lease. If jobs are left that wait
        for tokens, the key has an alarm at the time at which the first one has enough.
        """

    def due_limits(self) -> tuple[list[str], float | None]:
        """Return the keys whose alarms are due, which are moved by a second; and the seconds to the next alarm."""

    def spend(self, key: str, amount: float) -> None:
        """Take further tokens of the rate of a key, also more than it has; give some back if `amount` is negative.

        The key is looked at before: tokens of jobs that have not run are given back.
        """

    def limit_uses(self, *, limit: int) -> list[LimitUse]:
        """Return the uses of the keys that jobs wait for, at most `limit`, those with the most waiting jobs first."""

    def limit_use(self, key: str) -> LimitUse:
        """Return the use of a key; `holders`: at most `LISTED_HOLDERS`."""

    def parked_before(self, job: JobRow) -> int:
        """Return how many jobs are parked on the same as a job, and come before it."""


class Store(
    CoreStore, Queries, DuplicateStats, Costs, WebhookEvents, Results, AuditLog, Metrics, SignalingStore, Schedules,
    Blocks, Limits,
    Protocol,
):  # fmt: skip
    """A full store, as the ledger uses it. A store in a SQL database may be a `TransactionalStore`, too."""


@runtime_checkable
class MessagePushingStore(Protocol):
    """A store that can push the message of a hand-over in the same atomic operation.

    The store pushes the message of a new job that is due, and of a job that waits for a run and is due after a change;
    `handed_over` in the answer says so. A repeated call pushes nothing, and its answer says what the first call did.
    For any other store the caller sends the message.
    """

    @property
    def address(self) -> str:
        """The server, the database and the user, without secrets: the store can push messages to this address only."""

    @property
    def slot(self) -> int:
        """The slot of a Redis Cluster that has all keys of the ledger: messages can be pushed to this slot only."""

    def pop_messages(self, destinations: Sequence[str], *, containing: str, limit: int) -> list[str]:
        """Pop messages from lists of the broker, oldest first, the first list first; return their texts.

        A message that does not contain a text, and those behind it, stay in their list. If the reply is lost, the
        messages are: sweeps publish the jobs of lost messages again.
        """


@runtime_checkable
class DeliveringStore(Protocol):
    """A store from which workers take the jobs of their queues, so that nothing has to be published.

    A waiting job is offered if it has no `published_at`, and its route is the name of a queue: by its hand-over, or
    because it is delayed, was lost, or waits for a sweep.
    """

    def deliver(self, queues: Collection[str], *, limit: int, refused: Collection[str] = ()) -> list[JobRow]:
        """Take the due jobs that are offered to the workers of these queues, each for one lease.

        The most urgent jobs come first, then those with the earliest `run_at`; none of the tasks that are `refused`.
        Until its claim a taken job is like a job whose message was sent. Expired jobs are left to a sweep.
        """

    def next_delivery(self, queues: Collection[str], *, refused: Collection[str] = ()) -> float | None:
        """Return the seconds until a job is due that these workers are offered, at most 0 for now; None if none is."""


@runtime_checkable
class MessageStore(Protocol):
    """A store that is the broker of messages that are no jobs, for `broker_url = "onejob://"`.

    A message that a consumer has taken is delivered again when its deadline passes. A repeated call changes nothing.
    """

    def put_messages(self, messages: Sequence[NewMessage], *, durable: bool = True, wake: bool = True) -> list[str]:
        """Write a copy of each message to each queue that its exchange and its routing key lead to, in this order.

        Return the queues that got a copy; an expired temporary queue gets none. With `wake` the consumers of these
        queues are signaled (`Channel.DUE`). Without `durable` the copies may be lost with the server.
        """

    def take_messages(self, queues: Sequence[str], *, limit: int, consumer: str, hold: float) -> list[Delivery]:
        """Return the first copies in these queues, by priority and then by age, and give them to a consumer.

        The copies are the consumer's for `hold` seconds; 0: they are deleted at once. A store may skip a locked row.
        """

    def delete_messages(self, ids: Sequence[int], *, consumer: str) -> None:
        """Delete the copies that are still this consumer's, which has acknowledged them."""

    def release_messages(self, ids: Sequence[int], *, consumer: str) -> None:
        """Put the copies that are still this consumer's back to their places in their queues."""

    def renew_messages(self, ids: Sequence[int], queues: Sequence[str], *, consumer: str, hold: float) -> None:
        """Extend the deadlines of a consumer's copies, and the lives of the temporary queues from which it consumes.

        The call also puts copies of dead consumers back into their queues, and deletes expired copies; an expired
        queue, which gets no copies, is deleted after `FORGOTTEN_AFTER`.
        """

    def declare_queue(self, name: str, *, expires_after: float | None, message_ttl: float | None) -> None:
        """Create a queue, or replace its options. A temporary queue exists for `expires_after` seconds at first."""

    def bind_queue(self, name: str, exchange: str, routing_key: str, pattern: str | None) -> None:
        """Bind a queue to the messages of an exchange with this routing key, or with a key that `pattern` matches."""

    def unbind_queue(self, name: str, exchange: str, routing_key: str) -> None:
        """Remove a binding."""

    def bindings(self, exchange: str | None = None) -> list[tuple[str, str, str]]:
        """Return the bindings of an exchange, or all, as exchange, routing key and queue; none of expired queues."""

    def queue_size(self, name: str) -> int | None:
        """Return how many copies of a queue nobody has taken; None if there is no such queue."""

    def purge_queue(self, name: str) -> int:
        """Delete the copies in a queue that nobody has taken, and return how many there were."""

    def delete_queue(self, name: str) -> None:
        """Delete a queue, its bindings, and its copies that nobody has taken."""


@runtime_checkable
class TransactionalStore(Protocol):
    """A store in a SQL database that users write to as well."""

    def in_transaction(self, transaction: OpenTransaction, *, writes: bool = True) -> Store:
        """Return a store that works in a user's transaction: its writes take effect with the commit.

        Without `writes` the returned store may only read, and takes no lock of a writer.

        Raises `ConfigurationError`, before anything is written, if the transaction is not on the database of this
        ledger. All other errors are the driver's own. Only equal submissions wait for locks of the transaction.
        """
