"""What an operator's operation does to what hangs on the job, on each store: a cell for each attachment and operation.

`docs/reference/operations.md` has the same table for readers, and what happens above the ledger.
"""

from collections.abc import Callable
from typing import Any

import pytest

from onejob.errors import QuotaExceededError
from onejob.jobs.model import JobRow
from onejob.jobs.submitter import Charge, Quota
from onejob.observability.metrics import WEBHOOK_TASK
from onejob.stores.protocol import Store
from tests.conftest import STORES
from tests.ledger.script import Script
from tests.stores.support import ManualClock, submission
from tests.tiers import deep

OPERATIONS = ("cancel", "run now", "redrive", "edit", "delete", "force delete", "purge")
"""Those on many jobs are these, one after the other; a revocation is a cancellation."""
REPEATED = "submit z:other key=k outcome={0} by={1}"
KEY = f"{REPEATED}; refuse JobNeededError delete {{1}}"
TABLE: dict[str, dict[str, str]] = {
    "an idempotency key": {
        "cancel": f"submit a key=k; cancel a; {KEY.format('replayed', 'a')}",
        "run now": f"submit a key=k delay=60; run_now a; {REPEATED.format('attached', 'a')}",
        "redrive": f"run a key=k; fail a; redrive a; {REPEATED.format('attached', 'a')}; start a; complete a; "
        f"submit y:other key=k outcome=replayed by=a",
        "edit": "run a key=k; fail a; submit n:other fingerprint=x; edit a by=n; gone a; "
        f"{REPEATED.format('attached', 'n')}; start n; complete n; submit y:other key=k outcome=replayed by=n; "
        "submit x:other key=k fingerprint=x outcome=rejected by=n; refuse JobNeededError delete n; pass DAY-1; "
        "sweep; pass 1; delete n; submit w:other key=k",
        "delete": f"run a key=k; complete a; {KEY.format('replayed', 'a')}; pass DAY; delete a; submit y:other key=k",
        "force delete": "run a key=k; fail a; refuse JobNeededError drop a; force a; submit b key=k",
        "purge": f"run a key=k key_for=DAY+9; complete a; pass DAY; sweep; {REPEATED.format('replayed', 'a')}; pass 9; "
        "sweep purged=1; submit b key=k",
    },
    "a follower": {
        "cancel": "submit a; follow f after=a; cancel a; f wake_at=now; refuse JobNeededError delete a; start f; "
        "abandon f; delete a",
        "run now": "submit a delay=60; follow f after=a; run_now a; f state=queued; refuse NotWaitingError run_now f",
        "redrive": "run a; follow f after=a; fail a; start f; fail f; refuse NoDeadLetterError redrive f follows_id=a; "
        "redrive a; rejoin f canvas=False; f state=queued follows_id=a",
        "edit": "run a; follow f after=a; fail a; start f; fail f; submit n:other; edit a by=n; f state=failed; "
        "refuse NoDeadLetterError redrive f follows_id=a; drop f",
        "delete": "run a; follow f after=a; complete a; refuse JobNeededError delete a; start f; complete f; delete a; "
        "f state=completed",
        "force delete": "run a; follow f after=a; complete a; force a; f state=queued; start f; fail f",
        "purge": "run a; follow f after=a; complete a; pass DAY; sweep published=1; pass LEASE-1; start f; complete f; "
        "pass 2*DAY; sweep purged=2",
    },
    "a webhook": {
        "cancel": "submit a; webhook w after=a; cancel a; w wake_at=now; refuse JobNeededError delete a; start w; "
        "complete w; delete a",
        "run now": "submit a delay=60; webhook w after=a; run_now a; w state=queued",
        "redrive": "run a; webhook w after=a; fail a; start w; complete w; redrive a; w state=completed; start a; "
        "complete a; w state=completed",
        "edit": "run a; webhook w after=a; fail a; start w; fail w; submit n:other; edit a by=n; redrive w; "
        "w state=queued follows_id=None",
        "delete": "run a; webhook w after=a; complete a; refuse JobNeededError delete a; start w; complete w; delete a",
        "force delete": "run a; webhook w after=a; complete a; force a; w state=queued; start w; fail w",
        "purge": "run a; webhook w after=a; complete a; pass DAY; sweep published=1; a state=completed",
    },
    "a canvas (links, chain, chord)": {
        "cancel": "submit a canvas=True; cancel a; a canvas_pending=True; refuse JobNeededError delete a; notified a; "
        "delete a",
        "run now": "submit a canvas=True delay=60; run_now a; a canvas_pending=True",
        "redrive": "run a canvas=True; fail a; notified a; redrive a canvas=True; a canvas_pending=True",
        "delete": "run a canvas=True; complete a; refuse JobNeededError delete a; notified a; delete a",
        "force delete": "run a canvas=True; fail a; refuse JobNeededError drop a; drop a force=True; gone a",
        "purge": "run a canvas=True; complete a; pass LEASE; sweep published=1; notified a; pass DAY; sweep purged=1",
    },
    "a run that is queued next": {
        "cancel": "run a:same; queue b; cancel a; abandon a; b queued_next=False holds_identity=True; cancel b; "
        "submit c:same; start c; queue d; cancel d; d queued_next=False holds_identity=False; complete c; "
        "submit e:same",
        "run now": "run a:same; queue b; refuse NotWaitingError run_now b follows_id=a",
        "redrive": "run a:same; queue b; fail a; refuse IdentityHeldError redrive a holder_id=b",
        "edit": "run a:same; queue b; fail a; submit n:other; edit a by=n; b holds_identity=True follows_id=None",
        "delete": "run a:same; queue b; complete a; delete a; b holds_identity=True state=queued; start b; complete b",
        "force delete": "run a:same; queue b; refuse JobNotEndedError force a; refuse JobNotEndedError force b",
        "purge": "run a:same; queue b; complete a; pass DAY; sweep purged=1 published=1; start b; complete b; gone a",
    },
    "a uniqueness window": {
        "cancel": "run a:same; complete a for=60; keep cancel a; submit b:same outcome=replayed by=a",
        "run now": "run a:same; complete a for=60; refuse NotWaitingError run_now a",
        "redrive": "run a:same; fail a; run b:same; complete b for=60; refuse IdentityHeldError redrive a holder_id=b; "
        "pass 60; redrive a",
        "edit": "run a:same; fail a; run b:same; complete b for=60; submit n:other; edit a by=n; "
        "submit c:same outcome=replayed by=b",
        "delete": "run a:same; complete a for=60; refuse UniquenessWindowError delete a; pass 60; delete a",
        "force delete": "run a:same; complete a for=60; refuse UniquenessWindowError force a; "
        "submit b:same outcome=replayed by=a",
        "purge": "run a:same; complete a for=DAY; pass DAY; sweep; pass HOUR; sweep purged=1; submit b:same",
    },
    "kept steps": {
        "cancel": "run a; step a; cancel a; abandon a; steps a 1",
        "run now": "run a; step a; apply a retry run_in=60 wake_after=60; run_now a; steps a 1",
        "redrive": "run a; step a; fail a; redrive a; steps a 1; start a; fail a; "
        "redrive a forget_steps=True; steps a 0",
        "edit": "run a; step a; fail a; submit n:other; edit a by=n; steps a 0; steps n 0",
        "delete": "run a; step a; fail a; delete a; steps a 0",
        "force delete": "run a key=k; step a; fail a; drop a force=True; steps a 0",
        "purge": "run a; step a; complete a; pass DAY; sweep purged=1; steps a 0",
    },
    "progress": {
        "cancel": "run a; report a half; cancel a; abandon a; a progress=half",
        "run now": "run a; report a half; apply a retry run_in=60 wake_after=60; run_now a; a progress=half",
        "redrive": "run a; report a half; fail a; redrive a; a progress=half result=None",
        "edit": "run a; report a half; fail a; submit n:other; edit a by=n; n progress=None",
    },
    "tags": {
        "cancel": "submit a tag_lines=t; cancel a; a tag_lines=t",
        "run now": "submit a tag_lines=t delay=60; run_now a; a tag_lines=t",
        "redrive": "run a tag_lines=t; fail a; redrive a; a tag_lines=t",
    },
    "a quota that it was charged with": {
        "cancel": "submit a charges=ONE; cancel a; exceed b",
        "run now": "submit a charges=ONE delay=60; run_now a; exceed b",
        "redrive": "run a charges=ONE; fail a; redrive a; exceed b",
        "edit": "run a charges=ONE; fail a; submit n:other; edit a by=n; exceed b",
        "delete": "run a charges=ONE; complete a; delete a; exceed b",
        "purge": "run a charges=LONG_ONE; complete a; pass DAY; sweep purged=1; exceed b charges=LONG_ONE",
    },
    "what a run was replaced by": {
        "cancel": "run a key=k; replace a; cancel a; a state=canceled payload=new; "
        "submit b key=k outcome=replayed by=a",
        "run now": "run a; replace a delay=60; run_now a; a run_at=now payload=new options=new",
        "redrive": "run a key=k; replace a; start a; fail a; redrive a; a payload=new options=new; "
        "submit b key=k outcome=attached by=a",
        "delete": "run a; replace a; refuse JobNotEndedError force a; start a; complete a; delete a; gone a",
        "purge": "run a; replace a; start a; complete a; pass DAY; sweep purged=1",
    },
    "a submission that it replaced": {
        "cancel": "submit a:same key=k; newer; cancel a; a fingerprint=x; submit c key=k outcome=replayed by=a",
        "run now": "submit a:same key=k delay=60; newer; run_now a; a fingerprint=x run_at=now",
        "redrive": "submit a:same key=k; newer; start a; fail a; redrive a; a fingerprint=x; "
        "submit c key=k outcome=attached by=a",
        "edit": "submit a:same key=k; newer; start a; fail a; submit n:other fingerprint=y; edit a by=n; "
        "submit c key=k outcome=attached by=n; submit d key=l fingerprint=x outcome=attached by=n",
    },
}


class Attached(Script):
    """A script about what hangs on a job."""

    @property
    def names(self) -> dict[str, Any]:
        one, long_one = (Charge("quota", Quota(1, seconds), f"{seconds}") for seconds in (3600, 10 * 86_400))
        return super().names | {"ONE": (one,), "LONG_ONE": (long_one,)}

    def do_edit(self, job_id: str, by: str) -> None:
        """Delete a dead letter in whose place a job was submitted."""
        self.ledger.supersede(job_id, by)

    def do_force(self, job_id: str) -> None:
        """Delete a job although something still needs it."""
        self.ledger.delete(job_id, force=True)

    def do_webhook(self, job_id: str, after: str) -> None:
        self.follow(job_id, follows=after, task=WEBHOOK_TASK, publisher_task="app.add")

    def do_newer(self) -> None:
        """Submit newer arguments of the identity "same", with a key of their own."""
        self.do_submit("b:same", outcome="replaced", by="a", replaces=True, fingerprint="x", key="l")

    def do_exceed(self, job_id: str, charges: Any = None) -> JobRow | None:
        """Assert that a quota is used up."""
        with pytest.raises(QuotaExceededError):
            self.ledger.submit(submission(job_id, charges=charges or self.names["ONE"]))
        return None


@pytest.mark.parametrize("kind", ["sqlite", *(pytest.param(kind, marks=deep) for kind in STORES if kind != "sqlite")])
@pytest.mark.parametrize("attachment", TABLE)
def test_an_operation_treats_what_hangs_on_the_job_as_the_table_says(
    fresh_stores: Callable[..., dict[str, Store]], clock: ManualClock, subtests: pytest.Subtests, kind: str,
    attachment: str,
) -> None:  # fmt: skip
    """Each cell of the table plays as it is written, on every store."""
    assert set(TABLE[attachment]) <= set(OPERATIONS)
    for operation, text in TABLE[attachment].items():
        with subtests.test(operation, script=text):
            Attached(fresh_stores(kind)[kind], clock).play(text)
