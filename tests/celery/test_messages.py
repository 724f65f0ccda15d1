"""The messages of purged jobs are dropped, and a result backend that fails makes no link run again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from onejob import State
from onejob.celery.app_state import app_state_of
from onejob.celery.message import MARK
from onejob.jobs.lifecycle import FINAL
from tests.celery.harness import LEASE, PATIENCE, House, await_

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.services import RedisServer

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


@pytest.fixture
def deaf(tmp_path: Path, broker: RedisServer) -> Iterator[House]:
    """Return a house whose workers cannot reach their result backend."""
    house = House(tmp_path, broker, "sqlite")
    house.use_lease(LEASE)
    house.app.set_current()
    settings = {
        "result_backend": NOWHERE,
        "result_backend_transport_options": {"retry_policy": {"max_retries": 0, "timeout": 0.1}},
        "redis_retry_on_timeout": False,
    }
    house.worker("-c", "1", **settings)
    yield house
    house.close()


def test_a_link_runs_once_without_the_result_backend(deaf: House) -> None:
    """When only the result could not be written after the link was dispatched, the link is not dispatched again."""
    result = deaf.play.apply_async(("linked", ["return"]), link=deaf.plain.s("link"))
    deaf.await_mark("link", "plain")
    await_(lambda: not deaf.job(result).canvas_pending)
    assert deaf.job(result).state is State.COMPLETED
    assert len(deaf.marks("link", "plain")) == 1


def test_a_chord_that_waits_for_the_result_backend_says_so(deaf: House) -> None:
    """The end of a chord's member is sent again, after pauses that double, and the job has the error of the backend."""
    member = deaf.play.s("member", ["return"])
    options = {"chord": deaf.gather.s("body"), "group_id": "group"}
    result = member.apply_async(**options)
    await_(lambda: deaf.job(result).publish_error)
    job = await_(lambda: (job := deaf.job(result)).published >= 1 and job)
    assert (job.state, job.canvas_pending) == (State.COMPLETED, True)
    assert "Error" in job.publish_error
    assert app_state_of(deaf.app).ledger.history(result.id)[-1].event == "notify_canvas"
