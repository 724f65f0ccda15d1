"""Quotas: a new job is charged in the operation that writes it, and only a new job, also under concurrency."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from onejob.errors import PartlySubmittedError, QuotaExceededError
from onejob.jobs.model import Admission
from onejob.jobs.quota import Charge, Quota
from onejob.jobs.records import Query
from onejob.jobs.timestamps import format_timestamp
from tests.contract.processes import charge_in_rounds, killed_while_charged, race
from tests.contract.races import CROWD, together
from tests.contract.support import LEASE, START, get, submission, submit_one

if TYPE_CHECKING:
    from onejob.jobs.model import Submission
    from onejob.ledger.ledger import Ledger
    from onejob.stores.protocol import Store
    from tests.contract.support import ManualClock, StoreAddress

PERIOD = 60
LIMIT = 3


def charged(job_id: str, name: str = "webshop", *, limit: int = LIMIT, **values: Any) -> Submission:
    """Return a submission with a quota."""
    return submission(job_id, charges=(Charge("quota", Quota(limit, PERIOD), name),), **values)


def submit_to(store: Store, each: Submission) -> Admission:
    """Submit one."""
    return submit_one(store, each, wake_in=LEASE)


def is_admitted(store: Store, each: Submission) -> bool:
    """Submit, and return whether a new job was written; False over the quota."""
    try:
        return submit_to(store, each).outcome.makes_job
    except QuotaExceededError:
        return False


def left(store: Store, name: str = "webshop", *, limit: int = LIMIT) -> int:
    """Use up a quota, and return how many jobs it has allowed."""
    number = 0
    while is_admitted(store, charged(f"left-{name[:40]}-{number}", name, limit=limit)):
        number += 1
    return number


def results_of(store: Store, submissions: list[Submission]) -> list[str]:
    """Submit a batch and return the outcomes, and the options of the quotas that were exceeded."""
    try:
        results: Any = store.submit_many(submissions, wake_in=60.0)
    except PartlySubmittedError as error:
        results = error.results
    return [str(each.outcome) if isinstance(each, Admission) else each.option for each in results]


def test_jobs_are_admitted_up_to_the_limit(store: Store, clock: ManualClock) -> None:
    """Over the quota a new job is refused with the end of the window, which begins with its first job."""
    clock.advance(17.25)
    for number in range(LIMIT):
        assert is_admitted(store, charged(f"job-{number}"))
        clock.advance(0.5)
    with pytest.raises(QuotaExceededError) as caught:
        submit_to(store, charged("over", key="k"))
    error = caught.value
    assert (error.option, error.limit, error.retry_after) == ("quota", "3/minute", PERIOD - 1)
    assert error.reset_at == format_timestamp(START + 17.25 + PERIOD)
    assert get(store, "over") is None
    assert store.find_existing("identity-of-over", "k") is None
    assert len(store.find(Query())) == LIMIT
    clock.advance(PERIOD - 1.75)
    assert not is_admitted(store, charged("over"))
    clock.advance(0.25)
    assert is_admitted(store, charged("over", key="k"))
    assert left(store) == LIMIT - 1


def test_a_batch_is_judged_in_order(store: Store) -> None:
    """Of a batch as many new jobs are admitted, the first ones, as the quota has left; the others have errors."""
    submit_to(store, charged("held", "other", identity="held"))
    batch = [
        charged("z"), charged("again", identity="held"), charged("y"), submission("free"), charged("x"), charged("w"),
        charged("v", "other"), charged("a"),
    ]  # fmt: skip
    expected = ["admitted", "attached", "admitted", "admitted", "admitted", "quota", "admitted", "quota"]
    assert results_of(store, batch) == expected
    assert results_of(store, batch) == expected  # which is a repetition
    with pytest.raises(PartlySubmittedError, match="2 of 2"):
        store.submit_many([charged("one"), charged("two")], wake_in=60.0)
    assert left(store, "other") == LIMIT - 2


def test_a_limit_may_change(store: Store) -> None:
    """A new limit applies from the next job on: a larger one leaves more, a smaller one none."""
    assert left(store) == LIMIT
    assert is_admitted(store, charged("more", limit=LIMIT + 1))
    assert not is_admitted(store, charged("fewer", limit=1))


def test_expired_windows_are_deleted(store: Store, clock: ManualClock) -> None:
    """Expired windows begin anew under their names, also after they were deleted."""
    names = [f"name-{number}" for number in range(40)]
    for turn in range(2):
        for name in names:
            assert is_admitted(store, charged(f"{name}-{turn}", name, limit=1))
        clock.advance(PERIOD)
        for number in range(5):
            assert is_admitted(store, charged(f"other-{turn}-{number}", f"other-{number}", limit=1))
    assert [left(store, f"other-{number}", limit=1) for number in range(5)] == [0] * 5


@pytest.mark.parametrize("limit", [1, 3])
def test_concurrent_threads_cannot_exceed_the_limit(store: Store, limit: int) -> None:
    """Of many concurrent new jobs exactly as many are admitted as the limit allows."""
    answers = together(*[partial(is_admitted, store, charged(f"job-{n}", limit=limit)) for n in range(CROWD)])
    assert Counter(answers) == {True: limit, False: CROWD - limit}


def test_concurrent_processes_cannot_exceed_the_limit(fresh_address: StoreAddress) -> None:
    """Processes that submit jobs and batches, new and equal ones, admit exactly as many jobs as each quota allows."""
    rounds, limit = 10, 7
    answers = race(fresh_address, 4, charge_in_rounds, rounds, limit)
    with fresh_address.opened() as store:
        for number in range(rounds):
            assert sum(each[number] for each in answers) == limit
            assert not is_admitted(store, charged(f"last-{number}", f"name-{number}", limit=limit))
        assert sum(store.counts(Query()).values()) == rounds * limit


def test_a_killed_submitter_loses_no_use(fresh_address: StoreAddress) -> None:
    """When submitters are killed at any moment, a quota has counted exactly the jobs that exist."""
    limit = 100_000
    killed_while_charged(fresh_address, limit)
    with fresh_address.opened() as store:
        jobs = sum(store.counts(Query()).values())
        assert jobs > 0
        assert is_admitted(store, charged("next", limit=jobs + 1))
        assert not is_admitted(store, charged("over", limit=jobs + 1))


def test_a_ledger_coalesces_what_is_charged_equally(ledger: Ledger) -> None:
    """Equal submissions of a batch share an answer only if they have the same quotas."""
    batch = [
        charged("a-1", "a", limit=1), charged("a-2", "a", limit=1, identity="same"),
        charged("b-1", "b", identity="same"), charged("b-2", "b", identity="same"),
    ]  # fmt: skip
    with pytest.raises(PartlySubmittedError) as caught:
        ledger.submit_many(batch)
    first, refused, *others = caught.value.results
    assert isinstance(refused, QuotaExceededError)
    assert [each.outcome for each in (first, *others)] == ["admitted", "admitted", "attached"]  # type: ignore[attr-defined]
