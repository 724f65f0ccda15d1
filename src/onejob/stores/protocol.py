"""The store protocols: atomic operations on rows. The ledger is the use cases on top of them.

A new store begins with `CoreStore`; each of the others is a capability of its own. `tests/contract` tests each.

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
- Driver errors leave a store only as `StoreError`, or `StoreUnavailableError` when the outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Protocol, TypeAlias, runtime_checkable

from onejob.jobs import records
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Admission, Applied, Cancel, Change, Duplicate, Job, MessageOf, Renewal, Submission
from onejob.transactions.sessions import OpenTransaction

HISTORY_LIMIT = 200
"""How many entries of a job's history a store keeps: the newest ones."""
WINDOW_OVER = "its uniqueness window is over"
"""The history's detail of a job whose identity was released for a submission."""
DUPLICATE_LIMIT = 20
"""How many duplicates of one job a store keeps: the newest ones. All are counted."""
SUBMITTER_LIMIT = 1000
"""About how many submitters the statistics of a task distinguish, and those of a job that is kept."""
OTHER_SUBMITTERS = "(others)"
"""The submitter under which the duplicates of all further submitters are counted."""
BATCH_LIMIT = 1000
"""How many submissions one call may have."""
FORGOTTEN_AFTER = 3_600.0
"""Seconds for which an expired queue and its bindings are kept: a consumer that was suspended meanwhile renews it."""
LOOK_INTERVAL = 10.0
"""Seconds after which workers look for jobs and messages without a signal, which tells of all that are due before."""
Wake: TypeAlias = Callable[[str], object]
BACKSTOP = 1.0
"""Seconds after which each subscriber looks for itself, so that a lost notification costs no more."""
POLL = 0.05
"""Seconds after which each subscriber looks for itself where no notifications arrive."""
JOB = "job"
MESSAGE = "message"
INDEXED_STATES = (State.CANCELED, State.FAILED, State.RETRYING)
"""The states that have an index in the order of `created_at`. Running jobs are found by their leases."""


def indexed_state(query: records.Query) -> State | None:
    """Return the state of all jobs of a query if that has an index, and None otherwise."""
    (state,) = query.states if len(query.states) == 1 else (None,)
    return state if state is State.RUNNING or state in INDEXED_STATES else None


def is_indexed(query: records.Query, *, of_submitter: bool) -> bool:
    """Return whether an index has the jobs of a query and no others. `of_submitter`: there is one of submitters."""
    filters = query.filters
    if of_submitter and query.submitter:
        return filters == {"submitter"}
    return not filters or (filters == {"states"} and indexed_state(query) is not None)


class GroupBy(StrEnum):
    """How duplicates are grouped for counting."""

    TASK = "task"
    IDENTITY = "identity"
    SUBMITTER = "submitter"


class CoreStore(Protocol):
    """What every store must have. Safe to use from many threads, and after a fork."""

    def submit_many(
        self, submissions: Sequence[Submission], *, wake_after: float, wait_for_locks: bool = True,
        message_of: MessageOf | None = None,
    ) -> list[Admission]:  # fmt: skip
        """Submit in this order, at most `BATCH_LIMIT`, in a few round trips; return the admissions in this order.

        Each is written as a queued job that holds its identity, unless a job holds it already. A job that has its id
        answers it, or the job that has answered its key, while the key is retained. For any other duplicate,
        `onejob.jobs.on_duplicate.resolve` decides whether the holder of the identity takes over the payload, or
        the submission is written as the job that is queued next (if there is one already, that one may take over the
        payload). With `follows` a follower of the job that answers is written, too.

        A duplicate is counted in the job's row and in the statistics, and stored. `wake_after`: seconds until
        `take_due` returns a job that may run at once; a delayed one is returned when it is due.

        A new job, also one that is queued next, is charged with the `charges` of its submission. If one of these quotas
        is used up, nothing is written, and the result is a `QuotaExceededError`. Expired windows are deleted in small
        portions by later uses of any quota.

        A `MessagePushingStore` calls `message_of` for each new job that is due now. A `DeliveringStore` never calls it:
        if it is given, the jobs are offered to the workers of their queues.

        Without `wait_for_locks` a row that another transaction has locked raises `StoreBusyError` after a short wait.
        Raises `QuotaExceededError` for a single submission, and `PartlySubmittedError` if some of several were refused.
        """

    def follow(self, submission: Submission, *, follows_id: str) -> Job | None:
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
        """Extend the leases of all (job id, nonce) pairs in one call; return the renewals in the same order."""

    def apply(self, change: Change) -> Applied:
        """Apply a change if its conditions hold."""

    def report(self, job_id: str, token: int, progress: str, *, sources: frozenset[State]) -> Cancel | None:
        """Store a run's progress. Returns the job's `cancel`, or None if the token is stale."""

    def keep_step(self, job_id: str, token: int, name: str, value: str, *, sources: frozenset[State]) -> str | None:
        """Memoise a step. Returns the stored value (an earlier one wins), or None if the token is stale."""

    def steps(self, job_id: str) -> Mapping[str, str]:
        """Return the memoised steps of a job by name."""

    def take_due(self, *, tasks: frozenset[str], limit: int, hold: float, expired_runs: bool = True) -> list[Job]:
        """Return jobs whose `wake_at` is due, and postpone it by `hold` seconds, so that only one sweeper gets each.

        Runs whose lease has expired come first (none without `expired_runs`), then all others; each in the order of
        `wake_at`. A job that waits, or whose canvas waits, is returned only if its `publisher_task`, or else its task,
        is one of `tasks`; all others are neither changed nor counted, and cost nothing. Lost rows' entries are deleted.
        """

    def postpone(
        self, wake_after: Mapping[str, float], *, taken: Mapping[str, float] | None = None, lost: bool = False
    ) -> None:
        """Set `wake_at` of jobs by id, in seconds from now; jobs that run or are settled do not change.

        `taken`: the `wake_at` of some of the jobs as the caller has seen it; one that has another now does not change.
        `lost`: only of published jobs that may run, which lose their `published_at`: a sweep has to publish them again.
        """

    def get_many(self, job_ids: Sequence[str]) -> dict[str, Job]:
        """Return the jobs that exist by id, in one round trip."""

    def delete(
        self, job_ids: Sequence[str], *, sources: frozenset[State], skip_referenced: bool = False,
        tombstone_for: float = 0.0,
    ) -> list[str]:  # fmt: skip
        """Delete the jobs that are in `sources` and hold no identity, with all that belongs to them; return their ids.

        `skip_referenced`: a job that an idempotency key or an unfinished follower points to stays. It becomes due when
        the key expires, or when the time since its end has doubled. A store may skip a locked row. Statistics stay.

        `tombstone_for`: how many seconds the tombstone of each ended job is kept. Each call also deletes expired
        tombstones, at most twice as many as there are `job_ids`, so that they do not accumulate.
        """

    def close(self) -> None:
        """Close the connections. The store may be used again afterwards."""


class Queries(Protocol):
    """Finding jobs by other criteria than their ids, and reading their histories and tombstones."""

    def read_clock(self) -> float:
        """Return the time on the store's clock, with which the times of jobs are compared."""

    def find_existing(self, identity: str, key: str | None) -> Job | None:
        """Return the job that would answer a submission: its key's, or else the one that holds its identity.

        A holder whose uniqueness window is over would not answer: the next submission, redrive or sweep releases it.
        """

    def find(self, query: records.Query) -> list[Job]:
        """Return jobs, newest first."""

    def counts(self, query: records.Query, *, limit: int | None = None) -> dict[State, int]:
        """Return how many jobs match, by state, without states that have none; the page of the query is ignored.

        `limit`: only the newest so many matching jobs are counted.
        """

    def count_states(self, *, limit: int) -> dict[State, int]:
        """Return how many jobs are in each state, read from indexes; a number of `limit` means so many or more.

        A job that has ended counts as queued, and not as completed, until its canvas is notified.
        """

    def is_indexed(self, query: records.Query) -> bool:
        """Return whether an index has the jobs of a query and no others, so that `find` reads few others."""

    def edge(self, query: records.Query, *, skip: int) -> float | None:
        """Return when the job was created that is `skip` places after the position of a query; None without one.

        The position is that of `before`, `before_id` and `until`. All jobs of the time range count, newest first: the
        other filters are ignored.
        """

    def backlog(self, *, tasks: frozenset[str], limit: int, submitter: str | None = None) -> list[records.Backlog]:
        """Return the jobs that wait for a run or run, by task, queue and state, sorted; none that wait for another job.

        Of each of the tasks whose workers handle them, the `limit` waiting jobs with the earliest `wake_at` are looked
        at, and all running ones, which are as few as the slots of the workers. `submitter`: only its jobs count.
        """

    def followers(self, job_id: str, *, limit: int) -> list[Job]:
        """Return the jobs whose `follows_id` is this job, oldest first, ended ones, too: webhooks are such jobs."""

    def history(self, job_id: str) -> list[records.Entry]:
        """Return a job's history, oldest first: what is stored and what the row implies (`full_history`)."""

    def tombstone(self, job_id: str) -> records.Tombstone | None:
        """Return the tombstone of a deleted job; None if a new job has this id."""


class DuplicateStats(Protocol):
    """The duplicates of jobs, and their statistics.

    Sums by task, submitter and outcome are kept for ever; the numbers of an identity are those of its jobs that are
    kept. At most `SUBMITTER_LIMIT` submitters have sums of their own.
    """

    def record(self, duplicate: Duplicate, *, also: Sequence[str] = ()) -> None:
        """Store and count a duplicate that was found without `submit_many`, as that would.

        `also`: the nonces of further submissions that differ only by their nonces, in order.

        A redelivered message (a duplicate without `submission_nonce`) is counted as such, and not in the job's row.
        Nothing happens if the job does not exist.
        """

    def duplicates(self, job_id: str) -> list[Duplicate]:
        """Return the newest duplicates of a job, oldest first."""

    def duplicate_counts(
        self, by: GroupBy, *, limit: int, submitter: str | None = None, tasks: frozenset[str] | None = None
    ) -> list[records.DuplicateCount]:
        """Return the counts of the `limit` groups with the most duplicates, largest first.

        Redelivered messages have counts of their own, which do not affect the order. `submitter`: count only the
        duplicates of this submitter (by identity: those of the jobs of this submitter). `tasks`: only of these tasks.
        """


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
        """Store a result, which is not empty, for so many seconds, in place of an earlier one of this name.

        Each call deletes a few results whose time is over.
        """

    def results(self, names: Sequence[str]) -> dict[str, str]:
        """Return the results that are stored, by name, in one round trip."""

    def delete_result(self, name: str) -> None:
        """Delete a result, if it is stored."""


class AuditLog(Protocol):
    """What operators did, and which requests were refused."""

    def append_audit(self, entry: records.AuditEntry, *, keep: int, keep_for: float) -> None:
        """Append an entry, with an id and the time; delete two at most of those that exceed a limit.

        The limits: older than `keep_for` seconds, or not one of the newest `keep` of its kind. So entries of one kind
        never displace those of another.

        This is not idempotent: after a lost reply, a retry may append the entry twice.
        """

    def audit(self, *, limit: int, before: int | None, keep_for: float) -> list[records.AuditEntry]:
        """Return entries of the last `keep_for` seconds, newest first; with `before` only those with smaller ids."""


class Metrics(Protocol):
    """What all processes share besides jobs: metrics, in total and by time, and worker heartbeats."""

    def increment(self, amounts: Mapping[str, float], *, recent: Mapping[str, float] = records.NO_AMOUNTS) -> None:
        """Add `amounts` to totals by name, and `recent` to the current bucket of each `Period`; a missing one is 0.

        Each call deletes some of the expired buckets: at most twice as many amounts as it may add.

        This is not idempotent: after a lost reply, a retry may add all amounts twice. No decision depends on them.
        """

    def totals(self) -> dict[str, float]:
        """Return all totals by name."""

    def series(self, period: records.Period, *, since: float) -> list[records.Bucket]:
        """Return the buckets that begin at `since` or later, oldest first, without empty ones.

        A bucket expires `Period.kept_for` seconds after its begin. One that begins later than now is left out.
        """

    def heartbeat(self, node: str, *, lasts: float, registration: records.Registration = records.UNREGISTERED) -> None:
        """Record a worker's heartbeat, which lasts so many seconds; 0 removes the worker.

        `registration` replaces that of its previous heartbeat.
        """

    def workers(self) -> list[records.WorkerInfo]:
        """Return the workers whose heartbeats have not expired, by name."""

    def take_dead_workers(self) -> list[records.WorkerInfo]:
        """Remove the workers whose heartbeats have expired, and return them: each to one caller."""


class Channel(StrEnum):
    """What a signal is about."""

    END = "end"
    """A job has ended; the key is its id."""
    DUE = "due"
    """A job or a message may be due; the key is the name of its queue, or "" for a job that the end of another one has
    made due. The payload is `JOB` or `MESSAGE`."""


class Signals(Protocol):
    """The signals of one store. Safe to use from many threads; a forked child has no subscriptions of its parent."""

    interval: float
    """Seconds after which each subscriber should look for itself: `BACKSTOP`, or `POLL` where no signals arrive."""

    def subscribe(self, channel: Channel, key: str, wake: Wake) -> Callable[[], None]:
        """Have `wake` called with the payload of each signal, and return the function that ends the subscription.

        It is called in the thread that listens, must not block, and may be called without a reason. An empty payload
        means that something may have happened: also when a connection was lost, and when a new one listens. So a
        subscriber looks for itself once after this call, which never raises, after each wake, and at each `interval`.
        """

    def close(self) -> None:
        """Close the connection. The next subscription opens another one."""


class SignalingStore(Protocol):
    """A store that wakes who waits for what happens in it, in any process."""

    @property
    def signals(self) -> Signals:
        """The signals. In a user's transaction a store has none."""

    def get_awaited(self, job_ids: Sequence[str]) -> dict[str, Job]:
        """Return what `get_many` does, and signal the end of each of the jobs that has not ended (`Channel.END`).

        A store may signal only the ends of jobs that were read so. Who subscribes first misses no end.
        """


class Schedules(Protocol):
    """The states of the entries of the beat schedule."""

    def schedules(self) -> list[records.ScheduleState]:
        """Return all states, by name."""

    def put_schedule(self, state: records.ScheduleState, *, expected: str) -> bool:
        """Write a state if the stored nonce of its entry is `expected` ("": none is stored); return whether it was.

        A repeated call, which finds its own nonce, gets True again.
        """

    def delete_schedule(self, name: str, *, expected: str) -> None:
        """Delete the state of an entry if the stored nonce is `expected`."""


class Store(
    CoreStore, Queries, DuplicateStats, WebhookEvents, Results, AuditLog, Metrics, SignalingStore, Schedules, Protocol
):
    """A full store, as the ledger uses it. One in a SQL database may be a `TransactionalStore`, too."""


@runtime_checkable
class MessagePushingStore(Protocol):
    """A store that can push the `BrokerMessage` of a submission or a change in the same atomic operation.

    An admission or an applied change tells by `sent` whether it did: for a new job that is due, and for a job that
    waits for a run, and is due, after a change. A repeated call pushes nothing, and tells what the first one did.
    """

    @property
    def address(self) -> str:
        """The server, the database and the user, without secrets: messages can be pushed to this address only."""

    @property
    def slot(self) -> int:
        """The slot of a Redis Cluster that has all keys of the ledger: there, messages can be pushed to it only."""


@runtime_checkable
class DeliveringStore(Protocol):
    """A store from which workers take the jobs of their queues, so that nothing has to be published.

    A waiting job is offered if it has no `published_at`, and its route is the name of a queue: with a `message_of` of
    `submit_many`, or with the `message` of a change; a job that is delayed, or was lost, always is.
    """

    def deliver(self, queues: Collection[str], *, limit: int, refused: Collection[str] = ()) -> list[Job]:
        """Take the due jobs that are offered to the workers of these queues, each for one lease.

        The most urgent first, and then in the order of `run_at`; none of the tasks that are `refused`. Until its claim
        a job that was taken is like one whose message was sent. Expired jobs are left to a sweep.
        """

    def next_delivery(self, queues: Collection[str], *, refused: Collection[str] = ()) -> float | None:
        """Return in how many seconds the next job offered to these workers is due, at most 0 for now; None: none is."""


@runtime_checkable
class MessageStore(Protocol):
    """A store that is a broker of the messages that are no jobs, for `broker_url = "onejob://"`.

    A message that a consumer has taken is delivered again when its deadline passes. A repeated call changes nothing.
    """

    def put_messages(
        self, messages: Sequence[records.NewMessage], *, durable: bool = True, wake: bool = True
    ) -> list[str]:
        """Write a copy of each message to each queue that its exchange and its routing key lead to, in this order.

        Return the queues that got one; a temporary queue that has expired gets none. With `wake` their consumers are
        signaled (`Channel.DUE`). Without `durable` the copies may be lost with the server.
        """

    def take_messages(self, queues: Sequence[str], *, limit: int, consumer: str, hold: float) -> list[records.Delivery]:
        """Return the first copies in these queues, by priority and then by age, and give them to a consumer.

        They are the consumer's for `hold` seconds; 0: they are deleted at once. A store may skip a row that is locked.
        """

    def delete_messages(self, ids: Sequence[int], *, consumer: str) -> None:
        """Delete copies that are still this consumer's: they are acknowledged."""

    def release_messages(self, ids: Sequence[int], *, consumer: str) -> None:
        """Return copies that are still this consumer's to their places in their queues."""

    def renew_messages(self, ids: Sequence[int], queues: Sequence[str], *, consumer: str, hold: float) -> None:
        """Extend the deadlines of a consumer's copies, and the lives of the temporary queues from which it consumes.

        Returns the copies of dead consumers to their queues, and deletes what has expired; an expired queue itself,
        which gets no copies, after `FORGOTTEN_AFTER`.
        """

    def declare_queue(self, name: str, *, expires_after: float | None, message_ttl: float | None) -> None:
        """Create a queue, or replace its options. A temporary one exists for `expires_after` seconds at first."""

    def bind_queue(self, name: str, exchange: str, routing_key: str, pattern: str | None) -> None:
        """Have a queue get the messages of an exchange with this routing key, or one that `pattern` matches."""

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

    def in_transaction(self, transaction: OpenTransaction) -> Store:
        """Return a store that works in a user's transaction: its writes take effect with the commit.

        Raises `ConfigurationError`, before anything is written, if the transaction is not on the database of this
        ledger. All other errors are the driver's own. Only equal submissions wait for locks of the transaction.
        """
