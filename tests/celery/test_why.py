"""What `onejob why` says beside real workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onejob.ledger.explain import explain
from onejob.ledger.stuck import Stuck
from tests.celery.harness import await_

if TYPE_CHECKING:
    from tests.celery.harness import House

SHORT_LEASE = 1.2


def test_a_queue_that_no_worker_consumes_is_named(house: House) -> None:
    """A job for a queue that no real worker consumes is stuck, and the sentences name the queue and the worker."""
    worker = house.worker("-c", "1")
    result = house.play.apply_async(("unheard", ["return"]), queue="nobody")
    heard = house.play.apply_async(("heard", ["return"]), countdown=3600)
    await_(house.ledger.workers)
    found = explain(house.ledger, result.id)
    assert found.stuck is Stuck.QUEUE_NOT_CONSUMED
    assert any(f"consumes the queue nobody: {worker.name}@test consumes " in line for line in found.sentences)
    assert explain(house.ledger, heard.id).stuck is None


@pytest.mark.deep
def test_a_killed_worker_leaves_an_expired_lease(house: House) -> None:
    """After the only worker was killed, its job has an expired lease, and nobody to recover it."""
    house.use_lease(SHORT_LEASE)
    worker = house.worker("-c", "1")
    result = house.play.delay("killed", ["hold:never"])
    house.await_mark("killed")
    worker.sigkill()
    await_(lambda: explain(house.ledger, result.id).stuck)
    await_(lambda: not house.ledger.workers())
    found = explain(house.ledger, result.id)
    assert found.stuck is Stuck.LEASE_EXPIRED
    assert f"It ran on {worker.name}@test: attempt 1" in "\n".join(found.sentences)
    assert "No worker of this ledger is alive, so no sweep recovers it: start a worker." in found.sentences
