"""Metrics by time: the store adds amounts to the current bucket of each period, and deletes old buckets."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest
import redis

from onejob.jobs.records import Bucket, Period
from tests.contract.processes import race

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.stores.protocol import Store
    from tests.contract.processes import Seat
    from tests.contract.support import ManualClock, StoreAddress

ADDITIONS = 50
DAYS = 86_400.0
PERIODS = pytest.mark.parametrize("period", Period)


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
