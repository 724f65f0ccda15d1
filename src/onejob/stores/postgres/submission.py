"""Submits jobs, each by the cheapest statement: most submissions write a new job, or only count a duplicate."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import Any, Literal, TypeAlias

from onejob.errors import QuotaExceededError, StoreError, all_written
from onejob.jobs.handover import Handover, Way
from onejob.jobs.model import Admission, HandoverOf, Outcome, Submission, values_of
from onejob.jobs.transitions import new_job
from onejob.stores.holder_cache import HolderCache
from onejob.stores.postgres.statements import GIVEN, Rows, Statements
from onejob.stores.sql import job_in, to_json

Call: TypeAlias = "tuple[str, dict[str, Any]]"
"""The name of a statement, and its values."""
Result: TypeAlias = "Admission | QuotaExceededError"
LOCK_TIMEOUT = 250
"""Milliseconds to wait for a row that another transaction has locked, with `wait_for_locks=False`."""
_given = attrgetter(*GIVEN)
SUBMIT_TRIES = 20
"""How often a submission is retried because the existing job changed while it waited for the row."""


class Submitting:
    """A call of `submit_many`: `admit` writes likely new jobs, `attach` counts plain duplicates, `submit` does others.

    In a user's transaction only `submit` is used, which also finds the rows that this transaction has written.
    `handover_of`: returns the hand-over of a submission's job, if it is due now.
    """

    def __init__(
        self, sql: Statements, holders: HolderCache, submissions: Sequence[Submission], handover_of: HandoverOf, *,
        wait_for_locks: bool,
    ) -> None:  # fmt: skip
        self._sql = sql
        self._holders = holders
        self._submissions = submissions
        self._handover_of = handover_of
        self._wait_for_locks = wait_for_locks
        self._results: dict[int, Result] = {}
        self._order = _lock_order(submissions)

    def run(self) -> list[Admission]:
        """Submit in the order of the submissions; return the admissions in the same order."""
        submissions = self._submissions
        if not self._sql.joins:
            held = {each.identity for each in submissions if self._holders.get(each.identity)}
            keyed = {each.identity for each in submissions if each.key is not None}
            special = {each.identity for each in submissions if _is_special(each, is_held=each.identity in held)}
            ambiguous = _ambiguous_identities(submissions)
            self.admit(held | keyed | ambiguous)
            self.attach(special | ambiguous)
        for _ in range(SUBMIT_TRIES):
            if not self.submit():
                break
        else:
            msg = f"the jobs that submissions are duplicates of changed {SUBMIT_TRIES} times during one call"
            raise StoreError(msg)
        results = [self._results[number] for number in range(len(submissions))]
        for submission, result in zip(submissions, results, strict=True):
            if isinstance(result, Admission) and result.outcome is Outcome.ADMITTED:
                self._holders.pop(submission.identity, None)
            elif isinstance(result, Admission):
                self._holders.put(submission.identity, result.job.id)
        return all_written(results)

    def admit(self, excluded: set[str]) -> None:
        """Write new jobs for identities, except `excluded`, that no job holds, if the quotas suffice for all jobs."""
        wanted = self._remaining(excluded)
        calls = self._admit_calls([*wanted.values()])
        if not calls:
            return
        written = {row["id"]: row["created_at"] for row in self._run(calls)[-1]}
        for number, each in wanted.items():
            if each.id in written:
                handover = self._handover_of(each)
                job = new_job(each, now=written.pop(each.id), **_handover_values(each, handover))
                self._results[number] = Admission(job, Outcome.ADMITTED, handed_over=handover.is_offered(each.route))

    def attach(self, excluded: set[str]) -> None:
        """Count the submissions that have no `excluded` identity as plain duplicates."""
        wanted = self._remaining(excluded)
        if not wanted:
            return
        answers = self._run([("attach", values_of(each)) for each in wanted.values()])
        for number, rows in zip(wanted, answers, strict=True):
            for row in rows:
                self._results[number] = Admission(job_in(row), Outcome(row["outcome"]))

    def submit(self) -> bool:
        """Submit the remaining submissions in one transaction; return whether some may have to be retried."""
        wanted = self._remaining()
        if not wanted:
            return False
        given = [*wanted.values()]
        keys = sorted({each.key for each in given if each.key is not None})
        calls: list[Call] = [("take_keys", {"keys": keys})] if keys else []
        calls += lock_quotas(given)
        for each in given:
            # In a user's transaction, a lock on a live job's row blocks its run until the commit: only if necessary.
            locks = not self._sql.joins or each.replaces or each.queue_next
            calls.append(charged_call("submit" if locks else "submit_in", self._values_of(each), [each]))
        answers = self._run(calls)[-len(given) :]
        for (number, each), rows in zip(wanted.items(), answers, strict=True):
            result = _parse_result(rows, each, self._handover_of(each))
            if result is not None:
                self._results[number] = result
        return len(self._results) < len(self._submissions)

    def _values_of(self, submission: Submission) -> dict[str, Any]:
        """Return the fields of a submission, and the values of columns that follow from its hand-over."""
        handover = self._handover_of(submission)
        is_offered = {"is_offered": handover.way is Way.OFFERED}
        return values_of(submission) | _handover_values(submission, handover) | is_offered

    def _admit_calls(self, submissions: Sequence[Submission]) -> list[Call]:
        """Return the calls that write new jobs; none for one job with quotas, which `submit` writes as quickly."""
        if len(submissions) > 1:
            given = [
                dict(zip(GIVEN, _given(each), strict=True)) | _handover_values(each, self._handover_of(each))
                for each in submissions
            ]
            return [*lock_quotas(submissions), charged_call("admit_many", {"submissions": to_json(given)}, submissions)]
        return [
            ("admit", values_of(each) | _handover_values(each, self._handover_of(each)))
            for each in submissions
            if not each.charges
        ]

    def _remaining(self, excluded: Collection[str] = ()) -> dict[int, Submission]:
        """Return the submissions without a result, by number, except those with `excluded` identities."""
        given = ((number, self._submissions[number]) for number in self._order if number not in self._results)
        return {number: each for number, each in given if each.identity not in excluded}

    def _run(self, calls: Sequence[Call]) -> list[Rows]:
        if self._wait_for_locks:
            return self._sql.run_each(calls)
        return self._sql.run_each([("set_lock_timeout", {"wait": str(LOCK_TIMEOUT)}), *calls])[1:]


def _is_special(submission: Submission, *, is_held: bool) -> bool:
    """Return whether a submission may change other jobs than its own, or is charged for a job that may be new."""
    return bool(
        submission.key is not None
        or submission.follows
        or submission.replaces
        or submission.queue_next
        or submission.max_wait
        or submission.delay
        or (submission.charges and not is_held)
    )


def _ambiguous_identities(submissions: Sequence[Submission], name: Literal["id", "key"] = "id") -> set[str]:
    """Return the identities of submissions that share an id, or a key, but have different identities."""
    if len(submissions) == 1:
        return set()
    pairs = {(getattr(submission, name), submission.identity) for submission in submissions}
    counts = Counter(found for found, _ in pairs if found is not None)
    return {identity for found, identity in pairs if counts[found] > 1}


def _lock_order(submissions: Sequence[Submission]) -> Sequence[int]:
    """Return the order in which to submit: by identity, so that concurrent batches do not deadlock.

    The given order is kept if a key or an id has several identities, of which the first wins, and for quotas.
    """
    if len(submissions) == 1:
        return (0,)
    is_ambiguous = _ambiguous_identities(submissions) or _ambiguous_identities(submissions, "key")
    if is_ambiguous or any(submission.charges for submission in submissions):
        return range(len(submissions))
    return sorted(range(len(submissions)), key=lambda number: submissions[number].identity)


def _handover_values(submission: Submission, handover: Handover) -> dict[str, Any]:
    wake_after, is_sent = handover.columns(submission.lease)
    return {"wake_after": wake_after, "is_sent": is_sent}


def lock_quotas(submissions: Sequence[Submission]) -> list[Call]:
    """Return the call that locks the quotas of submissions; none without quotas."""
    names = sorted({charge.name for each in submissions for charge in each.charges})
    return [("lock_quotas", {"names": names})] if names else []


def charged_call(name: str, values: dict[str, Any], submissions: Sequence[Submission]) -> Call:
    """Return the call of a statement, in the variant for quotas if the submissions are charged."""
    charges = [
        {"id": each.id, "number": number, "name": charge.name, "max_used": charge.quota.limit,
         "period": charge.quota.period}
        for each in submissions
        for number, charge in enumerate(each.charges)
    ]  # fmt: skip
    return (f"{name}_charged", values | {"charges": to_json(charges)}) if charges else (name, values)


def exceeded_quota(submission: Submission, quota: str) -> QuotaExceededError:
    """Return the error of a quota that a statement has found to be used up."""
    number, until, seconds = json.loads(quota)
    error: QuotaExceededError = submission.charges[number].exceeded(until, seconds)
    return error


def _parse_result(rows: Rows, submission: Submission, handover: Handover) -> Result | None:
    """Return the admission in the rows of a submission, or its error; None if it has to be retried."""
    found = {row["role"]: row for row in rows}
    if "exceeded" in found:
        return exceeded_quota(submission, found["exceeded"]["outcome"])
    jobs = {role: job_in(row) for role, row in found.items()}
    if "own" in jobs:
        keyed = (jobs["keyed"], found["keyed"]["key_reused"]) if "keyed" in jobs else None
        return Admission.repeated(jobs["own"], jobs.get("followed"), submission, keyed).handed_over_by(handover)
    if "answer" not in jobs:
        return None
    answer = found["answer"]
    flags = {name: answer[name] for name in ("rescheduled", "key_reused")}
    admission = Admission(jobs["answer"], Outcome(answer["outcome"]), jobs.get("follower"), **flags)
    return admission.handed_over_by(handover)
