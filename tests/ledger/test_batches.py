"""What comes several times: equal submissions of a batch, which ask the store once, and the end of a run."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from onejob.errors import PartlySubmittedError, QuotaExceededError, StaleTokenError, StoreUnavailableError
from onejob.jobs.lifecycle import Transition
from onejob.jobs.model import JobRow, Outcome, Submission
from onejob.jobs.submitter import Charge, Quota
from onejob.jobs.transitions import new_nonce
from onejob.ledger.ledger import NextRun
from onejob.stores.protocol import BATCH_LIMIT
from tests.conftest import every_store
from tests.ledger.harness import LedgerHarness
from tests.stores.support import CONFLICT_POLICIES, LEASE, apply, change, end, submission, untouched


def test_the_ledger_splits_larger_batches(harness: LedgerHarness) -> None:
    """The ledger splits a batch larger than the store's limit, and returns all results in order."""
    assert harness.ledger.submit_many([]) == []
    count = BATCH_LIMIT * 2 + 5
    news = [submission(f"job-{n}", identity=str(n % (BATCH_LIMIT + 1))) for n in range(count)]
    answers = harness.ledger.submit_many(news)
    assert [answer.job.id for answer in answers] == [f"job-{n % (BATCH_LIMIT + 1)}" for n in range(count)]
    assert sum(answer.outcome is Outcome.ADMITTED for answer in answers) == BATCH_LIMIT + 1


def mostly_equal(prefix: str, policy: str) -> list[Submission]:
    """Return submissions of three identities, most of them equal, and for one identity some with other arguments."""
    submissions = []
    for each in range(70):
        other = {"fingerprint": "other", "delay": 3.0} if each % 15 == 5 else {}
        values = {"identity": f"{prefix}{each % 3}", "submitter": prefix} | CONFLICT_POLICIES[policy] | other
        submissions.append(submission(f"{prefix}equal-{each}", nonce=f"{prefix}{each}", **values))
    return submissions


@every_store
@pytest.mark.parametrize("policy", ["attach", "raise", "replace"])
def test_equal_submissions_at_once_equal_one_by_one(harness: LedgerHarness, policy: str) -> None:
    """Equal submissions at once, of which one asks the store, leave what they leave one by one."""
    for begun in (False, True):
        left = {}
        for prefix in (f"one-{begun}-", f"all-{begun}-"):
            harness.submit(f"{prefix}first", identity=f"{prefix}1", nonce=prefix)
            if begun:
                harness.start(f"{prefix}first")
            news = mostly_equal(prefix, policy)
            is_batch = prefix.startswith("all")
            answers = harness.ledger.submit_many(news) if is_batch else [harness.ledger.submit(new) for new in news]
            jobs = [harness.read(job_id) for job_id in sorted({answer.job.id for answer in answers})]
            stored = [(job.payload, job.fingerprint, job.run_at, job.duplicate_count) for job in jobs]
            kept = [len(harness.store.duplicates(job.id)) for job in jobs]
            outcomes = [(answer.outcome, answer.job.id.removeprefix(prefix)) for answer in answers]
            left[is_batch] = outcomes, stored, kept
        assert left[True] == left[False]


def test_equal_submissions_are_answered_when_duplicates_cannot_be_recorded(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the store cannot record the duplicates of a batch, all its submissions are still answered."""

    def fail_to_record(*_: object, **__: object) -> None:
        raise StoreUnavailableError

    monkeypatch.setattr(harness.store, "record", fail_to_record)
    answers = harness.ledger.submit_many([submission(f"job-{number}", identity=str(number % 2)) for number in range(4)])
    assert [answer.job.id for answer in answers] == ["job-0", "job-1"] * 2
    assert [answer.outcome for answer in answers] == ["admitted", "admitted", "attached", "attached"]


def test_what_is_charged_equally_is_asked_once(harness: LedgerHarness) -> None:
    """Equal submissions of a batch share an answer only if they have the same quotas."""
    quotas = {name: (Charge("quota", Quota(limit, 60), name),) for name, limit in (("a", 1), ("b", 3))}
    identities = {"a-1": "own", "a-2": "same", "b-1": "same", "b-2": "same"}
    batch = [submission(job_id, identity=name, charges=quotas[job_id[0]]) for job_id, name in identities.items()]
    with pytest.raises(PartlySubmittedError) as caught:
        harness.ledger.submit_many(batch)
    first, refused, *others = caught.value.results
    assert isinstance(refused, QuotaExceededError)
    assert [each.outcome for each in (first, *others)] == ["admitted", "admitted", "attached"]  # type: ignore[attr-defined]


@every_store
def test_a_submission_after_an_expired_job_is_charged(harness: LedgerHarness) -> None:
    """If a quota is used up by the submission that comes after an expired job, the others of its batch are refused."""
    charges = (Charge("quota", Quota(2, 60), "one"),)
    harness.submit("expired", identity="same", expires_in=10.0, charges=charges)
    harness.clock.advance(20.0)
    with pytest.raises(PartlySubmittedError) as caught:
        harness.ledger.submit_many([submission(name, identity=name, charges=charges) for name in ("same", "other")])
    outcomes = [getattr(result, "outcome", type(result)) for result in caught.value.results]
    assert sorted(outcomes, key=str) == [QuotaExceededError, Outcome.ADMITTED]


@every_store
def test_a_repeated_end_of_a_run_is_recognised(harness: LedgerHarness) -> None:
    """Each end of a run that is repeated with its request id has the same answer; with another one it is refused."""
    ledger = harness.ledger
    again: dict[str, Any] = {"payload": "[7]", "options": "[8]", "retries": 3}
    ends: dict[str, Callable[..., JobRow]] = {
        "complete": partial(ledger.complete, result="1"),
        "fail": partial(ledger.fail, error='"bad"', reason="it broke"),
        "abandon": partial(ledger.abandon, reason="stopped"),
        "retry": partial(ledger.retry, next_run=NextRun(**again), error=None, reason="again"),
        "replace": partial(ledger.replace, next_run=NextRun(**again), canvas=False, reason="replaced"),
    }
    for name, end_of in ends.items():
        job = harness.run(name)
        request_id = new_nonce()
        ended = end_of(job, request_id=request_id)
        with untouched(harness.store, name):
            assert end_of(job, request_id=request_id) == ended
            for other in (new_nonce(), None):
                with pytest.raises(StaleTokenError):
                    end_of(job, request_id=other)


@every_store
def test_a_repeated_redrive_releases_no_other_job(harness: LedgerHarness) -> None:
    """A redrive that is repeated after a lost reply changes nothing, whatever has become of the identity since."""
    store, clock = harness.store, harness.clock
    failed = end(store, harness.run("first", identity="same"), Transition.FAIL)
    redrive = change(failed, Transition.REDRIVE, reopens=True, wake_after=LEASE)
    store.apply(redrive)
    end(store, harness.start("first"), Transition.FAIL)
    later = harness.run("later", identity="same")
    apply(
        store, later, Transition.COMPLETE, keeps_identity=True, identity_for=10.0, wake_after=100.0, token=later.token
    )
    clock.advance(20.0)
    before = [harness.read("first"), harness.read("later")]
    assert before[1].holds_identity
    assert store.apply(redrive).applied
    assert [harness.read("first"), harness.read("later")] == before
