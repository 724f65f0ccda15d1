"""Connections to Redis: a reply answers its own request, whatever interrupts a call."""

import gc
import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import redis
import trustme
from redis import ConnectionPool, exceptions

from onejob.stores.redis import connection as connection_module
from onejob.stores.redis.connection import PAUSE, SEND_SIZE, SPIN, Connections, pool_of
from tests.services import MissingServiceError, RedisServer, ServiceError, free_port, start_redis
from tests.stores.processes import in_child
from tests.stores.races import together


@pytest.fixture
def connections(redis_url: str) -> Iterator[Connections]:
    with closing(Connections(ConnectionPool.from_url(redis_url, decode_responses=True))) as made:
        yield made


def echo(connections: Connections, text: str) -> str:
    (reply,) = connections.execute([("ECHO", text)])
    return str(reply)


def test_commands_are_answered_in_their_order(connections: Connections) -> None:
    """Many commands, more than one write has, are answered in their order; no command needs no server."""
    texts = [f"{number}".rjust(100) for number in range(2 * SEND_SIZE // 100)]
    assert connections.execute([("ECHO", text) for text in texts]) == texts
    assert connections.execute([]) == []


def test_an_error_reply_is_raised_when_all_replies_are_read(connections: Connections) -> None:
    """The first error among the replies is raised; the commands after it have run, and the connection stays usable."""
    (before,) = connections.execute([("CLIENT", "ID")])
    with pytest.raises(exceptions.ResponseError, match="unknown command 'FIRST'"):
        connections.execute([("ECHO", "a"), ("FIRST",), ("SECOND",), ("ECHO", "b")])
    assert echo(connections, "c") == "c"
    assert connections.execute([("CLIENT", "ID")]) == [before]


def test_what_nobody_closes_is_closed(redis_url: str) -> None:
    """The idle connections of a store that is garbage are closed before the garbage collector finds their sockets."""
    connections = Connections(ConnectionPool.from_url(redis_url, decode_responses=True))
    echo(connections, "a")
    ((idle, _),) = connections._idle
    del connections
    gc.collect()
    assert idle._socket.fileno() == -1


class Interruption(BaseException):
    """What the handler of a signal raises."""


def test_an_interrupted_call_leaves_no_reply_to_the_next(connections: Connections) -> None:
    """After an exception from a signal handler, whose reply arrives later, the next call gets its own reply."""

    def interrupt(*_: object) -> None:
        raise Interruption

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Interruption):
            connections.execute([("ECHO", "old"), ("BLPOP", "no-such-list", "0.3")])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, previous)
    assert [echo(connections, text) for text in ("a", "b")] == ["a", "b"]


def test_a_command_that_cannot_be_sent_leaves_no_reply_to_the_next(connections: Connections) -> None:
    """If the commands after the first write cannot be encoded, the error is raised, and the next call is its own."""
    with pytest.raises(UnicodeEncodeError):
        connections.execute([("ECHO", "x" * SEND_SIZE), ("ECHO", "\ud800")])
    assert echo(connections, "a") == "a"


def test_threads_have_their_own_connections(connections: Connections) -> None:
    """Threads that call at the same time get their own replies, also while another one closes the connections."""
    done = threading.Event()

    def call(name: str) -> list[str]:
        return [text for number in range(300) if echo(connections, text := f"{name}-{number}") != text]

    def close() -> None:
        while not done.is_set():
            connections.close()

    with ThreadPoolExecutor() as pool:
        pool.submit(close)
        try:
            assert [*pool.map(call, "abcd", timeout=30)] == [[]] * 4
        finally:
            done.set()


def test_a_forked_child_opens_its_own_connection(connections: Connections) -> None:
    """A forked child does not use the connections of its parent."""
    (parent,) = connections.execute([("CLIENT", "ID")])

    def use_connection() -> None:
        assert connections.execute([("CLIENT", "ID")]) != [parent]

    assert in_child(use_connection) == 0
    assert connections.execute([("CLIENT", "ID")]) == [parent]


@pytest.mark.parametrize(("checked_after", "errors"), [(float("inf"), 1), (0.0, 0)])
def test_after_a_lost_server_every_connection_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked_after: float, errors: int
) -> None:
    """After a restart of the server one call fails, however many connections were open; none if they were idle."""
    monkeypatch.setattr(connection_module, "CHECK_AFTER", checked_after)
    with start_redis(tmp_path) as server, closing(Connections(ConnectionPool.from_url(server.url))) as connections:
        together(*[partial(connections.execute, [("BLPOP", "no-such-list", "0.2")])] * 4)
        server.kill()
        server.restart()
        for _ in range(errors):
            with pytest.raises(redis.ConnectionError):
                connections.execute([("PING",)])
        assert connections.execute([("PING",)]) == [b"PONG"]


WAIT = ("BLPOP", "no-such-list", "0.05")
"""A command whose reply takes longer than a call polls."""


@pytest.fixture
def yields(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], list[float]]:
    """Return a function that makes each look at the clock take so long, and returns when calls yield their core."""

    def with_step(seconds: float) -> list[float]:
        looks, times = itertools.count(), list[float]()

        def look() -> float:
            return time.monotonic() + next(looks) * seconds

        monkeypatch.setattr(connection_module, "monotonic", look)
        monkeypatch.setattr(connection_module, "_yield_core", lambda: times.append(look()))
        return times

    return with_step


def test_a_call_that_waits_uses_no_processor(connections: Connections, yields: Callable[[float], list[float]]) -> None:
    """A call polls for its reply for a moment only and then sleeps, and it does not poll at all after a slow reply."""
    times = yields(SPIN / 100)
    connections.execute([WAIT])
    polls = len(times)
    assert 0 < polls < 100
    for _ in range(5):
        connections.execute([WAIT])
    assert len(times) == polls


def test_a_call_sleeps_at_once_where_other_processes_want_the_core(
    connections: Connections, monkeypatch: pytest.MonkeyPatch, yields: Callable[[float], list[float]]
) -> None:
    """After a core that was yielded came back late, a connection does not poll for a while, and then does again."""
    monkeypatch.setattr(connection_module, "SPIN", float("inf"))  # no reply is slow
    times = yields(PAUSE / 20)
    for _ in range(20):
        connections.execute([WAIT])
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert pauses
    assert min(pauses) > PAUSE


def test_a_reply_that_does_not_come_raises(tmp_path: Path) -> None:
    """A call raises `TimeoutError` after `socket_timeout`; its reply, which comes later, is not that of the next."""
    with start_redis(tmp_path) as server:
        pool = ConnectionPool.from_url(server.url, decode_responses=True, socket_timeout=0.3)
        with closing(Connections(pool)) as connections:
            with pytest.raises(exceptions.TimeoutError, match=r"no answer within 0.3 s"):
                connections.execute([("ECHO", "old"), ("BLPOP", "no-such-list", "0.5")])
            pool.connection_kwargs["socket_timeout"] = 60.0  # a busy machine may be slow with the next one
            assert echo(connections, "new") == "new"


def test_a_large_request_and_a_large_reply_arrive(connections: Connections) -> None:
    """A request that the socket's buffers cannot hold, and its reply, arrive whole."""
    text = "x" * 20_000_000
    assert connections.execute([("ECHO", text), ("ECHO", "end")]) == [text, "end"]


def test_a_server_that_is_read_only_is_left(tmp_path: Path) -> None:
    """After a write that a replica refuses, the next call has a new connection, which may reach the new primary."""
    with start_redis(tmp_path) as server, closing(Connections(ConnectionPool.from_url(server.url))) as connections:
        before, _ = connections.execute([("CLIENT", "ID"), ("REPLICAOF", "127.0.0.1", str(free_port()))])
        with pytest.raises(exceptions.ReadOnlyError):
            connections.execute([("SET", "name", "value")])
        assert connections.execute([("CLIENT", "ID")]) != [before]


def test_calls_over_tls_are_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over TLS, commands of many records are answered in their order, and an idle connection is used again."""
    monkeypatch.setattr(connection_module, "CHECK_AFTER", 0.0)
    server = RedisServer(tmp_path)
    authority = trustme.CA()
    files = {"cert": authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem, "ca": authority.cert_pem}
    for name, blob in files.items():
        blob.write_to_path(tmp_path / name)
    port = free_port()
    options = {"tls-port": port, "tls-auth-clients": "no", "tls-ca-cert-file": tmp_path / "ca"}
    options |= {"tls-cert-file": tmp_path / "cert", "tls-key-file": tmp_path / "cert"}
    server.args = tuple(word for name, value in options.items() for word in (f"--{name}", str(value)))
    try:
        server.start()
    except ServiceError as error:
        if "tls" in str(error).lower():
            msg = "this Redis was built without TLS. Install your system's redis-server"
            raise MissingServiceError(msg) from error
        raise
    url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={tmp_path / 'ca'}"
    texts = [f"{number}".rjust(1000) for number in range(2000)]
    with server, closing(Connections(pool_of(url))) as connections:
        client = connections.execute([("CLIENT", "ID")])
        assert connections.execute([("ECHO", text) for text in texts]) == texts
        assert connections.execute([("CLIENT", "ID")]) == client


def test_a_server_sends_only_replies(redis_url: str) -> None:
    """Whatever protocol a pool asks for, a connection gets nothing but the replies to its calls."""
    with closing(Connections(ConnectionPool.from_url(redis_url, protocol=3, decode_responses=True))) as connections:
        connections.execute([("SET", "law-of-replies", "1"), ("DEL", "law-of-replies")])
        assert connections.execute([("CONFIG", "GET", "port")])[0][0] == "port"  # in RESP3 a map
