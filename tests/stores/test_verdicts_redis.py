"""Each error of Redis has a verdict: what a store makes of it."""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from redis import exceptions

from onejob.errors import (
    StoreBusyError,
    StoreError,
    StoreRefusedError,
    StoreUnavailableError,
    StoreUnusableError,
)
from onejob.jobs.lifecycle import State
from onejob.stores.redis import RedisStore, client
from onejob.stores.redis.errors import RULES, rule_of
from onejob.stores.verdicts import EXCEPTIONS, Verdict
from tests.cases import for_each
from tests.services import RedisServer, eventually, free_port, start_redis
from tests.stores.support import read, submit

LOOP = ("EVAL", "while true do end", "0")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """Return a server that the test may change."""
    with start_redis(tmp_path) as server:
        yield server


@pytest.fixture(autouse=True)
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a store send a request once."""
    monkeypatch.setattr(client, "ATTEMPTS", 1)


@contextmanager
def _configured(admin: Any, **settings: object) -> Iterator[None]:
    before = {name: admin.config_get(name)[name] for name in settings}
    for name, value in settings.items():
        admin.config_set(name, str(value))
    try:
        yield
    finally:
        for name, value in before.items():
            admin.config_set(name, value)


@contextmanager
def _failing_snapshots(admin: Any) -> Iterator[None]:
    file = Path(admin.config_get("dir")["dir"]) / "dump.rdb"
    file.mkdir()
    with _configured(admin, save="3600 1"):
        admin.bgsave()
        eventually(lambda: admin.info("persistence")["rdb_last_bgsave_status"] == "err")
        yield
        file.rmdir()
        admin.bgsave()
        eventually(lambda: admin.info("persistence")["rdb_last_bgsave_status"] == "ok")


@contextmanager
def _replica(admin: Any, **settings: object) -> Iterator[None]:
    """Make a server the replica of one that does not exist."""
    with _configured(admin, **settings):
        admin.execute_command("REPLICAOF", "127.0.0.1", str(free_port()))
        try:
            yield
        finally:
            admin.execute_command("REPLICAOF", "NO", "ONE")


@contextmanager
def _busy(admin: Any) -> Iterator[None]:
    with (
        _configured(admin, **{"lua-time-limit": 1}),
        ThreadPoolExecutor(1) as aside,
        redis.Redis(port=admin.connection_pool.connection_kwargs["port"]) as other,
    ):
        hanging = aside.submit(other.execute_command, *LOOP)
        eventually(lambda: _says(admin, "BUSY"))
        yield
        admin.script_kill()
        assert isinstance(hanging.exception(10.0), exceptions.ResponseError)


def _says(admin: Any, words: str) -> bool:
    try:
        admin.ping()
    except exceptions.RedisError as error:
        return words in str(error)
    return False


@contextmanager
def _without_a_right(admin: Any) -> Iterator[None]:
    admin.execute_command("ACL", "SETUSER", "default", "-zadd")
    yield
    admin.execute_command("ACL", "SETUSER", "default", "+@all")


CAUSES: dict[str, tuple[Callable[[Any], Any], type[StoreError], str]] = {
    "OutOfMemoryError": (lambda admin: _configured(admin, maxmemory=1), StoreUnusableError, "noeviction"),
    "NoPermissionError": (_without_a_right, StoreUnusableError, "lacks a right.*onejob doctor"),
    "ReadOnlyError": (_replica, StoreUnavailableError, "accepts no writes now.*replica"),
    "NOREPLICAS": (
        lambda admin: _configured(admin, **{"min-replicas-to-write": 1}), StoreUnavailableError, "fewer replicas",
    ),
    "MISCONF": (_failing_snapshots, StoreUnusableError, "cannot write to its disk.*Free space"),
    "BUSY": (_busy, StoreBusyError, "busy with a script"),
}  # fmt: skip
"""By row of the table: what brings the error about, the exception, and words of its message."""


@for_each("name", CAUSES)
def test_each_refusal_has_its_verdict(server: RedisServer, name: str) -> None:
    """An error reply is the exception of its verdict, says what to do, and the store works afterwards."""
    cause, expected, words = CAUSES[name]
    with (
        closing(RedisStore.from_url(server.url)) as store,
        redis.Redis.from_url(server.url, decode_responses=True) as admin,
    ):
        submit(store, f"before {name}")
        with cause(admin), pytest.raises(StoreError, match=words) as caught:
            submit(store, f"refused {name}")
        assert type(caught.value) is expected
        assert submit(store, f"after {name}").state is State.QUEUED


def test_a_server_that_loads_its_data_is_an_outage(server: RedisServer) -> None:
    """A server that has started, and loads its data, is an outage, and serves the store when it has loaded them."""
    with (
        closing(RedisStore.from_url(server.url)) as store,
        redis.Redis.from_url(server.url, decode_responses=True) as admin,
    ):
        submit(store)
        admin.execute_command("DEBUG", "POPULATE", "20000") if _may_debug(admin) else [
            admin.set(f"key-{number}", "x" * 100) for number in range(2000)
        ]
        admin.save()
        server.args = ("--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024")
        server.ready_text = "Server initialized"
        server.restart()
        store.close()  # its connection was to the earlier process
        eventually(lambda: _says(admin, "loading"))
        with pytest.raises(StoreUnavailableError, match="is loading its data"):
            read(store)
        admin.config_set("key-load-delay", "0")
        eventually(lambda: not _says(admin, "loading"))
        assert read(store).state is State.QUEUED


def test_a_replica_that_has_lost_its_primary_is_an_outage(server: RedisServer) -> None:
    """A replica that must not serve what it has is an outage for reads, too."""
    with (
        closing(RedisStore.from_url(server.url)) as store,
        redis.Redis.from_url(server.url, decode_responses=True) as admin,
    ):
        submit(store)
        lost = pytest.raises(StoreUnavailableError, match="lost its primary")
        with _replica(admin, **{"replica-serve-stale-data": "no"}), lost:
            read(store)
        assert read(store).state is State.QUEUED


def _may_debug(admin: Any) -> bool:
    with suppress(exceptions.ResponseError):
        admin.execute_command("DEBUG", "SLEEP", "0")
        return True
    return False


@for_each("url, words", [
    ("redis://:wrong@127.0.0.1:{port}/0", "refused the connection.*password"),
    ("redis://nobody:wrong@127.0.0.1:{port}/0", "refused the connection.*password"),
    ("redis://127.0.0.1:{port}/0", "refused the connection.*password"),
    ("redis://:right@127.0.0.1:{port}/99", "no database of this number"),
])  # fmt: skip
def test_a_wrong_url_is_the_operators(server: RedisServer, url: str, words: str) -> None:
    """A password, a user or a database that the server refuses is no outage."""
    with redis.Redis.from_url(server.url) as admin:
        admin.config_set("requirepass", "right")
    wrong = RedisStore.from_url(url.format(port=server.port))
    with closing(wrong) as store, pytest.raises(StoreUnusableError, match=words):
        submit(store)
    with redis.Redis.from_url(server.url.replace("//", "//:right@")) as admin:
        admin.config_set("requirepass", "")


def test_a_server_with_all_its_connections_in_use_is_busy(server: RedisServer) -> None:
    """A server whose limit of clients is reached is busy, and the error says what to raise."""
    with redis.Redis.from_url(server.url) as admin, closing(RedisStore.from_url(server.url)) as store:
        admin.config_set("maxclients", 1)
        with pytest.raises(StoreBusyError, match=r"max number of clients.*maxclients"):
            read(store)
        admin.config_set("maxclients", 100)
        assert submit(store).state is State.QUEUED


def test_a_script_that_somebody_kills_is_busy(server: RedisServer) -> None:
    """A script that an administrator ends is worth another try."""
    with (
        closing(RedisStore.from_url(server.url)) as store,
        redis.Redis.from_url(server.url, decode_responses=True) as admin,
        ThreadPoolExecutor(1) as aside,
    ):
        admin.config_set("lua-time-limit", 1)
        hanging = aside.submit(store._client.read, LOOP)
        eventually(lambda: _says(admin, "BUSY"))
        admin.script_kill()
        assert isinstance(hanging.exception(10.0), StoreBusyError)


def test_a_server_that_does_not_answer_is_an_outage(server: RedisServer) -> None:
    """A server that accepts connections and never replies is an outage, after the time limit of the URL."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0?socket_timeout=0.05"
        with closing(RedisStore.from_url(url)) as store, pytest.raises(StoreUnavailableError, match="did not answer"):
            read(store)


@pytest.fixture
def redis_cluster(tmp_path: Path) -> Iterator[tuple[RedisStore, Any]]:
    """Return a store on the only node of a cluster, and an administrator of it."""
    with (
        start_redis(tmp_path, "--cluster-enabled", "yes") as node,
        closing(RedisStore.from_url(node.url)) as store,
        redis.Redis.from_url(node.url) as admin,
    ):
        admin.execute_command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        eventually(lambda: b"cluster_state:ok" in admin.execute_command("CLUSTER", "INFO"))
        yield store, admin


def test_a_cluster_that_is_down_is_an_outage(redis_cluster: tuple[RedisStore, Any]) -> None:
    """A node of a cluster that lacks slots is an outage, and serves the store when they are back."""
    store, admin = redis_cluster
    admin.execute_command("CLUSTER", "DELSLOTSRANGE", "0", "16383")
    eventually(lambda: b"cluster_state:fail" in admin.execute_command("CLUSTER", "INFO"))
    with pytest.raises(StoreUnavailableError, match="cluster that is down"):
        read(store)
    admin.execute_command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
    eventually(lambda: b"cluster_state:ok" in admin.execute_command("CLUSTER", "INFO"))
    assert submit(store).state is State.QUEUED


def test_keys_of_two_slots_are_our_fault(redis_cluster: tuple[RedisStore, Any]) -> None:
    """A command whose keys have two slots of a cluster is a bug: neither an outage, nor the operator's."""
    store, _ = redis_cluster
    with pytest.raises(StoreError) as caught:
        store._client.read(("MGET", "a", "b"))
    assert type(caught.value) is StoreError


KINDS: dict[Verdict, tuple[Exception, ...]] = {
    Verdict.OURS: (exceptions.ResponseError("ERR unknown"), exceptions.InvalidResponse("?"), ValueError("?")),
    Verdict.VALUE: (
        exceptions.ResponseError("WRONGTYPE Operation against a key"), exceptions.DataError("?"),
        exceptions.ResponseError("Protocol error: invalid bulk length"),
        exceptions.ResponseError("user_script:1: a value script: 1"), UnicodeEncodeError("utf-8", "?", 0, 1, "?"),
    ),
    Verdict.OPERATOR: (
        exceptions.ResponseError("DENIED Redis is running in protected mode"),
        exceptions.ResponseError("Protocol error: unauthenticated multibulk length"),
        exceptions.ResponseError("Error compiling script (new function): user_script:1"),
        exceptions.AuthenticationWrongNumberOfArgsError("?"), exceptions.AuthorizationError("?"),
        exceptions.AskError("1 127.0.0.1:1"), exceptions.ExternalAuthProviderError("?"),
    ),
    Verdict.BUSY: (exceptions.TryAgainError("?"), exceptions.ResponseError("UNKILLABLE Sorry")),
    Verdict.STALE: (exceptions.NoScriptError("?"),),
    Verdict.OUTAGE: (ConnectionResetError(), exceptions.TimeoutError("?")),
}  # fmt: skip
"""What no server on this machine can be brought to say, or other tests provoke."""


@for_each("verdict, error", [(verdict, error) for verdict, errors in KINDS.items() for error in errors])
def test_each_kind_of_error_has_its_verdict(verdict: Verdict, error: Exception) -> None:
    """Each exception of redis-py, and each code of a reply, has one verdict."""
    assert rule_of(error).verdict is verdict


def test_the_exceptions_follow_the_verdicts() -> None:
    """Each verdict of the table has an exception, and only a value that can never be stored is `StoreRefusedError`."""
    assert {rule.verdict for rule in RULES.values()} == {*EXCEPTIONS}
    assert [verdict for verdict, kind in EXCEPTIONS.items() if kind is StoreRefusedError] == [Verdict.VALUE]
