"""Filters by queue, worker and argument: lists and counts of the jobs that they match, on every store."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from onejob.jobs.lifecycle import State
from onejob.jobs.records import Query
from onejob.jobs.route import Route
from onejob.ledger.search import argument_text
from tests.contract.support import ManualClock, end, run, start, submit

if TYPE_CHECKING:
    from onejob.stores.protocol import Store


def matching(store: Store, **values: Any) -> set[str]:
    """Return the ids of the matching jobs, which are also counted."""
    jobs = store.find(Query(limit=100, **values))
    states = [job.state for job in jobs]
    assert store.counts(Query(**values)) == {state: states.count(state) for state in states}
    assert store.counts(Query(**values), limit=100) == store.counts(Query(**values))
    assert [job.id for job in store.find(Query(limit=100, light=True, **values))] == [job.id for job in jobs]
    return {job.id for job in jobs}


def test_jobs_are_found_by_their_queue(store: Store) -> None:
    """A job is found by the queue of its route, however that is stored; by "" if its route was not resolved."""
    routes = {
        "direct": Route.to_queue("fast"),
        "exchange": Route("shop", "orders", "fast"),
        "bracket": Route.to_queue("[odd"),
        "accent": Route("shop", "orders", "für"),
        "quote": Route("shop", "orders", 'a"b'),
        "none": Route("shop", "orders", ""),
    }
    for name, route in routes.items():
        submit(store, name, route=route.encode())
    submit(store, "unresolved")
    found = {queue: matching(store, queue=queue) for queue in ("fast", "[odd", "für", 'a"b', "", "orders", "shop")}
    assert found == {
        "fast": {"direct", "exchange"}, "[odd": {"bracket"}, "für": {"accent"}, 'a"b': {"quote"},
        "": {"none", "unresolved"}, "orders": set(), "shop": set(),
    }  # fmt: skip
    assert {job.queue for job in store.find(Query(queue="fast"))} == {"fast"}


def test_jobs_are_found_by_the_worker_of_their_latest_claim(store: Store) -> None:
    """A job is found by the worker that claimed it last, also after its end; by "" before its first claim."""
    submit(store, "waiting")
    end(store, run(store, "ended"))
    submit(store, "moved")
    start(store, "moved", node="node-2")
    assert {node: matching(store, node=node) for node in ("", "node-1", "node-2", "node")} == {
        "": {"waiting"}, "node-1": {"ended"}, "node-2": {"moved"}, "node": set(),
    }  # fmt: skip


PAYLOADS: dict[str, dict[str, Any]] = {
    "small": {"args": [7], "kwargs": {"order_id": 42}},
    "large": {"args": [], "kwargs": {"order_id": 421, "name": "Zoë"}},
    "text": {"args": ['say "hello"', "50%_\\"], "kwargs": {"order_id": "42", "name": "zoë"}},
    "nested": {"args": [[1, {"deep": [None, True]}]], "kwargs": {"at": 1.5}},
}


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("order_id=42", {"small", "large"}),
        ('order_id="42"', {"text"}),
        ("name=Zo", {"large"}),
        ("name=Zoë", {"large"}),
        ("deep=[null,true]", {"nested"}),
        ("at=1.50", {"nested"}),
        ('"hello"', {"text"}),
        ("%_\\", {"text"}),
        ("oë", {"large", "text"}),
        ("HELLO", set()),
        ("shop.invoice", set()),
        ("task=shop.invoice", set()),
        ("", {"small", "large", "text", "nested"}),
    ],
)
def test_jobs_are_found_by_an_argument(store: Store, typed: str, expected: set[str]) -> None:
    """A job is found by a part of the JSON of its arguments, case-sensitively, and not by the name of its task."""
    for name, message in PAYLOADS.items():
        submit(store, name, payload=json.dumps({"task": "shop.invoice", **message}))
    assert matching(store, arguments=argument_text(typed)) == expected


def test_filters_are_combined(store: Store, clock: ManualClock) -> None:
    """Each filter leaves out more jobs, in pages, too."""
    for number in range(40):
        payload = json.dumps({"task": "t", "args": [number % 2], "kwargs": {}})
        run(store, f"job-{number:02}", payload=payload, route="even" if number % 4 == 0 else "odd")
        clock.advance(1.0)
    values: dict[str, Any] = {"arguments": '"args": [0]', "queue": "even", "node": "node-1"}
    expected = [f"job-{number:02}" for number in range(36, -1, -4)]
    assert [job.id for job in store.find(Query(**values))] == expected
    assert [job.id for job in store.find(Query(offset=2, limit=3, **values))] == expected[2:5]
    assert store.counts(Query(**values), limit=7) == {State.RUNNING: 7}
    assert store.find(Query(**values | {"node": "node-2"})) == []
