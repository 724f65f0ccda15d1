"""Quotas: so many uses of a name within a period, whoever asks at the same moment, and what came to nothing is free."""

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
    """Take a use back."""
    store.consume(use.name, nonce=nonce or new_nonce(), limit=0, period=0.0, amount=-1, until=use.until)


def test_so_many_are_counted(store: Store, clock: ManualClock) -> None:
    """As many uses as the limit are counted, each told how many are left, and the next one is not."""
    answers = [consume(store) for _ in range(LIMIT + 2)]
    assert [(each.counted, each.left) for each in answers] == [
        (True, 2), (True, 1), (True, 0), (False, 0), (False, 0),
    ]  # fmt: skip
    assert {(each.name, each.until, each.seconds) for each in answers} == {("webshop", START + PERIOD, PERIOD)}
    assert clock.now == START


def test_a_window_begins_with_its_first_use(store: Store, clock: ManualClock) -> None:
    """A window is as long as the period from its first use on, to the moment, whatever is refused meanwhile."""
    clock.advance(17.25)
    for seconds in (0.0, 30.5, 29.25):
        clock.advance(seconds)
        assert consume(store, limit=1).counted is (seconds == 0)
    assert consume(store, limit=1).seconds == 0.25
    clock.advance(0.25)
    again = consume(store, limit=1)
    assert (again.counted, again.until, again.seconds) == (True, clock.now + PERIOD, PERIOD)


def test_names_are_counted_apart(store: Store) -> None:
    """Each name has uses of its own, however alike the names are."""
    names = ["a", "A", "a ", "a:b", "a:", "{a}", "a%", "ä", "a'; drop table quotas; --", "x" * 500]
    assert {consume(store, name, limit=1).counted for name in names} == {True}
    assert {consume(store, name, limit=1).counted for name in names} == {False}


def test_what_is_given_back_can_be_spent_again(store: Store) -> None:
    """A use that is taken back is there for somebody else, and the window stays what it was."""
    first, *_ = [consume(store) for _ in range(LIMIT)]
    refund(store, first)
    again = consume(store)
    assert (again.counted, again.left, again.until) == (True, 0, first.until)
    assert not consume(store).counted


def test_nothing_is_given_back_to_another_window(store: Store, clock: ManualClock) -> None:
    """A use of a window that is over is not taken back from the next one, nor from a name that nobody has used."""
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
    """A use that is asked for again by the same request gets its answer again, and is taken back once."""
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
    """A limit counts from the next use on: a larger one leaves more, a smaller one nothing."""
    for _ in range(LIMIT):
        consume(store)
    assert consume(store, limit=LIMIT + 2).left == 1
    fewer = consume(store, limit=1)
    assert (fewer.counted, fewer.left) == (False, 0)


def test_what_is_over_goes(store: Store, clock: ManualClock) -> None:
    """Windows that are over begin anew under their names, also when others have cleaned up after them."""
    for number in range(40):
        consume(store, f"name-{number}", limit=1)
    clock.advance(PERIOD)
    for number in range(5):
        assert consume(store, f"other-{number}", limit=1).counted
    assert {consume(store, f"name-{number}", limit=1).counted for number in range(40)} == {True}
    assert {consume(store, f"other-{number}", limit=1).counted for number in range(5)} == {False}


def test_the_ledger_counts_by_itself(ledger: Ledger) -> None:
    """Each use that the ledger is asked for is a request of its own, and so is each that it takes back."""
    first, second = (ledger.consume("n", limit=2, period=PERIOD) for _ in range(2))
    assert 0 < second.seconds <= PERIOD
    assert not ledger.consume("n", limit=2, period=PERIOD).counted
    ledger.refund(first)
    ledger.refund(second)
    assert [ledger.consume("n", limit=2, period=PERIOD).counted for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize("limit", [1, 3])
def test_of_many_threads_so_many_are_counted(store: Store, limit: int) -> None:
    """Of many uses at the same moment exactly as many are counted as are allowed."""
    answers = together(*[partial(consume, store, limit=limit) for _ in range(CROWD)])
    assert Counter(each.counted for each in answers) == {True: limit, False: CROWD - limit}
    assert sorted(each.left for each in answers if each.counted) == list(range(limit))


def test_of_many_processes_so_many_are_counted(fresh_address: StoreAddress) -> None:
    """Processes that spend and give back at once never have more than the limit between them, and lose none of it."""
    rounds, processes = 10, 4
    answers = race(fresh_address, processes, consume_in_rounds, rounds, LIMIT)
    with fresh_address.opened() as store:
        for number in range(rounds):
            left = sum(consume(store, f"name-{number}", period=600.0).counted for _ in range(LIMIT + 1))
            assert sum(each[number] for each in answers) + left == LIMIT
