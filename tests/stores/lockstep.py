"""Runs each operation on the model and on every store, and asserts that all of them answer the same."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

from onejob.errors import OneJobError
from onejob.jobs.audit_entries import AuditEntry
from onejob.jobs.costs import COST_DAYS, Label, day_of
from onejob.jobs.lifecycle import State
from onejob.jobs.limits import LimitUse, read_uses
from onejob.jobs.model import Applied, Change, Duplicate, JobRow, values_of
from onejob.jobs.query import Query
from onejob.jobs.workers import WorkerInfo
from onejob.stores.protocol import DUPLICATE_LIMIT, GroupBy, Store
from tests.stores.model import ModelStore
from tests.stores.support import START, ManualClock

ALL = Query(limit=10_000)
TICK = 1 / 64
"""How many seconds pass before each write: a power of two, so that no sum of times is rounded."""


class LockStep:
    """The model and the stores on one clock. Each call empties nothing, and compares everything that it changed."""

    def __init__(
        self, clock: ManualClock, stores: Mapping[str, Store], pushed: Callable[[], list[str]] | None = None
    ) -> None:
        """Begin with empty stores. `pushed` returns the messages that a store has pushed to its broker."""
        clock.now = START
        self.clock = clock
        self.tick = TICK
        self.model = ModelStore(clock, pushes=pushed is not None)
        self.calls: list[str] = []
        """The calls so far, for the message of a failure."""
        self.batched: set[str] = set()
        """The nonces of submissions in batches. Equal ones are written in any order."""
        self._stores = stores
        self._pushed = pushed
        self._tokens: dict[str, int] = {}
        """Of each id the largest token so far."""
        self._claims: set[str] = set()
        """The nonces of all claims that were granted."""

    def __call__(self, operation: str, *args: Any, **values: Any) -> Any:
        """Run a write, and compare the answers and all jobs, with every column. Return the answer of the model."""
        self.clock.advance(self.tick)
        if operation == "submit_many" and len(args[0]) > 1:
            self.batched |= {each.nonce for each in args[0]}
        self.calls.append(f"at {self.clock.now - START:g}: {operation}{args} {values}")
        answer = self.read(operation, *args, **values)
        self.read("find", ALL)
        self._assert_invariants()
        assert self._pushed is None or sorted(self._pushed()) == sorted(self.model.pushed)
        if operation == "claim" and answer.applied and answer.job.claim not in self._claims:
            self._claims.add(answer.job.claim)
            assert answer.job.token > self._tokens.get(answer.job.id, 0), "tokens increase"
            self._tokens[answer.job.id] = answer.job.token
        return answer

    def _assert_invariants(self) -> None:
        jobs = [row.job for row in self.model.rows.values()]
        for column in ("holds_identity", "queued_next"):
            identities = [job.identity for job in jobs if getattr(job, column)]
            assert len(identities) == len(set(identities)), f"{column} of two jobs with one identity"
        assert [job for job in jobs if job.wake_at is None and not job.state.final] == []

    def read(self, operation: str, *args: Any, **values: Any) -> Any:
        """Run an operation, and compare the answers. Return that of the model."""
        answer = _comparable(_run(self.model, operation, args, values), operation)
        for kind, store in self._stores.items():
            given = _run(store, operation, args, values)
            found = _comparable(given, operation)
            assert found == answer, f"{kind} {operation}{args}{values}:\n{differences(answer, found)}"
            if operation == "apply" and isinstance(given, Applied):
                self._assert_nobody_waits(kind, args[0], given)
        return answer

    def _assert_nobody_waits(self, kind: str, change: Change, answer: Applied) -> None:
        """Assert that no job waits for the room that a change has given back, if a store says so."""
        if answer.job is not None and answer.applied and not answer.frees and (change.target or change.parked_on):
            for use in read_uses(answer.job.limit_keys):
                assert self.model.limit_use(use.key).waiting == 0, f"{kind}: jobs wait for {use.key}"

    def audit(self, *, limit: int, keep_for: float, newest: int) -> None:
        """Compare the audit log behind the `newest` entries, whose ids are each store's own."""
        everything = self.model.audit(limit=100, before=None, keep_for=keep_for)
        expected = _comparable(everything[newest if newest <= len(everything) else 0 :][:limit])
        for kind, store in self._stores.items():
            ids = [each.id for each in store.audit(limit=100, before=None, keep_for=keep_for)]
            before = ids[newest - 1] if 0 < newest <= len(ids) else None
            found = _comparable(store.audit(limit=limit, before=before, keep_for=keep_for))
            assert found == expected, f"{kind} audit:\n{differences(expected, found)}"

    def duplicates(self, job_id: str) -> None:
        """Compare the duplicates of a job."""
        expected = _in_any_order(self.model.duplicates(job_id), self.batched)
        for kind, store in self._stores.items():
            found = _in_any_order(store.duplicates(job_id), self.batched)
            assert found == expected, f"{kind} has other duplicates of {job_id}:\n{differences(expected, found)}"

    def cost_sums(self) -> None:
        """Compare the sums of costs of all days."""
        last = day_of(self.clock.now)
        for label in Label:
            expected = {*self.model.cost_sums(first=0, last=last, label=label)}
            for kind, store in self._stores.items():
                found = {*store.cost_sums(first=last - COST_DAYS, last=last, label=label)}
                assert found == expected, f"{kind} has other sums:\n{differences(expected, found)}"

    def compare_everything(self) -> None:
        """Compare all that the stores keep besides the jobs."""
        jobs = self.read("find", ALL)
        for job in jobs:
            for operation in ("history", "steps", "run_logs"):
                self.read(operation, job.id)
            self.read("followers", job.id, limit=100)
            self.duplicates(job.id)
        for identity in {job.identity for job in jobs}:
            self.read("find_existing", identity, None)
        for state in State:
            self.read("find", Query(states=frozenset({state}), light=True))
        for by in GroupBy:
            self.read("duplicate_counts", by, limit=100)
        for query in (ALL, Query(unsettled=True)):
            self.read("counts", query)
        self.read("count_states", limit=1000)
        self.cost_sums()


def _in_any_order(found: list[Duplicate], batched: set[str]) -> list[list[Duplicate]]:
    """Return duplicates with those of one batch in any order; the oldest may have been forgotten in any order, too."""
    groups = itertools.groupby(found, key=lambda each: (each.at, each.submission_nonce in batched))
    each_sorted = [sorted(group, key=attrgetter("submission_nonce")) if key[1] else [*group] for key, group in groups]
    is_full = len(found) >= DUPLICATE_LIMIT and found[0].submission_nonce in batched
    return each_sorted[1:] if is_full else each_sorted


def _run(store: Store | ModelStore, operation: str, args: tuple[Any, ...], values: dict[str, Any]) -> object:
    """Return the answer of a store, or the error that it raises."""
    try:
        return getattr(store, operation)(*args, **values)
    except OneJobError as error:
        results = [each for each in getattr(error, "results", ()) if not isinstance(each, Exception)]
        return type(error).__name__, str(error), _comparable([*results, *results], operation)


def _comparable(answer: object, operation: str = "") -> object:  # noqa: PLR0911 - one for each kind of answer
    """Return an answer without what is each store's own: the ids of audit entries, and orders that no law sets."""
    if operation == "take_due" and isinstance(answer, list):
        return sorted(answer, key=lambda job: job.id)
    if operation == "deliver" and isinstance(answer, list):
        return [(job.priority_rank, job.run_at) for job in answer], sorted(answer, key=lambda job: job.id)
    if operation == "submit_many" and isinstance(answer, list) and len(answer) > 1:
        return [values_of(each) | {"job": each.job.id} for each in answer]  # equal ones are written in any order
    if operation in {"delete", "unpark"} and isinstance(answer, list):
        return sorted(answer)
    if isinstance(answer, list) and answer and isinstance(answer[0], AuditEntry):
        return [{**values_of(each), "id": None} for each in answer]
    if isinstance(answer, list) and answer and isinstance(answer[0], WorkerInfo):
        return sorted(answer, key=lambda worker: worker.name)
    return _comparable_limits(answer, operation)


def _comparable_limits(answer: object, operation: str) -> object:
    """Return an answer without the order of keys and holders, and without hints."""
    if isinstance(answer, Applied):
        return replace(answer, frees=True)  # a store need not know that nobody waits
    if isinstance(answer, LimitUse):
        return LimitUse(key=answer.key, holders=tuple(sorted(answer.holders)), waiting=answer.waiting)
    if operation == "limit_uses" and isinstance(answer, list):
        return sorted(map(_comparable, answer), key=attrgetter("key"))
    if operation == "due_limits" and isinstance(answer, tuple):
        return sorted(answer[0]), answer[1]
    return answer


def differences(expected: object, found: object) -> str:
    """Return the fields in which two answers differ, or both as they are."""
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        return "\n".join(differences(*pair) for pair in zip(expected, found, strict=True) if pair[0] != pair[1])
    if type(expected) is type(found) and hasattr(expected, "__dataclass_fields__"):
        values, others = values_of(expected), values_of(found)
        name = expected.id if isinstance(expected, JobRow) else type(expected).__name__
        return "\n".join(
            f"{name}.{each}: {differences(values[each], others[each])}"
            for each in values
            if values[each] != others[each]
        )
    return f"expected {expected!r}, found {found!r}"
