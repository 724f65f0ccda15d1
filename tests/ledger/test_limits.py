"""Jobs that wait for room get to workers when they have it: not before, and not late."""

from onejob.jobs.handover import BY_CALLER, Handover
from onejob.jobs.limits import KeyUse, Limit, first_park, write_uses
from onejob.jobs.model import Submission
from tests.conftest import every_store
from tests.ledger.harness import LedgerHarness
from tests.limited import define
from tests.stores.support import submission


def limited(job_id: str, key: str) -> Submission:
    """Return a submission with one limit, which waits for its room."""
    limit_keys = write_uses([KeyUse(key)])
    return submission(job_id, limit_keys=limit_keys, parked_on=first_park(limit_keys))


def test_no_message_is_built_of_a_job_that_waits_for_room(harness: LedgerHarness) -> None:
    """The hand-over of a submission, which may have its message, is asked for unless the job waits for room."""
    asked = []

    def handover_of(new: Submission) -> Handover:
        asked.append(new.id)
        return BY_CALLER

    harness.ledger.submit_many([submission("free"), limited("waits", "gpu")], handover_of=handover_of)
    assert asked == ["free"]


@every_store
def test_tokens_that_come_during_a_look_are_found_by_the_next(harness: LedgerHarness) -> None:
    """A look takes no alarm whose jobs it does not free, and the next look is at once if it took any."""
    define(harness.ledger, [Limit(name="early", rate="60/minute"), Limit(name="late", rate="30/minute")])
    for key in ("early", "late"):
        harness.ledger.submit_many([limited(f"{key}-1", key), limited(f"{key}-2", key)])
    assert [harness.read(f"{key}-2").parked_on for key in ("early", "late")] == ["limit:early", "limit:late"]
    harness.clock.advance(1.0)
    harness.meanwhile("free_slots", lambda: harness.clock.advance(1.0))
    seconds = [harness.ledger.free_due_slots() for _ in range(3)]
    assert [harness.read(f"{key}-2").parked_on for key in ("early", "late")] == [None, None]
    assert seconds == [0.0, 0.0, None]
