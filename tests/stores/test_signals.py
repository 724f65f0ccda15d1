"""Signals: each store wakes its subscribers in every process, on one connection, and after it was lost."""

import os
import select
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue

import psycopg
import pytest
import redis

from onejob.jobs.lifecycle import State
from onejob.stores import listener
from onejob.stores.postgres import PostgresStore
from onejob.stores.postgres import store as postgres
from onejob.stores.postgres.statements import NAME_LIMIT, channels_of
from onejob.stores.protocol import POLL, Channel, Store
from onejob.stores.redis.rows import Keys
from tests.proxies import HalfOpen
from tests.services import PostgresServer, eventually, start_pgbouncer
from tests.stores.processes import in_child
from tests.stores.support import StoreAddress, end, run, submission, submit

PATIENCE = 20.0
KEY = "queue 1"


class Subscriber:
    """A subscription, and the payloads that it was woken with."""

    def __init__(self, store: Store, key: str = KEY, *, first: bool = True) -> None:
        self.wakes: SimpleQueue[str] = SimpleQueue()
        self.end = store.signals.subscribe(Channel.DUE, key, self.wakes.put)
        if first:
            self.await_wake("")  # the connection listens from now on

    def await_wake(self, payload: str | None = None) -> None:
        """Wait for a wake, or for the one with a payload."""
        while self.wakes.get(timeout=PATIENCE) != payload and payload is not None:
            pass


def signal(store: Store, address: StoreAddress, payload: str = "") -> str:
    """Send a signal, and return the payload with which it arrives: in SQLite any write is one, without a payload."""
    if address.kind == "sqlite":
        submit(store, os.urandom(8).hex())
        return ""
    text = f"{KEY}\n{payload}"
    if address.kind == "redis":
        with redis.Redis.from_url(address.url) as client:
            client.publish(Keys(address.namespace).channels[Channel.DUE], text)
    else:
        with psycopg.connect(address.url, autocommit=True) as connection:
            connection.execute("select pg_notify(%s, %s)", [channels_of(address.namespace)[Channel.DUE], text])
    return payload


def listening(address: StoreAddress) -> list[int]:
    """Return the ids of the connections that listen to the signals of a ledger."""
    if address.kind == "redis":
        with redis.Redis.from_url(address.url) as client:
            return [int(each["id"]) for each in client.client_list(_type="pubsub")]
    with psycopg.connect(address.url) as connection:
        query = "select pid from pg_stat_activity where query like %s"
        return [pid for (pid,) in connection.execute(query, [f'listen "{address.namespace}.%']).fetchall()]


def cut(address: StoreAddress) -> None:
    """End the connections that listen."""
    for number in listening(address):
        if address.kind == "redis":
            with redis.Redis.from_url(address.url) as client:
                client.client_kill_filter(_id=str(number))
        else:
            with psycopg.connect(address.url) as connection:
                connection.execute("select pg_terminate_backend(%s)", [number])


def test_a_signal_wakes_the_subscribers_of_its_key_in_other_processes(
    store: Store, store_factory: Callable[[], Store], store_address: StoreAddress
) -> None:
    """A signal arrives at the subscribers of its channel and key, with its payload, and no more after the end."""
    first, second, other = (
        Subscriber(store), Subscriber(store, first=False), Subscriber(store, "queue", first=False),
    )  # fmt: skip
    text = "two\nlines of " + "ä" * 3000
    for each in (first, second):
        each.await_wake(signal(store_factory(), store_address, text))
    first.end()
    first.end()
    payload = signal(store, store_address, "later")
    second.await_wake(payload)
    woken = {subscriber.wakes.get() for subscriber in (first, other) for _ in range(subscriber.wakes.qsize())}
    assert woken <= {"", text}


def test_any_number_of_subscribers_costs_one_connection(store: Store, store_address: StoreAddress) -> None:
    """1,000 subscribers have one thread, and at most one connection, which listens to their channels only."""
    before = {*threading.enumerate()}
    ends = [store.signals.subscribe(Channel.END, f"job-{number}", print) for number in range(1000)]
    (thread,) = {*threading.enumerate()} - before
    if store_address.kind != "sqlite":
        eventually(lambda: len(listening(store_address)) == 1)
    for unsubscribe in ends:
        unsubscribe()
    store.close()
    eventually(lambda: not thread.is_alive())
    if store_address.kind != "sqlite":
        eventually(lambda: listening(store_address) == [])
    Subscriber(store).await_wake(signal(store, store_address))


@pytest.mark.parametrize("fresh_address", ["postgresql", "redis"], indirect=True)
def test_a_lost_connection_is_replaced(store: Store, store_address: StoreAddress) -> None:
    """Who waits while the connection is lost is woken to look for itself, and later signals arrive again."""
    subscriber = Subscriber(store)
    cut(store_address)
    subscriber.await_wake("")
    subscriber.await_wake(signal(store, store_address, "later"))


def test_a_silent_connection_is_replaced(
    postgres_server: PostgresServer, postgres_schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection of PostgreSQL that is open and brings nothing any more is found out, and signals arrive again."""
    monkeypatch.setattr(listener, "CHECK_INTERVAL", 0.1)
    monkeypatch.setattr(postgres, "HEARTBEAT_SILENCE", 1.0)
    with closing(HalfOpen(postgres_server.port)) as proxy:
        url = postgres_server.url.replace(f":{postgres_server.port}", f":{proxy.port}")
        with closing(PostgresStore(url, schema=postgres_schema)) as store:
            subscriber = Subscriber(store)
            proxy.cut()
            subscriber.await_wake("")
            address = StoreAddress(postgres_server.url, postgres_schema)
            subscriber.await_wake(signal(store, address, "later"))


@pytest.mark.parametrize("fresh_address", ["redis"], indirect=True)
def test_the_end_of_a_job_with_many_followers_is_few_signals(store: Store, store_address: StoreAddress) -> None:
    """However many followers an end makes due, sweepers get one signal."""
    job = run(store)
    for number in range(20):
        store.follow(submission(f"follower-{number}"), follows_id=job.id)
    name = Keys(store_address.namespace).channels[Channel.DUE]
    with redis.Redis.from_url(store_address.url, decode_responses=True) as client, client.pubsub() as pubsub:
        pubsub.subscribe(name)
        eventually(lambda: pubsub.get_message() is not None)
        end(store, job)
        client.publish(name, "last")
        heard = list[str]()
        while "last" not in heard:
            heard += [message["data"]] if (message := pubsub.get_message(timeout=PATIENCE)) else []
    assert heard == ["", "last"]


def test_what_listens_reads_only_what_is_there(
    store: Store, store_address: StoreAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that listens never reads an empty pipe: with eventlet it would wait there, and hear no signal."""
    reads = list[bool]()

    def read(file: int, size: int) -> bytes:
        reads.append(bool(select.select([file], [], [], 0)[0]))
        return os_read(file, size)

    os_read = os.read
    monkeypatch.setattr("onejob.stores.listener.os.read", read)
    subscriber = Subscriber(store)
    for number in range(3):
        subscriber.await_wake(signal(store, store_address, f"{number}"))
    assert all(reads)


def test_a_forked_child_has_its_own_signals(store: Store, store_address: StoreAddress) -> None:
    """A forked child has none of its parent's subscriptions, and its own work; those of the parent go on."""
    subscriber = Subscriber(store)

    def use_signals() -> None:
        assert threading.active_count() == 1
        Subscriber(store).await_wake(signal(store, store_address, "child"))
        store.close()
        assert subscriber.wakes.empty()

    assert in_child(use_signals) == 0
    subscriber.await_wake(signal(store, store_address, "parent"))


def test_a_user_without_channels_ends_jobs(redis_url: str, redis_prefix: str) -> None:
    """A user of Redis whose ACL permits no channel can end jobs all the same, without a signal."""
    name = f"user-{redis_prefix}"
    with redis.Redis.from_url(redis_url) as client:
        client.execute_command("ACL", "SETUSER", name, "on", "nopass", "resetchannels", "~*", "+@all")
        try:
            with StoreAddress(redis_url.replace("//", f"//{name}:any@"), redis_prefix).opened() as store:
                store.signals.subscribe(Channel.END, "job-1", print)
                assert end(store, run(store)).state is State.COMPLETED
        finally:
            client.acl_deluser(name)


@pytest.mark.parametrize("fresh_address", ["sqlite"], indirect=True)
def test_a_sqlite_file_is_never_opened_for_signals(store: Store, store_address: StoreAddress) -> None:
    """Signals open neither the file nor its log, since closing them would drop the locks of SQLite."""
    Subscriber(store)
    opened = [each for each in Path("/dev/fd").iterdir() if each.exists()]
    files = Path(store_address.url.removeprefix("sqlite:///")).parent.iterdir()
    assert [file for file in files if any(file.samefile(each) for each in opened)] == []


def test_behind_a_pooler_subscribers_poll(postgres_server: PostgresServer, postgres_schema: str) -> None:
    """Behind a pooler in transaction mode nobody listens: subscribers look in short intervals."""
    with start_pgbouncer(postgres_server) as pooler, StoreAddress(pooler.url, postgres_schema).opened() as store:
        store.signals.subscribe(Channel.END, "job-1", print)()
        assert store.signals.interval == POLL


def test_long_schemas_have_channels_of_their_own() -> None:
    """The channels of two ledgers in a database have different names, of which PostgreSQL keeps every byte."""
    names = {name for last in "ab" for name in channels_of("s" * 62 + last).values()}
    assert len(names) == 2 * len(Channel)
    assert max(map(len, names)) <= NAME_LIMIT
