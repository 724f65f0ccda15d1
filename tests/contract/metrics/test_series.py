"""Metrics by time: the store adds amounts to the current bucket of each period, and deletes old buckets."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onejob.jobs.records import Bucket, Period
from tests.contract.processes import race
from tests.contract.support import submit

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.stores.protocol import Store
    from tests.contract.processes import Seat
    from tests.contract.support import ManualClock, StoreAddress

ADDITIONS = 50
DAYS = 86_400.0
PERIODS = pytest.mark.parametrize("period", Period)


def test_a_new_store_has_no_series(store: Store) -> None:
    """A new store has no buckets, and neither jobs nor totals add any."""
    submit(store)
    store.increment({"a": 1.0})
    assert [store.series(period, since=0.0) for period in Period] == [[], []]


@PERIODS
def test_amounts_are_added_to_the_bucket_of_their_time(store: Store, clock: ManualClock, period: Period) -> None:
    """A bucket begins at a multiple of its period, and has the sum of what was added before the next one begins."""
    begin = (clock.now // period.seconds + 1) * period.seconds
    clock.now = begin
    store.increment({}, recent={"a": 1, "b": 0.5})
    clock.now = begin + period.seconds - 0.25
    store.increment({"a": 7.0}, recent={"a": 2.25})
    clock.now = begin + period.seconds
    store.increment({}, recent={"c": 1e12})
    first, second = Bucket(begin, {"a": 3.25, "b": 0.5}), Bucket(begin + period.seconds, {"c": 1e12})
    assert store.series(period, since=0.0) == [first, second]
    assert store.totals() == {"a": 7.0}


@PERIODS
def test_empty_buckets_are_left_out(store: Store, clock: ManualClock, period: Period) -> None:
    """A bucket to which nothing was added is not returned, and adding nothing does not create one."""
    begin = clock.now // period.seconds * period.seconds
    store.increment({"a": 1.0}, recent={"a": 1.0})
    clock.advance(period.seconds)
    store.increment({"a": 1.0}, recent={})
    clock.advance(period.seconds)
    store.increment({"a": 1.0}, recent={"a": 1.0})
    found = store.series(period, since=0.0)
    assert found == [Bucket(begin, {"a": 1.0}), Bucket(begin + 2 * period.seconds, {"a": 1.0})]


@PERIODS
def test_a_series_begins_at_a_time(store: Store, clock: ManualClock, period: Period) -> None:
    """A series has the buckets that begin at the given time or later, also if no bucket begins at that time."""
    first = clock.now // period.seconds * period.seconds
    for _ in range(3):
        store.increment({}, recent={"a": 1.0})
        clock.advance(period.seconds)
    starts = [first + number * period.seconds for number in range(3)]
    for since, expected in (
        (first, starts), (first + 0.5, starts[1:]), (starts[2], starts[2:]), (starts[2] + 0.5, []), (-1.0, starts),
    ):  # fmt: skip
        assert [bucket.start for bucket in store.series(period, since=since)] == expected


@PERIODS
def test_a_bucket_is_readable_until_it_expires(store: Store, clock: ManualClock, period: Period) -> None:
    """A bucket is in the series until the time for which it is kept has passed since its begin, and not afterwards."""
    begin = clock.now // period.seconds * period.seconds
    store.increment({}, recent={"a": 1.0})
    clock.now = begin + period.kept_for - 0.25
    assert store.series(period, since=0.0) == [Bucket(begin, {"a": 1.0})]
    clock.now = begin + period.kept_for
    assert store.series(period, since=0.0) == []


def test_a_clock_that_is_set_back_hides_later_buckets(store: Store, clock: ManualClock) -> None:
    """After a backward jump the series ends with the current bucket, and a later one returns with its time."""
    begin = clock.now // 60 * 60
    clock.now = begin + 60
    store.increment({}, recent={"a": 1.0})
    clock.now = begin
    store.increment({}, recent={"a": 2.0})
    assert store.series(Period.MINUTE, since=0.0) == [Bucket(begin, {"a": 2.0})]
    clock.now = begin + 60
    store.increment({}, recent={"a": 4.0})
    assert store.series(Period.MINUTE, since=0.0)[1:] == [Bucket(begin + 60, {"a": 5.0})]


def stored_amounts(address: StoreAddress) -> int:
    """Return how many amounts a SQL store has in buckets, also in expired ones."""
    query = "select count(*) from {}metric_buckets where period > 0"
    if address.kind == "sqlite":
        with closing(sqlite3.connect(address.url.removeprefix("sqlite:///"))) as connection:
            return int(connection.execute(query.format("")).fetchone()[0])
    with psycopg.connect(address.url) as session:
        row = session.execute(query.format(f"{address.namespace}.").encode()).fetchone()
    assert row is not None
    return int(row[0])


def test_expired_buckets_are_deleted(store: Store, store_address: StoreAddress, clock: ManualClock) -> None:
    """Later increments delete expired buckets, twice as many amounts as they add at most; on Redis each has a TTL."""
    many = {f"name-{number}": 1.0 for number in range(10)}
    store.increment(many, recent=many)
    if store_address.kind == "redis":
        with redis.Redis.from_url(store_address.url) as client:
            found = {key.split(b":")[-2]: client.ttl(key) for key in client.scan_iter(match="*:bucket:*")}
        assert set(found) == {b"60", b"3600"}
        for period in Period:
            assert period.kept_for < found[str(period.seconds).encode()] <= period.kept_for + 3600
        return
    assert stored_amounts(store_address) == 20
    clock.advance(10 * DAYS)
    kept = []
    for _ in range(6):
        store.increment({}, recent={"a": 1.0})
        kept.append(stored_amounts(store_address))
    assert kept == [18, 14, 10, 6, 2, 2]
    assert store.totals() == many


def test_names_are_kept_to_the_letter(store: Store) -> None:
    """A name in a series may be any text."""
    names = ('["runs_total", "shop.invoice", "completed"]', "ž😀", "with 'quotes' and \\", "new\nline", "")
    store.increment({}, recent=dict.fromkeys(names, 1.0))
    (bucket,) = store.series(Period.HOUR, since=0.0)
    assert bucket.amounts == dict.fromkeys(names, 1.0)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(st.floats(0.0, 600.0), st.dictionaries(st.sampled_from("abc"), st.floats(0.0, 1e6))), max_size=10
    )
)
def test_totals_are_the_sums_of_all_buckets(
    store: Store, clock: ManualClock, steps: list[tuple[float, dict[str, float]]]
) -> None:
    """As long as no bucket has expired, the total of a name is the sum of its amounts in all buckets of a period."""
    before = store.totals()
    clock.now = (clock.now // (10 * DAYS) + 1) * 10 * DAYS  # where no other example has been
    begin = clock.now
    for seconds, amounts in steps:
        clock.advance(seconds)
        store.increment(amounts, recent=amounts)
    after = store.totals()
    for period in Period:
        buckets = store.series(period, since=begin)
        for name in after:
            added = math.fsum(bucket.amounts.get(name, 0.0) for bucket in buckets)
            assert math.isclose(after[name], before.get(name, 0.0) + added, rel_tol=1e-9, abs_tol=1e-6)


def add_often(seat: Seat) -> None:
    """Add to the same series as other processes, with the names in ascending or descending order."""
    names = [f"name-{number}" for number in range(20)]
    with seat.address.opened() as store:
        seat.ready()
        for _ in range(ADDITIONS):
            amounts = dict.fromkeys(names if seat.number % 2 else names[::-1], 1.0)
            store.increment(amounts, recent=amounts)


def test_concurrent_increments_are_all_in_the_series(store_address: StoreAddress, store: Store) -> None:
    """All concurrent increments of many processes are in the buckets, and in the totals, without a deadlock."""
    race(store_address, 4, add_often)
    totals = store.totals()
    assert set(totals.values()) == {4.0 * ADDITIONS}
    for period in Period:
        buckets = store.series(period, since=0.0)
        assert {name: sum(bucket.amounts[name] for bucket in buckets) for name in totals} == totals


def test_series_are_seen_by_all_processes(store: Store, store_factory: Callable[[], Store]) -> None:
    """What one process adds to a series is read by the others."""
    store.increment({}, recent={"a": 1.0})
    assert store_factory().series(Period.MINUTE, since=0.0) == store.series(Period.MINUTE, since=0.0) != []
