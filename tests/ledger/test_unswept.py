"""What is over and no sweep has seen: it answers a submission as if the sweep had been there."""

from collections.abc import Callable
from itertools import count
from typing import Any

from onejob.jobs.model import Admission, IdentityHold, Submission
from onejob.jobs.query import Query
from onejob.jobs.submitter import Charge, Quota
from tests.cases import for_each
from tests.conftest import on_every_store
from tests.ledger.harness import LedgerHarness
from tests.stores.support import RUN_AGAIN, submission


def waiting(harness: LedgerHarness, name: str, **values: Any) -> None:
    """A job waits for its first run, and expires."""
    harness.submit(f"{name}first", identity=name, expires_in=10.0, **values)


def queued_next(harness: LedgerHarness, name: str) -> None:
    """A run is queued behind a running job, and expires."""
    harness.run(f"{name}runs", identity=name, lease=1e6)
    waiting(harness, name, **RUN_AGAIN)


def promoted(harness: LedgerHarness, name: str) -> None:
    """A run that was queued next got the identity of a job that ended, and expires."""
    queued_next(harness, name)
    harness.ledger.fail(harness.read(f"{name}runs"), "bad", "it broke")


def completed(harness: LedgerHarness, name: str) -> None:
    """A completed job holds its identity for a while."""
    harness.ledger.complete(harness.run(f"{name}first", identity=name), "1", hold=IdentityHold(identity_for=10.0))


def keyed(harness: LedgerHarness, name: str) -> None:
    """A completed job answers an idempotency key for a while."""
    harness.ledger.complete(harness.run(f"{name}first", identity=name, key=f"{name}key", key_for=10.0), "1")


STATES = (waiting, queued_next, promoted, completed, keyed)
KINDS: tuple[dict[str, Any], ...] = (
    {}, {"delay": 5.0}, {"priority_rank": 3}, {"expires_in": 50.0}, {"fingerprint": "other"}, {"key": "key"},
    {"key": "another"}, {"follows": True, "canvas": True}, {"follows": True, "rejects": True}, {"rejects": True},
    {"replaces": True, "queue_next": True, "max_wait": 60.0}, RUN_AGAIN, {"fingerprint": "other", **RUN_AGAIN},
    {"charges": True}, {"key": "another", "follows": True, **RUN_AGAIN},
)  # fmt: skip
"""The kinds of a submission, as values of it."""
CALLS: tuple[Callable[[LedgerHarness, Submission], Admission], ...] = (
    lambda harness, new: harness.ledger.submit(new),
    lambda harness, new: harness.ledger.submit_many(
        [submission(f"{new.id} before"), new, submission(f"{new.id} after")]
    )[1],
)
"""A submission alone, and one of a batch."""


def named(name: str, values: dict[str, Any]) -> Submission:
    """Return a submission with an identity, an idempotency key and a quota of its own."""
    own = {"key": f"{name}{values['key']}"} if "key" in values else {}
    quota = {"charges": (Charge("quota", Quota(1, 300), f"{name}quota"),)} if "charges" in values else {}
    return submission(f"{name}new", identity=name, payload='{"args": [3]}', **values | own | quota)


@on_every_store
@for_each("state", STATES)
def test_a_submission_is_answered_as_after_a_sweep(
    harness: LedgerHarness, state: Callable[[LedgerHarness, str], None]
) -> None:
    """What is over answers a submission of any kind as if a sweep had seen it, and the same jobs are left."""
    numbers = count()
    for values in KINDS:
        for call in CALLS:
            found = []
            for is_swept in (True, False):
                name = f"{state.__name__} {next(numbers)} "
                state(harness, name)
                harness.clock.advance(20.0)
                if is_swept:
                    harness.sweep()
                answer = call(harness, named(name, values))
                harness.sweep()
                left = {
                    job.id.removeprefix(name): (
                        job.state,
                        job.holds_identity,
                        job.queued_next,
                        job.follows_id,
                        job.payload,
                    )
                    for job in harness.store.find(Query(identity=name))
                }
                followed = answer.follower and answer.follower.follows_id
                found.append(repr((answer.outcome, answer.job.id, followed, left)).replace(name, ""))
            assert found[0] == found[1], (values, call)
