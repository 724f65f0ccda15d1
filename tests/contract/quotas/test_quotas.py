"""Quotas: a limited number of uses of a name per period, also under concurrency; a use can be refunded."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from onejob.jobs.transitions import new_nonce
from tests.contract.processes import consume_in_rounds, race
from tests.contract.races import CROWD, together
from tests.contract.support import START

if TYPE_CHECKING:
    from onejob.jobs.records import QuotaUse
    from onejob.ledger.ledger import Ledger
    from onejob.stores.protocol import Store
    from tests.contract.support import ManualClock, StoreAddress

PERIOD = 60.0
LIMIT = 3


def consume(
    store: Store, name: str = "webshop", *, limit: int = LIMIT, period: float = PERIOD, nonce: str = ""
) -> QuotaUse:
    """Use a name once."""
    return store.consume(name, nonce=nonce or new_nonce(), limit=limit, period=period)


def refund(store: Store, use: QuotaUse, nonce: str = "") -> None:
    """Refund a use."""
    store.consume(use.name, nonce=nonce or new_nonce(), limit=0, period=0.0, amount=-1, until=use.until)


def test_uses_are_counted_up_to_the_limit(store: Store, clock: ManualClock) -> None:
    """Uses up to the limit are counted, each with the number that is left, and the next one is refused."""
    answers = [consume(store) for _ in range(LIMIT + 2)]
    assert [(each.counted, each.left) for each in answers] == [
        (True, 2), (True, 1), (True, 0), (False, 0), (False, 0),
    ]  # fmt: skip
    assert {(each.name, each.until, each.seconds) for each in answers} == {("webshop", START + PERIOD, PERIOD)}
    assert clock.now == START


def test_a_window_begins_with_its_first_use(store: Store, clock: ManualClock) -> None:
    """A window lasts exactly one period from its first use, whatever is refused meanwhile."""
    clock.advance(17.25)
    for seconds in (0.0, 30.5, 29.25):
        clock.advance(seconds)
        assert consume(store, limit=1).counted is (seconds == 0)
    assert consume(store, limit=1).seconds == 0.25
    clock.advance(0.25)
    again = consume(store, limit=1)
    assert (again.counted, again.until, again.seconds) == (True, clock.now + PERIOD, PERIOD)


def test_names_are_counted_apart(store: Store) -> None:
    """Each name has a quota of its own, however alike the names are."""
    names = ["a", "A", "a ", "a:b", "a:", "{a}", "a%", "ä", "a'; drop table quotas; --", "x" * 500]
    assert {consume(store, name, limit=1).counted for name in names} == {True}
    assert {consume(store, name, limit=1).counted for name in names} == {False}


def test_a_refunded_use_can_be_consumed_again(store: Store) -> None:
    """A refunded use can be consumed by another request, and the window does not change."""
    first, *_ = [consume(store) for _ in range(LIMIT)]
    refund(store, first)
    again = consume(store)
    assert (again.counted, again.left, again.until) == (True, 0, first.until)
    assert not consume(store).counted


def test_a_refund_does_not_change_another_window(store: Store, clock: ManualClock) -> None:
    """A use of an expired window is not refunded to the next one, nor to a name without uses."""
    old = consume(store)
    refund(store, old, "1")
    refund(store, old, "2")
    clock.advance(PERIOD)
    assert consume(store).left == LIMIT - 1
    refund(store, old)
    assert consume(store).left == LIMIT - 2
    refund(store, replace(old, name="nobody"), "3")
    assert consume(store, "nobody").left == LIMIT - 1


def test_a_repeated_request_counts_once(store: Store, clock: ManualClock) -> None:
    """A repeated request gets the same result, and its use is refunded once."""
    first = consume(store, nonce="0123456789abcdef")
    assert consume(store, nonce="0123456789abcdef") == first
    for _ in range(LIMIT - 1):
        consume(store)
    last = consume(store, nonce="0123456789abcdef")
    assert (last.counted, last.left) == (True, 0)
    for _ in range(3):
        refund(store, first, "fedcba9876543210")
    assert [consume(store).counted for _ in range(2)] == [True, False]
    assert clock.now == START


def test_a_limit_may_change(store: Store) -> None:
    """A new limit applies from the next use on: a larger one leaves more, a smaller one none."""
    for _ in range(LIMIT):
        consume(store)
    assert consume(store, limit=LIMIT + 2).left == 1
    fewer = consume(store, limit=1)
    assert (fewer.counted, fewer.left) == (False, 0)


def test_expired_windows_are_deleted(store: Store, clock: ManualClock) -> None:
    """Expired windows begin anew under their names, also after they were deleted."""
    for number in range(40):
        consume(store, f"name-{number}", limit=1)
    clock.advance(PERIOD)
    for number in range(5):
        assert consume(store, f"other-{number}", limit=1).counted
    assert {consume(store, f"name-{number}", limit=1).counted for number in range(40)} == {True}
    assert {consume(store, f"other-{number}", limit=1).counted for number in range(5)} == {False}


def test_each_call_of_the_ledger_is_a_request(ledger: Ledger) -> None:
    """Each use of a quota through the ledger is a request of its own, and so is each refund."""
    first, second = (ledger.consume("n", limit=2, period=PERIOD) for _ in range(2))
    assert 0 < second.seconds <= PERIOD
    assert not ledger.consume("n", limit=2, period=PERIOD).counted
    ledger.refund(first)
    ledger.refund(second)
    assert [ledger.consume("n", limit=2, period=PERIOD).counted for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize("limit", [1, 3])
def test_concurrent_threads_cannot_exceed_the_limit(store: Store, limit: int) -> None:
    """Of many concurrent uses exactly as many are counted as the limit allows."""
    answers = together(*[partial(consume, store, limit=limit) for _ in range(CROWD)])
    assert Counter(each.counted for each in answers) == {True: limit, False: CROWD - limit}
    assert sorted(each.left for each in answers if each.counted) == list(range(limit))


def test_concurrent_processes_cannot_exceed_the_limit(fresh_address: StoreAddress) -> None:
    """Processes that consume and refund concurrently never exceed the limit, and lose no use of it."""
    rounds, processes = 10, 4
    answers = race(fresh_address, processes, consume_in_rounds, rounds, LIMIT)
    with fresh_address.opened() as store:
        for number in range(rounds):
            left = sum(consume(store, f"name-{number}", period=600.0).counted for _ in range(LIMIT + 1))
            assert sum(each[number] for each in answers) + left == LIMIT
