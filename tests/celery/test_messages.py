"""The messages of purged jobs are dropped, and a result backend that fails makes no link run again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from onejob import State
from onejob.celery.message import MARK
from onejob.jobs.lifecycle import FINAL, Transition
from tests.celery.harness import LEASE, PATIENCE, await_
from tests.quiet import provokes

if TYPE_CHECKING:
    from tests.celery.harness import House

NOWHERE = "redis://127.0.0.1:1/0"


def message_of(house: House) -> dict[str, Any]:
    """Return the oldest message in the default queue."""
    return json.loads(house.broker.lindex("celery", -1) or "{}")  # type: ignore[no-any-return]


def test_a_copy_of_a_message_of_a_purged_job_is_dropped(house: House) -> None:
    """A message that the ledger has published, and whose job was purged, starts no run; it is acknowledged."""
    result = house.play.delay("purged", ["return"])
    copy = house.broker.lindex("celery", -1)
    assert message_of(house)["headers"][MARK] == result.id
    worker = house.worker("-c", "1")
    assert result.get(PATIENCE) == "purged"
    house.await_rest()
    assert house.ledger.store.delete([result.id], sources=FINAL) == [result.id]
    house.broker.lpush("celery", copy or b"")
    worker.await_text("was dropped")
    await_(lambda: not house.queued_messages())
    assert house.runs("purged") == 1
    assert house.ledger.get_or_none(result.id) is None


def test_a_copied_header_marks_no_other_message(house: House) -> None:
    """A message of `send_task` is admitted, with the headers of another job's message, too."""
    result = house.play.delay("marked", ["return"])
    headers = message_of(house)["headers"]
    copied = {name: headers[name] for name in headers if name.startswith("onejob")}
    house.worker("-c", "1")
    sent = house.app.send_task("play", ("sent", ["return"]), headers=copied)
    house.await_state(sent.id, State.COMPLETED)
    house.await_state(result, State.COMPLETED)
    assert (house.runs("sent"), house.runs("marked")) == (1, 1)
    house.assert_quiet()


@provokes(Transition.NOTIFY_CANVAS, logs=["network:ConnectionError"], because="the result backend is away")
def test_a_result_backend_that_is_away_repeats_no_link(house: House) -> None:
    """A link that was dispatched is not dispatched again; a chord's member is, after pauses, and has the error."""
    house.use_lease(LEASE)
    retries = {"retry_policy": {"max_retries": 0, "timeout": 0.1}}
    house.worker("-c", "1", result_backend=NOWHERE, result_backend_transport_options=retries)
    result = house.play.apply_async(("linked", ["return"]), link=house.plain.s("link"))
    house.await_mark("link", "plain")
    await_(lambda: not house.job(result).canvas_pending)
    assert house.job(result).state is State.COMPLETED
    member = house.play.s("member", ["return"]).apply_async(chord=house.gather.s("body"), group_id="group")
    await_(lambda: house.job(member).publish_error)
    job = await_(lambda: (job := house.job(member)).published >= 1 and job)
    assert (job.state, job.canvas_pending) == (State.COMPLETED, True)
    assert "Error" in job.publish_error
    assert house.ledger.history(member.id)[-1].event == "notify_canvas"
    assert len(house.marks("link", "plain")) == 1
