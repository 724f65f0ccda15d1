"""A model of the store protocol: plain dictionaries, one step after the other. It is what every store has to equal.

The rules are those of the pure modules (`resolve`, `new_job`, `full_history`'s entries); the model says what a
store does with them. Limits are in `model_limits.py`. It is written for the reader, not for speed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from math import inf
from typing import Any

from onejob.errors import QuotaExceededError, all_written
from onejob.jobs.audit_entries import AuditEntry
from onejob.jobs.backlog import Backlog
from onejob.jobs.blocks import Block
from onejob.jobs.costs import (
    COST_DAYS,
    SAVED,
    CostAnswer,
    CostKey,
    CostSum,
    CostWrite,
    Label,
    day_of,
    day_text,
)
from onejob.jobs.handover import BY_CALLER, UNSENT, Handover, is_plain
from onejob.jobs.history import Entry, claim_detail
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.limits import read_uses
from onejob.jobs.metric_buckets import NO_AMOUNTS, Bucket, Period
from onejob.jobs.model import (
    LARGE_FIELDS,
    REDELIVERED,
    Admission,
    Applied,
    Cancel,
    Change,
    Duplicate,
    DuplicateCount,
    HandoverOf,
    JobRow,
    Outcome,
    Renewal,
    Submission,
    Tombstone,
)
from onejob.jobs.on_duplicate import Resolution, resolve
from onejob.jobs.query import Query
from onejob.jobs.schedule_state import ScheduleState
from onejob.jobs.transitions import new_job
from onejob.jobs.workers import UNREGISTERED, Registration, WorkerInfo
from onejob.stores.protocol import (
    DUPLICATE_LIMIT,
    HAS_EXPIRED,
    HISTORY_LIMIT,
    INDEXED,
    LOGS_KEPT,
    WINDOW_OVER,
    GroupBy,
    index_of,
)
from tests.stores.model_limits import ModelLimits, is_waiting

REQUEST_LIMIT = 8
"""How many of a job's latest requests a store recognizes."""


@dataclass
class Row:
    """A job with all that belongs to it."""

    job: JobRow
    requests: list[str] = field(default_factory=list)
    history: list[Entry] = field(default_factory=list)
    steps: dict[str, str] = field(default_factory=dict)
    logs: dict[int, str] = field(default_factory=dict)
    duplicates: list[Duplicate] = field(default_factory=list)
    redelivery: Duplicate | None = None
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How many duplicates, by submitter and outcome."""

    def set(self, **values: object) -> JobRow:
        """Change columns, and return the job."""
        self.job = replace(self.job, **values)  # type: ignore[arg-type]
        return self.job

    def record(self, at: float, event: str, detail: str) -> None:
        """Append an entry on the job as it is now."""
        job = self.job
        self.history.append(Entry(at, event, job.state, job.attempt, job.node, detail))


@dataclass(frozen=True)
class _Key:
    job_id: str
    fingerprint: str
    until: float


class ModelStore(ModelLimits):
    """The protocol `Store`, which says what each operation does, without atomicity, durability and connections."""

    def __init__(self, clock: Callable[[], float], *, pushes: bool = False) -> None:
        """Begin empty. `pushes`: messages go to a broker, and else workers take the jobs that have one."""
        super().__init__()
        self.read_clock = clock
        self.pushes = pushes
        self.pushed: list[str] = []
        """The messages in the broker."""
        self.pushing_requests: set[str] = set()
        self.rows: dict[str, Row] = {}
        self.keys: dict[str, _Key] = {}
        self.windows: dict[str, tuple[int, float]] = {}
        """Of each quota the uses in its window, and when that ends."""
        self.sums: Counter[tuple[str, str, str]] = Counter()
        """The duplicates of deleted jobs, by task, submitter and outcome."""
        self.costs: dict[tuple[int, CostKey], tuple[Decimal, Decimal]] = {}
        """What was spent and saved, by day and key."""
        self.tombstones: dict[str, tuple[Tombstone, float]] = {}
        self.events: dict[str, tuple[str, float]] = {}
        self.kept_results: dict[str, tuple[str, float]] = {}
        self.audit_log: list[AuditEntry] = []
        self.schedule_states: dict[str, ScheduleState] = {}
        self.kept_blocks: dict[str, Block] = {}
        self.amounts: Counter[str] = Counter()
        self.buckets: dict[tuple[Period, float], Counter[str]] = {}
        self.heartbeats: dict[str, tuple[WorkerInfo, float]] = {}

    # --- submissions ------------------------------------------------------------------------------------------------

    def submit_many(
        self,
        submissions: Sequence[Submission],
        *,
        handover_of: HandoverOf,
        wait_for_locks: bool = True,
    ) -> list[Admission]:
        assert wait_for_locks
        return all_written([self._charged(each, handover_of(each)) for each in submissions])

    def _charged(self, new: Submission, handover: Handover) -> Admission | QuotaExceededError:
        try:
            return self._submit(new, handover).handed_over_by(handover)
        except QuotaExceededError as error:
            return error

    def _submit(self, new: Submission, handover: Handover) -> Admission:
        now = self.read_clock()
        own, key = self.rows.get(new.id), self.live_key(new.key)
        if own is not None:
            return self._answer_by_id(own.job, new, key, handover)
        if key is not None:
            return self._answer_by_key(new, key)
        holder = self.holder(new.identity)
        if holder is None:
            self.release_expired(new.identity)
            self._charge(new)
            row = self._write(self._new_job(new, now, handover))
            row.record(now, "submit", new.source)
            pushed = self._message_for(new, handover)
            self.pushed += [pushed] if pushed else []
            return self._keep_key(new, Admission(row.job, Outcome.ADMITTED, handed_over=pushed != ""))
        return self._repeated(holder, new) or self._keep_key(new, self._attach(holder, new, handover))

    def _attach(self, holder: Row, new: Submission, handover: Handover) -> Admission:
        """Resolve a duplicate of the holder, or of the job that is queued next."""
        decided = resolve(holder.job, new, now=self.read_clock())
        answering = holder
        if decided.outcome is Outcome.QUEUED_NEXT:
            queued = self.queued_next(new.identity)
            if queued is None or queued.job.has_lost_identity(self.read_clock()):
                return self._count(new, holder, Admission(self._queue_next(holder, new).job, decided.outcome))
            answering, decided = queued, resolve(queued.job, new, now=self.read_clock())
        before = holder.job
        rescheduled = decided.reschedules(answering.job)
        if decided.changes(answering.job):
            self._reschedule(answering, new, decided, handover)
        answer = Admission(answering.job, decided.outcome, rescheduled=rescheduled)
        return self._count(new, holder, answer, before)

    def _reschedule(self, row: Row, new: Submission, decided: Resolution, handover: Handover) -> None:
        now, job, expires_at = self.read_clock(), row.job, decided.expires_at
        is_due = decided.run_at <= now
        is_moved = (decided.reschedules(job) or not is_due) and not job.queued_next
        route = new.route if decided.takes_over else job.route
        wake_after, is_sent = handover.columns_for(new.lease, route)
        wake_at = now + wake_after if is_due else decided.run_at
        if is_moved:
            published_at = now if is_due and is_sent else None
            job = row.set(wake_at=wake_at, published_at=published_at)
        if decided.takes_over:
            job = row.set(
                payload=new.payload, fingerprint=new.fingerprint, route=new.route, tag_lines=new.tag_lines,
                limit_keys=new.limit_keys,
            )  # fmt: skip
            self.end_room(job.id, kept={use.key for use in read_uses(job.limit_keys)})
        row.set(
            run_at=decided.run_at, priority_rank=decided.priority_rank, expires_at=expires_at,
            wake_at=_earliest(job.wake_at, expires_at),
        )  # fmt: skip

    @staticmethod
    def _new_job(new: Submission, now: float, handover: Handover) -> JobRow:
        wake_after, is_sent = handover.columns(new.lease)
        return new_job(new, now=now, wake_after=wake_after, is_sent=is_sent)

    def _queue_next(self, holder: Row, new: Submission) -> Row:
        now, reason = self.read_clock(), f"runs after {holder.job.id}"
        self._charge(new)
        expired = self.queued_next(new.identity)
        if expired is not None:
            expired.set(queued_next=False, follows_id=None)
        job = self._new_job(new, now, BY_CALLER)
        row = self._write(
            replace(
                job, holds_identity=False, queued_next=True, follows_id=holder.job.id, reason=reason, published_at=None,
                wake_at=_earliest(now + new.lease, job.expires_at), parked_on=None,
            )
        )  # fmt: skip
        row.record(now, "queue_next", reason)
        return row

    def _count(self, new: Submission, existing: Row, answer: Admission, before: JobRow | None = None) -> Admission:
        """Count a duplicate of the existing job, which was as `before`, and write its follower if it needs one."""
        compared = before or existing.job
        existing.set(duplicate_count=existing.job.duplicate_count + 1)
        job, follower = self.rows[answer.job.id].job, None
        if new.follows and job.id != new.id and answer.outcome is not Outcome.REJECTED:
            follower = self._write_follower(new, job, "follow", f"follows {job.id}").job
        answer = replace(answer, job=job, follower=follower)
        duplicate = replace(Duplicate.of(new, answer, compared), at=self.read_clock())
        existing.duplicates = [*existing.duplicates, duplicate][-DUPLICATE_LIMIT:]
        existing.counts[duplicate.submitter, duplicate.outcome] += 1
        return answer

    def _answer_by_id(self, own: JobRow, new: Submission, key: _Key | None, handover: Handover) -> Admission:
        """Answer a submission whose id exists; a key that names no job yet names the one that answers."""
        answer = self._answer_of_id(own, new, handover)
        if new.key is None or own.submission_nonce == new.nonce:
            return answer
        if (key or own).fingerprint != new.fingerprint:
            return Admission(self.rows[key.job_id].job if key else answer.job, Outcome.REJECTED, key_reused=True)
        if key is None:
            return self._keep_key(new, answer)
        keyed = self.rows[key.job_id].job
        ended = keyed.finished_at is not None
        return (
            answer if keyed.id == answer.job.id else Admission(keyed, Outcome.REPLAYED if ended else Outcome.ATTACHED)
        )

    def _answer_of_id(self, own: JobRow, new: Submission, handover: Handover) -> Admission:
        """Answer a submission whose id exists as the first one was, as far as the rows tell."""
        followed = self.rows.get(own.follows_id or "")
        if own.queued_next:
            return Admission(own, Outcome.QUEUED_NEXT)
        if followed is not None:
            replayed = (followed.job.finished_at or inf) <= own.created_at
            return Admission(followed.job, Outcome.REPLAYED if replayed else Outcome.ATTACHED, follower=own)
        if own.submission_nonce == new.nonce:
            return Admission(own, Outcome.ADMITTED, handed_over=self._message_for(new, handover) != "")
        return Admission(own, Outcome.ATTACHED if own.finished_at is None else Outcome.REPLAYED)

    def _answer_by_key(self, new: Submission, key: _Key) -> Admission:
        row, reused = self.rows[key.job_id], key.fingerprint != new.fingerprint
        repeated, holder = self._repeated(row, new), self.holder(new.identity)
        if repeated is None and holder is not None:
            of_holder = self._repeated(holder, new)
            if of_holder is not None:
                return of_holder
        if repeated is None:
            ended = row.job.finished_at is not None
            outcome = Outcome.REJECTED if reused else Outcome.REPLAYED if ended else Outcome.ATTACHED
            repeated = self._count(new, row, Admission(row.job, outcome))
        return replace(repeated, key_reused=reused)

    def _repeated(self, row: Row, new: Submission) -> Admission | None:
        """Return the first answer to a submission whose duplicate of this job is stored."""
        followed = self.rows.get(row.job.follows_id or "")
        for each in [*row.duplicates, *(followed.duplicates if followed else [])]:
            if each.submission_nonce == new.nonce:
                answer = self.rows.get(each.answered_by, row)
                return Admission(answer.job, each.outcome, rescheduled=each.rescheduled)
        return None

    def _keep_key(self, new: Submission, answer: Admission) -> Admission:
        if new.key is None or answer.outcome is Outcome.REJECTED:
            return answer
        until = self.read_clock() + new.key_for
        self.keys[new.key] = _Key(answer.job.id, new.fingerprint, until)
        row = self.rows[answer.job.id]
        return replace(answer, job=row.set(key_retained_until=max(row.job.key_retained_until or 0.0, until)))

    def _message_for(self, new: Submission, handover: Handover) -> str:
        """Return the message that is pushed with a new job; "" without one."""
        is_due = new.delay <= 0 and (new.expires_in is None or new.expires_in > 0)
        message = handover.message
        return message.text if message is not None and self.pushes and is_due else ""

    def _charge(self, new: Submission) -> None:
        """Charge a new job with all its quotas, or with none."""
        now = self.read_clock()
        charged = {}
        for charge in new.charges:
            used, until = self.windows.get(charge.name, (0, 0.0))
            if until <= now:
                used, until = 0, now + charge.quota.period
            if used >= charge.quota.limit:
                raise charge.exceeded(until, until - now)
            charged[charge.name] = (used + 1, until)
        self.windows |= charged

    def follow(self, submission: Submission, *, follows_id: str) -> JobRow | None:
        own, followed = self.rows.get(submission.id), self.rows.get(follows_id)
        if own is not None or followed is None:
            return own.job if own else None
        self._charge(submission)
        return self._write_follower(submission, followed.job, "wait", f"waits for the end of {follows_id}").job

    def _write_follower(self, new: Submission, followed: JobRow, event: str, reason: str) -> Row:
        now = self.read_clock()
        job = self._new_job(replace(new, delay=0.0, expires_in=None), now, BY_CALLER)
        wake_at = now if followed.finished_at is not None else now + new.lease
        job = replace(
            job, holds_identity=False, follows_id=followed.id, reason=reason, published_at=None, wake_at=wake_at,
            parked_on=None,
        )  # fmt: skip
        row = self._write(job)
        row.record(now, event, reason)
        return row

    def _write(self, job: JobRow) -> Row:
        self.rows[job.id] = Row(job)
        return self.rows[job.id]

    # --- changes ----------------------------------------------------------------------------------------------------

    def claim(self, job_id: str, *, nonce: str, node: str, sources: frozenset[State], target: State) -> Applied:
        now, row = self.read_clock(), self.rows.get(job_id)
        if row is None:
            return Applied(applied=False, job=None)
        job = row.job
        if nonce in row.requests:
            return Applied(applied=job.claim == nonce and job.state is target, job=job)
        is_due = job.run_at <= now and (job.expires_at is None or job.expires_at > now)
        if job.state not in sources or not is_due or job.cancel or job.queued_next:
            return Applied(applied=False, job=job)
        full = self.find_full(job) if job.is_limited else None
        if full is not None:
            self.park_on_key(row, full)
            row.history = row.history[-HISTORY_LIMIT:]
            return Applied(applied=False, job=row.job)
        until = now + job.lease
        row.set(
            state=target, token=max(job.token + 1, int(now * 1_000_000)), claim=nonce, node=node,
            attempt=job.attempt + 1, lease_until=until, wake_at=until, started_at=now, expires_at=None, published=0,
            published_at=None, publish_error="", parked_on=None, reason=f"running on {node}",
        )  # fmt: skip
        row.record(now, Transition.CLAIM, claim_detail(job.attempt + 1, node))
        if job.is_limited:
            self.take_room(row)
        return self._accepted(row, nonce)

    def apply(self, change: Change) -> Applied:
        row = self.rows.get(change.job_id)
        if row is None:
            return Applied(applied=False, job=None)
        if change.request_id in row.requests:
            return Applied(applied=True, job=row.job, handed_over=self._is_handed_over(row.job, change))
        if change.reopens and not change.rejoins:
            self.release_expired(change.identity)
        if not self._allowed(row.job, change):
            return Applied(applied=False, job=row.job)
        row.set(**self._new_values(row.job, change))
        if not is_waiting(row.job) or row.job.parked_on is not None:
            self.end_room(row.job.id)
        row.record(self.read_clock(), change.event, change.detail)
        if change.forgets_steps:
            row.steps.clear()
        job, message = row.job, change.handover and change.handover.message
        if self.pushes and message and _may_run(job) and job.run_at <= self.read_clock():
            self.pushed.append(message.text)
            self.pushing_requests.add(change.request_id)
        handed_over = self._is_handed_over(job, change)
        if change.ends:
            self._wake_followers(row.job)
        return replace(self._accepted(row, change.request_id), handed_over=handed_over)

    def _is_handed_over(self, job: JobRow, change: Change) -> bool:
        is_offered = change.handover is not None and change.handover.is_offered(job.route) and not self.pushes
        return is_offered or change.request_id in self.pushing_requests

    def _allowed(self, job: JobRow, change: Change) -> bool:
        now, holder = self.read_clock(), self._holder_row(change.identity)
        return (
            job.state in change.sources
            and change.token in {None, job.token}
            and change.seen_run_at in {None, job.run_at}
            and not (change.lapsed and (job.lease_until is None or job.lease_until > now))
            and not (change.overdue and (job.expires_at is None or job.expires_at > now))
            and not (change.unnotified and not job.canvas_pending)
            and not (change.reopens and not change.rejoins and holder is not None)
        )

    def _new_values(self, job: JobRow, change: Change) -> dict[str, object]:
        now, reopens, ends = self.read_clock(), change.reopens, change.ends
        given = (
            "payload", "options", "route", "retries", "crashes", "published", "publish_error", "cancel",
            "canvas_pending", "identity_until", "result", "error", "reason", "limit_keys",
        )  # fmt: skip
        values: dict[str, object] = {"result": None, "error": None} if reopens else {}
        values |= {name: value for name in given if (value := getattr(change, name)) is not None}
        if change.parked_on is not None:
            values["parked_on"] = change.parked_on or None
        takes_identity = reopens and not change.rejoins
        values["holds_identity"] = (job.holds_identity and change.keeps_identity) or takes_identity
        if change.target is not None:
            values |= {"state": change.target, "lease_until": None}
        if change.identity_until is None and change.identity_for is not None:
            values["identity_until"] = now + change.identity_for
        if change.run_in is not None:
            values["run_at"] = now + change.run_in
        if change.handover is not None:
            values["published_at"] = None if change.handover.way in UNSENT else now
        if takes_identity or (ends and job.queued_next):
            values["follows_id"] = None
        if reopens or ends:
            values["queued_next"] = False
        if reopens or ends:
            values["finished_at"] = now if ends else None
        if change.wake_after is not None:
            ended = ends or (job.finished_at is not None and not reopens)
            values["wake_at"] = _earliest(now + change.wake_after, None if ended else job.expires_at)
        return values

    def _accepted(self, row: Row, request: str) -> Applied:
        row.requests = [request, *row.requests][:REQUEST_LIMIT]
        row.history = row.history[-HISTORY_LIMIT:]
        return Applied(applied=True, job=row.job)

    def _wake_followers(self, ended: JobRow) -> None:
        now = self.read_clock()
        for row in self.rows.values():
            job = row.job
            if job.follows_id != ended.id or job.finished_at is not None or job.lease_until is not None:
                continue
            wake_at = max(job.run_at, now) if job.queued_next else now
            row.set(wake_at=_earliest(wake_at, job.expires_at))
            if job.queued_next and self._holder_row(job.identity) is None:
                row.set(follows_id=None, queued_next=False, holds_identity=True, reason="promoted")
                row.record(now, Transition.PROMOTE, f"promoted when {ended.id} ended")

    def release_expired(self, identity: str) -> None:
        """Release the identity of a completed job after its window, and of a waiting one that has expired."""
        row, now = self._holder_row(identity), self.read_clock()
        if row is not None and row.job.has_lost_identity(now):
            reason = HAS_EXPIRED if row.job.identity_until is None else WINDOW_OVER
            row.set(holds_identity=False)
            row.record(now, Transition.RELEASE_IDENTITY, reason)

    def renew(self, claims: Sequence[tuple[str, str]], *, sources: frozenset[State]) -> list[Renewal]:
        return [self._renew(job_id, nonce, sources) for job_id, nonce in claims]

    def _renew(self, job_id: str, nonce: str, sources: frozenset[State]) -> Renewal:
        row = self.rows.get(job_id)
        if row is None or row.job.claim != nonce or row.job.state not in sources:
            return Renewal(job_id, nonce, held=False)
        if row.job.limit_keys is not None and (row.job.lease_until or 0.0) <= self.read_clock():
            return Renewal(job_id, nonce, held=False)  # another job may have its slot
        until = self.read_clock() + row.job.lease
        return Renewal(job_id, nonce, held=True, cancel=row.set(lease_until=until, wake_at=until).cancel)

    def report(self, job_id: str, token: int, progress: str, *, sources: frozenset[State]) -> Cancel | None:
        row = self._run(job_id, token, sources)
        return row.set(progress=progress).cancel if row else None

    def keep_step(self, job_id: str, token: int, name: str, value: str, *, sources: frozenset[State]) -> str | None:
        row = self._run(job_id, token, sources)
        return row.steps.setdefault(name, value) if row else None

    def keep_run_log(self, job_id: str, token: int, text: str) -> bool:
        row = self.rows.get(job_id)
        if row is None or row.job.token != token:
            return False
        row.logs[row.job.attempt] = text
        row.logs = {attempt: kept for attempt, kept in row.logs.items() if attempt > row.job.attempt - LOGS_KEPT}
        return True

    def run_logs(self, job_id: str) -> dict[int, str]:
        row = self.rows.get(job_id)
        return dict(sorted(row.logs.items())) if row is not None else {}

    def add_cost(self, write: CostWrite, *, sources: frozenset[State]) -> CostAnswer | None:
        row = self._run(write.job_id, write.token, sources)
        if row is None:
            return None
        if write.request_id in row.requests or row.job.costs != write.expected:
            return CostAnswer(applied=write.request_id in row.requests, costs=row.job.costs)
        number = sum(count for (_, outcome), count in row.counts.items() if outcome in SAVED)
        row.requests = [write.request_id, *row.requests][:REQUEST_LIMIT]
        row.set(costs=write.costs)
        for key, amount in write.spent.items():
            self._add_costs(key, amount, amount * number)
        return CostAnswer(applied=True, costs=write.costs, duplicates=number)

    def add_saved(self, amounts: Mapping[CostKey, Decimal]) -> None:
        for key, amount in amounts.items():
            self._add_costs(key, Decimal(0), amount)

    def _add_costs(self, key: CostKey, spent: Decimal, saved: Decimal) -> None:
        day = day_of(self.read_clock())
        before = self.costs.get((day, key), (Decimal(0), Decimal(0)))
        self.costs[day, key] = (before[0] + spent, before[1] + saved)
        self.costs = {each: costs for each, costs in self.costs.items() if each[0] >= day - COST_DAYS}

    def cost_sums(self, *, first: int, last: int, label: Label) -> list[CostSum]:
        return [
            CostSum(day=day_text(day), key=key, spent=spent, saved=saved)
            for (day, key), (spent, saved) in self.costs.items()
            if first <= day <= last and key.label is label
        ]

    def steps(self, job_id: str) -> Mapping[str, str]:
        return dict(self.rows[job_id].steps) if job_id in self.rows else {}

    def _run(self, job_id: str, token: int, sources: frozenset[State]) -> Row | None:
        row = self.rows.get(job_id)
        return row if row is not None and row.job.token == token and row.job.state in sources else None

    def take_due(self, *, tasks: frozenset[str], limit: int, hold: float, expired_runs: bool = True) -> list[JobRow]:
        due = self.due(tasks=tasks, expired_runs=expired_runs)[:limit]
        return [self.rows[job.id].set(wake_at=self.read_clock() + hold) for job in due]

    def due(self, *, tasks: frozenset[str], expired_runs: bool = True) -> list[JobRow]:
        """Return the jobs that `take_due` may take, in its order."""
        now = self.read_clock()
        found = [
            job
            for job in self._jobs()
            if job.wake_at is not None
            and job.wake_at <= now
            and (expired_runs or job.lease_until is None)
            and (not _waits(job) or _handled_by(job) in tasks)
        ]
        return sorted(found, key=lambda job: (job.lease_until is None, job.wake_at))

    def deliver(self, queues: Collection[str], *, limit: int) -> list[JobRow]:
        now, rows = self.read_clock(), [self.rows[job.id] for job in self.deliverable(queues)[:limit]]
        return [row.set(published_at=now, wake_at=_earliest(now + row.job.lease, row.job.expires_at)) for row in rows]

    def deliverable(self, queues: Collection[str]) -> list[JobRow]:
        """Return the jobs that `deliver` may take, in its order."""
        due = [job for job in self._offered(queues) if job.run_at <= self.read_clock()]
        return sorted(due, key=lambda job: (-job.priority_rank, job.run_at))

    def next_delivery(self, queues: Collection[str]) -> float | None:
        return min((job.run_at - self.read_clock() for job in self._offered(queues)), default=None)

    def _offered(self, queues: Collection[str]) -> Iterable[JobRow]:
        now = self.read_clock()
        for job in self._jobs():
            waits = _may_run(job) and job.follows_id is None and job.published_at is None
            if waits and is_plain(job.route) and job.route in queues and (job.expires_at or inf) > now:
                yield job

    def postpone(
        self, wake_after: Mapping[str, float], *, taken: Mapping[str, float] | None = None, lost: bool = False
    ) -> None:
        now, seen = self.read_clock(), taken or {}
        for job_id, seconds in wake_after.items():
            row = self.rows.get(job_id)
            if row is None or not _waits(row.job) or seen.get(job_id, row.job.wake_at) != row.job.wake_at:
                continue
            job = row.job
            if not lost or (job.published_at is not None and job.run_at <= now and not job.parked_on):
                expires_at = job.expires_at if job.finished_at is None else None
                row.set(wake_at=_earliest(now + seconds, expires_at), published_at=None if lost else job.published_at)

    def delete(
        self,
        job_ids: Sequence[str],
        *,
        sources: frozenset[State],
        skip_referenced: bool = False,
        skip_needed: bool = False,
        successor: str | None = None,
        tombstone_for: float = 0.0,
    ) -> list[str]:
        rows = [self.rows[each] for each in job_ids if each in self.rows]
        deletable = [row for row in rows if row.job.state in sources and not row.job.holds_identity]
        if skip_needed:
            deletable = [row for row in deletable if not row.job.canvas_pending and not self._referenced_until(row.job)]
        until = {row.job.id: self._referenced_until(row.job) if skip_referenced else 0.0 for row in deletable}
        for row in deletable:
            if until[row.job.id]:
                row.set(wake_at=until[row.job.id])
            else:
                self._hand_over_keys(row.job, self.rows.get(successor or ""))
                self._delete(row, tombstone_for)
        return [each for each, referenced in until.items() if not referenced]

    def _is_keyed(self, job: JobRow) -> bool:
        return (job.key_retained_until or 0.0) > self.read_clock()

    def _hand_over_keys(self, job: JobRow, successor: Row | None) -> None:
        """Have the keys that name a job which is deleted name another one."""
        if successor is None or not self._is_keyed(job):
            return
        successor.set(key_retained_until=max(successor.job.key_retained_until or 0.0, job.key_retained_until or 0.0))
        for name, key in self.keys.items():
            if key.job_id == job.id:
                self.keys[name] = replace(key, job_id=successor.job.id)

    def _referenced_until(self, job: JobRow) -> float:
        now = self.read_clock()
        until = job.key_retained_until or 0.0
        if any(each.follows_id == job.id and each.finished_at is None for each in self._jobs()):
            until = max(until, now + max(now - (job.finished_at or now), job.lease))
        return until if until > now else 0.0

    def _delete(self, row: Row, tombstone_for: float) -> None:
        job, now = row.job, self.read_clock()
        del self.rows[job.id]
        self.end_room(job.id)
        self.keys = {name: key for name, key in self.keys.items() if key.job_id != job.id}
        for (submitter, outcome), count in row.counts.items():
            self.sums[job.task, submitter, outcome] += count
        if job.finished_at is not None and tombstone_for > 0:
            tombstone = Tombstone(id=job.id, state=job.state, finished_at=job.finished_at, purged_at=now)
            self.tombstones[job.id] = (tombstone, now + tombstone_for)

    def close(self) -> None:
        """Do nothing."""

    # --- queries ----------------------------------------------------------------------------------------------------

    def get_many(self, job_ids: Sequence[str]) -> dict[str, JobRow]:
        return {each: self.rows[each].job for each in job_ids if each in self.rows}

    def live_key(self, key: str | None) -> _Key | None:
        """Return an idempotency key that is retained."""
        kept = self.keys.get(key or "")
        return kept if kept is not None and kept.until > self.read_clock() else None

    def holder(self, identity: str) -> Row | None:
        """Return the job that holds an identity: within its uniqueness window, or before it expires."""
        row = self._holder_row(identity)
        return None if row is not None and row.job.has_lost_identity(self.read_clock()) else row

    def _holder_row(self, identity: str) -> Row | None:
        return next(
            (row for row in self.rows.values() if row.job.identity == identity and row.job.holds_identity), None
        )

    def queued_next(self, identity: str) -> Row | None:
        """Return the job that is queued next."""
        return next((row for row in self.rows.values() if row.job.identity == identity and row.job.queued_next), None)

    def _jobs(self) -> Iterable[JobRow]:
        return (row.job for row in self.rows.values())

    def find_existing(self, identity: str, key: str | None) -> JobRow | None:
        kept = self.live_key(key)
        row = self.rows[kept.job_id] if kept else self.holder(identity)
        return row.job if row else None

    def find(self, query: Query) -> list[JobRow]:
        found = [job for job in self._newest(query) if _is_after(job, query) and _matches(job, query)]
        page = found[query.offset : query.offset + query.limit]
        return [replace(job, **_EMPTY) for job in page] if query.light else page

    def counts(self, query: Query, *, limit: int | None = None) -> dict[State, int]:
        return dict(Counter(job.state for job in [job for job in self._newest(query) if _matches(job, query)][:limit]))

    def _newest(self, query: Query) -> list[JobRow]:
        """Return the jobs of a time range, newest first."""
        since, until = query.since or -inf, query.until or inf
        found = [job for job in self._jobs() if since <= job.created_at < until]
        return sorted(found, key=lambda job: (job.created_at, job.id), reverse=True)

    def count_states(self, *, limit: int) -> dict[State, int]:
        found = Counter(job.state for job in self._jobs())
        unsettled = sum(job.finished_at is not None and job.canvas_pending for job in self._jobs())
        found[State.QUEUED] += unsettled
        found[State.COMPLETED] -= unsettled
        return {state: min(max(found[state], 0), limit) for state in State}

    def edge(self, query: Query, *, skip: int) -> float | None:
        of_index = Query(**{name: getattr(query, name) for name in INDEXED[index_of(query)]})
        found = [job.created_at for job in self._newest(query) if _matches(job, of_index) and _is_after(job, query)]
        return found[skip] if skip < len(found) else None

    def backlog(self, *, tasks: frozenset[str], limit: int, submitter: str | None = None) -> list[Backlog]:
        groups: dict[tuple[str, str, State], list[JobRow]] = {}
        by_wake_at = sorted(self._jobs(), key=lambda job: job.wake_at or 0.0)
        found = [job for job in by_wake_at if job.lease_until is not None]
        for task in tasks:
            handled = [job for job in by_wake_at if _waits(job) and _handled_by(job) == task]
            found += [job for job in handled[:limit] if job.follows_id is None and job.finished_at is None]
        found = [job for job in found if not job.parked_on]
        for job in found:
            if _handled_by(job) in tasks and submitter in {None, job.submitter}:
                groups.setdefault((job.task, job.queue, job.state), []).append(job)
        now = self.read_clock()
        return [
            Backlog(
                *group, len(jobs), sum(job.lease_until is None and job.run_at <= now for job in jobs),
                min(job.run_at for job in jobs),
            )
            for group, jobs in sorted(groups.items())
        ]  # fmt: skip

    def followers(self, job_id: str, *, limit: int) -> list[JobRow]:
        found = [job for job in self._jobs() if job.follows_id == job_id]
        return sorted(found, key=lambda job: (job.created_at, job.id))[:limit]

    def history(self, job_id: str) -> list[Entry]:
        return self.rows[job_id].history if job_id in self.rows else []

    def tombstone(self, job_id: str) -> Tombstone | None:
        tombstone, until = self.tombstones.get(job_id, (None, 0.0))
        return tombstone if until > self.read_clock() and job_id not in self.rows else None

    # --- duplicates -------------------------------------------------------------------------------------------------

    def record(self, duplicate: Duplicate, *, also: Sequence[str] = ()) -> None:
        row = self.rows.get(duplicate.job_id)
        for nonce in (duplicate.submission_nonce, *also) if row else ():
            assert row is not None
            new = replace(duplicate, submission_nonce=nonce, at=self.read_clock())
            if not nonce:
                row.redelivery = new
            elif any(each.submission_nonce == nonce for each in row.duplicates):
                continue
            else:
                row.set(duplicate_count=row.job.duplicate_count + 1)
                row.duplicates = [*row.duplicates, new][-DUPLICATE_LIMIT:]
            row.counts[new.submitter, new.outcome if nonce else REDELIVERED] += 1

    def duplicates(self, job_id: str) -> list[Duplicate]:
        row = self.rows.get(job_id)
        return [*row.duplicates, *([row.redelivery] if row.redelivery else [])] if row else []

    def duplicate_counts(
        self, by: GroupBy, *, limit: int, submitter: str | None = None, tasks: frozenset[str] | None = None
    ) -> list[DuplicateCount]:
        counted: Counter[tuple[str, str, str]] = Counter()
        totals: Counter[str] = Counter()
        for job, source, outcome, count in self._counted():
            name = {GroupBy.TASK: job[0], GroupBy.IDENTITY: job[1], GroupBy.SUBMITTER: source}[by]
            whose = job[2] if by is GroupBy.IDENTITY else source
            if name is not None and submitter in {None, whose} and (tasks is None or job[0] in tasks):
                counted[name, job[0], outcome] += count
                totals[name] += 0 if outcome == REDELIVERED else count
        largest = set(sorted(totals, key=lambda name: (-totals[name], name))[:limit])
        found = [(group, count) for group, count in counted.items() if group[0] in largest]
        found.sort(key=lambda each: (-totals[each[0][0]], each[0]))
        return [DuplicateCount.from_row(*group, count) for group, count in found]

    def _counted(self) -> Iterable[tuple[tuple[str, str | None, str | None], str, str, int]]:
        """Yield (task, identity, owner), submitter, outcome and count, also of deleted jobs."""
        for row in self.rows.values():
            job = (row.job.task, row.job.identity, row.job.submitter)
            yield from ((job, source, outcome, count) for (source, outcome), count in row.counts.items())
        for (task, source, outcome), count in self.sums.items():
            yield (task, None, None), source, outcome, count

    # --- events, audit log, metrics and workers ---------------------------------------------------------------------

    def keep_event(self, event_id: str, body: str | None, *, keep_for: float) -> str | None:
        now = self.read_clock()
        kept, until = self.events.get(event_id, (None, 0.0))
        found = kept if until > now else body
        if found is not None:
            self.events[event_id] = (found, max(until, now + keep_for))
        return found

    def put_result(self, name: str, body: str, *, keep_for: float) -> None:
        self.kept_results[name] = (body, self.read_clock() + keep_for)

    def results(self, names: Sequence[str]) -> dict[str, str]:
        found = {name: self.kept_results[name] for name in names if name in self.kept_results}
        return {name: body for name, (body, until) in found.items() if until > self.read_clock()}

    def delete_result(self, name: str) -> None:
        self.kept_results.pop(name, None)

    def append_audit(self, entry: AuditEntry, *, keep: int, keep_for: float) -> None:
        assert keep_for > 0
        self.audit_log.append(
            replace(entry, id=max((each.id for each in self.audit_log), default=0) + 1, at=self.read_clock())
        )
        for old in [each for each in self.audit_log if each.kind == entry.kind][:-keep]:
            self.audit_log.remove(old)

    def audit(self, *, limit: int, before: int | None, keep_for: float) -> list[AuditEntry]:
        kept = [each for each in self.audit_log if each.at >= self.read_clock() - keep_for]
        return [each for each in reversed(kept) if before is None or each.id < before][:limit]

    def schedules(self) -> list[ScheduleState]:
        return sorted(self.schedule_states.values(), key=lambda state: state.name)

    def put_schedule(self, state: ScheduleState, *, expected: str) -> bool:
        stored = self.schedule_states.get(state.name)
        may = ("" if stored is None else stored.nonce) in {expected, state.nonce}
        if may:
            self.schedule_states[state.name] = state
        return may

    def delete_schedule(self, name: str, *, expected: str) -> None:
        if name in self.schedule_states and self.schedule_states[name].nonce == expected:
            del self.schedule_states[name]

    def blocks(self) -> list[Block]:
        return [block for _, block in sorted(self.kept_blocks.items())]

    def put_block(self, block: Block) -> None:
        self.kept_blocks.setdefault(block.id, block)

    def delete_block(self, block_id: str) -> None:
        self.kept_blocks.pop(block_id, None)

    def unpark(self, block_id: str, *, limit: int, reason: str) -> list[str]:
        now = self.read_clock()
        first = self.parked(block_id)[:limit]
        for job in first:
            wake_at = _earliest(now, job.expires_at)
            self.rows[job.id].set(parked_on=None, published_at=None, reason=reason, wake_at=wake_at)
        return [job.id for job in first]

    def increment(self, amounts: Mapping[str, float], *, recent: Mapping[str, float] = NO_AMOUNTS) -> None:
        self.amounts.update(amounts)
        for period in Period if recent else ():
            start = self.read_clock() // period.seconds * period.seconds
            self.buckets.setdefault((period, start), Counter()).update(recent)

    def totals(self) -> dict[str, float]:
        return dict(self.amounts)

    def series(self, period: Period, *, since: float) -> list[Bucket]:
        now = self.read_clock()
        starts = sorted(start for each, start in self.buckets if each is period)
        shown = [start for start in starts if start >= since and now - period.kept_for < start <= now]
        return [Bucket(start, dict(self.buckets[period, start])) for start in shown]

    def heartbeat(self, node: str, *, lasts: float, registration: Registration = UNREGISTERED) -> None:
        now = self.read_clock()
        self.heartbeats.pop(node, None)
        if lasts > 0:
            self.heartbeats[node] = (WorkerInfo.from_row(node, now, registration.to_json()), now + lasts)

    def workers(self) -> list[WorkerInfo]:
        found = [worker for worker, until in self.heartbeats.values() if until > self.read_clock()]
        return sorted(found, key=lambda worker: worker.name)

    def take_dead_workers(self) -> list[WorkerInfo]:
        dead = [worker for worker, until in self.heartbeats.values() if until <= self.read_clock()]
        for worker in dead:
            del self.heartbeats[worker.name]
        return dead


_EMPTY: dict[str, Any] = {name: "" if name in {"payload", "options"} else None for name in LARGE_FIELDS}


def _earliest(at: float | None, expires_at: float | None) -> float:
    return min(inf if at is None else at, inf if expires_at is None else expires_at)


def _waits(job: JobRow) -> bool:
    """Return whether a job waits for a run, or its canvas for a notification."""
    return job.lease_until is None and (job.finished_at is None or job.canvas_pending)


def _may_run(job: JobRow) -> bool:
    """Return whether a job waits for a run, and not for the one before it."""
    return job.lease_until is None and job.finished_at is None and not job.queued_next


def _handled_by(job: JobRow) -> str:
    return job.publisher_task or job.task


def _is_after(job: JobRow, query: Query) -> bool:
    """Return whether a job is behind the position of a query."""
    if query.before is None or job.created_at < query.before:
        return True
    return job.created_at == query.before and query.before_id is not None and job.id < query.before_id


def _matches(job: JobRow, query: Query) -> bool:
    arguments = job.payload[max(job.payload.find('"args": '), 0) :]
    return (
        (not query.states or job.state in query.states)
        and query.task in {None, job.task}
        and (query.tasks is None or job.task in query.tasks)
        and query.identity in {None, job.identity}
        and query.submitter in {None, job.submitter}
        and query.queue in {None, job.queue}
        and query.node in {None, job.node}
        and (query.reason is None or query.reason.encode().lower() in job.reason.encode().lower())
        and (query.arguments is None or query.arguments in arguments)
        and query.parked_on in {None, job.parked_on}
        and (query.tag is None or query.tag in job.tags)
        and (not query.unsettled or job.finished_at is None or job.canvas_pending)
    )
