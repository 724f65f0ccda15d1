"""Jobs that wait for room get to workers when they have it: not before, and not late."""

from onejob.jobs.handover import BY_CALLER, Handover
from onejob.jobs.limits import KeyUse, first_park, write_uses
from onejob.jobs.model import Submission
from tests.ledger.harness import LedgerHarness
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
