"""How workers share the sweeps, and what one that stops does with a run."""

from types import SimpleNamespace
from typing import Any

from onejob.celery.worker.bootstep import MAX_SHARE, SWEEPERS, release_run, sweep_share
from onejob.errors import StoreError
from tests.cases import for_each


@for_each("workers, share", [(0, 1.0), (SWEEPERS, 1.0), (3 * SWEEPERS, 3.0), (1000, MAX_SHARE)])
def test_many_workers_share_the_sweeps(workers: int, share: float) -> None:
    """Together many workers sweep as often as a few, and each of them often enough."""
    assert sweep_share(workers) == share


def test_a_run_is_stopped_while_the_store_is_away() -> None:
    """A worker that stops kills the process of a run also if the store does not say whether that is still its own."""
    done = list[str]()

    def get_own_run() -> None:
        raise StoreError("away")

    request: Any = SimpleNamespace(
        get_own_run=get_own_run, kill_child=lambda: done.append("killed"), release=lambda _: done.append("released")
    )
    release_run(request)
    request.get_own_run = lambda: None  # it has ended
    release_run(request)
    assert done == ["killed"]
