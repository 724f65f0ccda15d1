"""The store's operations without I/O: generators that yield requests, are sent the replies, and return the result.

`Client.run` executes them; an asynchronous client would be as short. Each has the name and the contract of a method of
`onejob.stores.protocol`, and takes the ledger's keys first. Submissions, duplicates and queries have their own modules.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from onejob.jobs.history import COMPLETED, full_history
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Applied, Cancel, Job, Outcome, Renewal
from onejob.jobs.records import REDELIVERED, Entry, Tombstone
from onejob.stores.protocol import HISTORY_LIMIT
from onejob.stores.redis.row import CONSTANTS, POSITIONS, format_value, job_of, pack_given

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from onejob.errors import QuotaExceededError
    from onejob.jobs.model import Change, Submission
    from onejob.stores.redis.keys import Keys

COUNTED = " ".join((*Outcome, REDELIVERED))
"""All that duplicates are counted by."""
PAGE_SIZE = 100
"""How many jobs one request reads at most."""


@dataclass(frozen=True, slots=True)
class Call:
    """Calls one script. Every key that it uses is in `keys`. Before `arguments` a test's clock is sent, or ""."""

    script: str
    keys: Sequence[str]
    arguments: Sequence[str | bytes] = ()


@dataclass(frozen=True, slots=True)
class Read:
    """Plain read commands, not atomic together; the reply is the list of their replies."""

    commands: Sequence[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Batch:
    """Several requests in one round trip, in this order; the reply is the list of their replies.

    A function returns its call when that is sent: the server works on the calls before it meanwhile.
    """

    requests: Sequence[Request | Callable[[], Call]]
    partial: bool = False
    """Whether the reply to a call that the server refuses is the `StoreError`; otherwise that is raised."""


T = TypeVar("T")
Request: TypeAlias = Call | Read | Batch
Operation: TypeAlias = Generator[Request, Any, T]


def claim(
    keys: Keys, job_id: str, *, nonce: str, node: str, sources: frozenset[State], target: State
) -> Operation[Applied]:
    indexed, sets = _state_sets(keys, (*sources, target))
    script_keys = (*keys.wake_sets, keys.job(job_id), keys.history(job_id), *sets)
    reply = yield Call("claim", script_keys, (job_id, nonce, node, _words(sources), target, indexed))
    return _parse_applied(job_id, *reply)


def follow(keys: Keys, submission: Submission, *, follows_id: str) -> Operation[Job | None]:
    script_keys = (
        *keys.wake_sets, keys.job(submission.id), keys.history(submission.id), keys.jobs, keys.follows_ids,
        keys.job(follows_id), keys.followers(follows_id), *quota_keys(keys, submission),
    )  # fmt: skip
    own = (submission.id, pack_given(submission), submission.payload, submission.options, limits_of(submission))
    parts = yield Call("follow", script_keys, (follows_id, *own))
    if parts and parts[0] == "exceeded":
        raise exceeded_quota(submission, parts[1:])
    return job_of(submission.id, parts) if parts else None


def quota_keys(keys: Keys, submission: Submission) -> list[str]:
    """Return the keys of the quotas that a submission is charged with."""
    return [keys.quota(charge.name) for charge in submission.charges]


def limits_of(submission: Submission) -> str:
    """Return the limits of these quotas as an argument of the scripts."""
    return _words(f"{charge.quota.limit} {charge.quota.period}" for charge in submission.charges)


def exceeded_quota(submission: Submission, found: Sequence[str]) -> QuotaExceededError:
    """Return the error of a submission to which a script has answered that a quota is used up."""
    number, until, seconds = found
    return submission.charges[int(number)].exceeded(float(until), float(seconds))


def renew(keys: Keys, claims: Sequence[tuple[str, str]], *, sources: frozenset[State]) -> Operation[list[Renewal]]:
    script_keys = (keys.leases, *(keys.job(job_id) for job_id, _ in claims))
    cancels = yield Call("renew", script_keys, (_words(sources), *(text for claim in claims for text in claim)))
    renewed = zip(claims, cancels, strict=True)
    return [Renewal(*claim, held=cancel != "", cancel=Cancel(int(cancel or 0))) for claim, cancel in renewed]


_NEW_VALUES = (
    "payload", "options", "route", "retries", "crashes", "published", "publish_error", "cancel", "canvas_pending",
    "result", "error", "reason",
)  # fmt: skip
"""The fields of a change that are fields of the job."""


def apply(keys: Keys, change: Change) -> Operation[Applied]:
    indexed, sets = _state_sets(keys, (*change.sources, change.target) if change.target else ())
    script_keys = (
        *keys.wake_sets, keys.job(change.job_id), keys.identity(change.identity), keys.next(change.identity),
        keys.history(change.job_id), keys.followers(change.job_id), keys.follows_ids, keys.steps(change.job_id),
        *((change.message.destination,) if change.message else ()), *sets,
    )  # fmt: skip
    call = Call("apply", script_keys, _change_arguments(change, indexed))
    status, *found = yield call
    if status == "refused" and len(found) > 1:
        held_by = found.pop()
        if (yield _release_expired(keys, held_by, change)) == "released":
            status, *found = yield call
    if status == "applied" and found[2:] and found[2] is not None:
        yield _promote(keys, found[2], change)
    return _parse_applied(change.job_id, status, *found[:2])


def _state_sets(keys: Keys, states: Sequence[State]) -> tuple[str, Sequence[str]]:
    """Return which of these states have a sorted set, as words, and the sets, the one of the first state last."""
    names = [state for state in keys.state_sets if state in states]
    return _words(names), [keys.state_sets[name] for name in reversed(names)]


def _change_arguments(change: Change, indexed: str) -> tuple[str, ...]:
    is_told = change.event is Transition.COMPLETE and change.detail == COMPLETED
    conditions = (change.lapsed, change.overdue, change.unnotified, change.ends, change.keeps_identity)
    values = [(POSITIONS[name], value) for name in _NEW_VALUES if (value := getattr(change, name)) is not None]
    if change.publishes is not None:
        values.append((POSITIONS["published_at"], "now" if change.publishes else "0"))
    return (
        change.job_id, change.identity, change.request_id, "" if is_told else change.event, _words(change.sources),
        change.target or "", _given(change.token), *map(format_value, conditions), _given(change.identity_for),
        _given(change.identity_until), format_value(change.reopens), format_value(change.forgets_steps),
        _given(change.wake_after), _given(change.run_in), change.detail, change.message.text if change.message else "",
        indexed,
        *(text for position, value in values for text in (str(position), format_value(value))),
    )  # fmt: skip


def _given(value: float | None) -> str:
    """Return a number as an argument; "" if it was not given."""
    return "" if value is None else str(value)


def _words(values: Iterable[str]) -> str:
    return " ".join(values)


def _release_expired(keys: Keys, job_id: str, change: Change) -> Call:
    script_keys = (keys.job(job_id), keys.identity(change.identity), keys.history(job_id))
    return Call("release_expired", script_keys, (job_id,))


def _promote(keys: Keys, job_id: str, change: Change) -> Call:
    script_keys = (
        *keys.wake_sets, keys.job(job_id), keys.identity(change.identity), keys.history(job_id), keys.follows_ids,
    )  # fmt: skip
    return Call("promote", script_keys, (job_id, change.job_id))


def report(
    keys: Keys, job_id: str, token: int, progress: str, *, sources: frozenset[State]
) -> Operation[Cancel | None]:
    cancel = yield Call("report", (keys.job(job_id),), (str(token), _words(sources), progress))
    return None if cancel is None else Cancel(int(cancel))


def keep_step(
    keys: Keys, job_id: str, token: int, name: str, value: str, *, sources: frozenset[State]
) -> Operation[str | None]:
    script_keys = (keys.job(job_id), keys.steps(job_id))
    kept = yield Call("keep_step", script_keys, (str(token), _words(sources), name, value))
    return None if kept is None else str(kept)


def steps(keys: Keys, job_id: str) -> Operation[dict[str, str]]:
    (flat,) = yield Read([("HGETALL", keys.steps(job_id))])
    return pairs_of(flat)


def take_due(
    keys: Keys, *, tasks: frozenset[str], limit: int, hold: float, expired_runs: bool = True
) -> Operation[list[Job]]:
    """Take the jobs whose `wake_at` is due, and delete what belongs to lost rows."""
    sets = (keys.leases, keys.ended, *map(keys.wake, sorted(tasks)))
    wake_at, ids, found_in = yield Call("take_due", sets, (str(limit), str(hold), format_value(expired_runs)))
    taken = [(job_id, sets[number - 1]) for job_id, number in zip(ids, found_in, strict=True)]
    pages = [taken[start : start + PAGE_SIZE] for start in range(0, len(taken), PAGE_SIZE)]
    replies = (yield Batch([_read_due(keys, page, wake_at) for page in pages])) if pages else []
    found = dict(zip(ids, (parts for reply in replies for parts in reply), strict=True))
    yield from delete(keys, [job_id for job_id, parts in found.items() if parts == ["lost"]], sources=frozenset())
    return [job_of(job_id, parts) for job_id, parts in found.items() if len(parts) > 1]


def _read_due(keys: Keys, taken: Sequence[tuple[str, str]], wake_at: str) -> Call:
    script_keys = (*keys.wake_sets, *(key for job_id, set_key in taken for key in (set_key, keys.job(job_id))))
    return Call("read_due", script_keys, (wake_at, *(job_id for job_id, _ in taken)))


def postpone(keys: Keys, wake_after: Mapping[str, float], *, lost: bool = False) -> Operation[None]:
    ids = [*wake_after]
    pages = [ids[start : start + PAGE_SIZE] for start in range(0, len(ids), PAGE_SIZE)]
    calls = []
    for page in pages:
        values = (text for job_id in page for text in (job_id, str(wake_after[job_id])))
        calls.append(Call("postpone", (*keys.wake_sets, *map(keys.job, page)), (format_value(lost), *values)))
    if calls:
        yield Batch(calls)


def read_clock(keys: Keys) -> Operation[float]:
    return float((yield Call("read_clock", (keys.jobs,))))


def find_existing(keys: Keys, identity: str, key: str | None) -> Operation[Job | None]:
    script_keys = (keys.identity(identity), *(() if key is None else (keys.key(key),)))
    found = yield Call("find_existing", script_keys)
    if found is None:
        return None
    job_id, now = found
    job = yield from get_job(keys, job_id)
    if job is None and key is not None:  # the key is that of a deleted job
        return (yield from find_existing(keys, identity, None))
    is_over = now and job is not None and job.identity_until is not None and job.identity_until <= float(now)
    return None if is_over else job


def read_jobs(keys: Keys, ids: Sequence[str], *, light: bool = False) -> Operation[list[Job]]:
    """Return the jobs of these ids that exist; `light`: without their large fields."""
    pages = [ids[start : start + PAGE_SIZE] for start in range(0, len(ids), PAGE_SIZE)]
    replies = (yield Batch([_read_page(keys, page, light=light) for page in pages])) if pages else []
    found = zip(ids, (parts for reply in replies for parts in reply), strict=True)
    return [job_of(job_id, parts) for job_id, parts in found if parts]


def _read_page(keys: Keys, ids: Sequence[str], *, light: bool = False) -> Call:
    last = -POSITIONS["error"] if light else CONSTANTS["PARTS_READ"]
    return Call("get_many", (*keys.wake_sets, *map(keys.job, ids)), (str(last), *ids))


def get_job(keys: Keys, job_id: str) -> Operation[Job | None]:
    """Return a job, or None when it does not exist."""
    found = yield from read_jobs(keys, [job_id])
    return found[0] if found else None


def get_many(keys: Keys, job_ids: Sequence[str], *, light: bool = False) -> Operation[dict[str, Job]]:
    found = yield from read_jobs(keys, job_ids, light=light)
    return {job.id: job for job in found}


def history(keys: Keys, job_id: str) -> Operation[list[Entry]]:
    (parts,), (elements,) = yield Batch(
        [_read_page(keys, [job_id], light=True), Read([("LRANGE", keys.history(job_id), "0", "-1")])]
    )
    stored = [_parse_entry(element) for element in elements]
    return full_history(job_of(job_id, parts) if parts else None, stored)[-HISTORY_LIMIT:]


def delete(
    keys: Keys,
    job_ids: Sequence[str],
    *,
    sources: frozenset[State],
    skip_referenced: bool = False,
    tombstone_for: float = 0.0,
) -> Operation[list[str]]:
    deleted: list[str] = []
    for start in range(0, len(job_ids), PAGE_SIZE):
        page = job_ids[start : start + PAGE_SIZE]
        job_keys = (keys.job, keys.steps, keys.history, keys.followers, keys.duplicates)
        shared = (keys.jobs, keys.follows_ids, keys.duplicate_counts, keys.tombstones, keys.tombstone_expiry)
        indexed, sets = _state_sets(keys, tuple(State))
        script_keys = (*keys.wake_sets, *shared, *(key(job_id) for job_id in page for key in job_keys), *sets)
        values = (_words(sources), format_value(skip_referenced), str(tombstone_for), COUNTED, indexed, *page)
        deleted += yield Call("delete", script_keys, values)
    return deleted


def tombstone(keys: Keys, job_id: str) -> Operation[Tombstone | None]:
    script_keys = (keys.job(job_id), keys.tombstones)
    found = yield Call("tombstone", script_keys, (job_id,))
    if found is None:
        return None
    state, finished_at, purged_at, _ = json.loads(found)
    return Tombstone.from_row({"id": job_id, "state": state, "finished_at": finished_at, "purged_at": purged_at})


def _parse_applied(job_id: str, status: str, parts: Sequence[Any] | None = None, sent: str = "") -> Applied:
    return Applied(applied=status == "applied", job=job_of(job_id, parts) if parts else None, sent=sent == "1")


def pairs_of(flat: Sequence[str]) -> dict[str, str]:
    """Return a hash as its reply has it: names and values in turn."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _parse_entry(element: str) -> Entry:
    at, event, state, attempt, node, detail = json.loads(element)
    return Entry(float(at), event, State(state), int(attempt), node, detail)
