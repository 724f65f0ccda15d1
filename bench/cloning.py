"""A ledger in Redis with many jobs: copies of the keys that one job of each kind has, whatever these keys are."""

from __future__ import annotations

import time
from base64 import b64encode
from hashlib import md5, sha256
from typing import TYPE_CHECKING, Any
from uuid import UUID

import redis

from onejob.jobs.model import Submission
from onejob.jobs.transitions import new_nonce

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onejob.ledger.ledger import Ledger

PER_THOUSAND = 2
"""How many of a thousand jobs are queued; the others have completed."""
LEASE = 7200.0
_AT_ONCE = 500
_READERS: dict[bytes, Any] = {
    b"string": lambda server, key: ([b"SET", key], [[server.get(key)]]),
    b"hash": lambda server, key: ([b"HSET", key], list(server.hgetall(key).items())),
    b"set": lambda server, key: ([b"SADD", key], [[member] for member in server.smembers(key)]),
    b"list": lambda server, key: ([b"RPUSH", key], [[value] for value in server.lrange(key, 0, -1)]),
    b"zset": lambda server, key: (
        [b"ZADD", key],
        [[repr(score).encode(), member] for member, score in server.zrange(key, 0, -1, withscores=True)],
    ),
}
"""How each type of key is read: the command that writes it, and its entries."""


def job_id(number: int) -> str:
    """Return the id of a copy."""
    return str(UUID(bytes=md5(b"%d" % number, usedforsecurity=False).digest()))


def identity(number: int) -> str:
    """Return the identity of a copy."""
    return f"v1-{sha256(b'%d' % number).hexdigest()}"


def make(url: str, ledger: Ledger, jobs: int) -> None:
    """Fill an empty ledger with so many jobs."""
    with redis.Redis.from_url(url) as server:
        completed = _recipe(server, ledger, 1, ends=True)
        queued = _recipe(server, ledger, 2, ends=False)
        kinds = [(queued, 2)] * PER_THOUSAND + [(completed, 1)] * (1000 - PER_THOUSAND)
        _send(server, (copy(*kinds[number % 1000], number) for number in range(3, jobs + 1)))
    if ledger.get(job_id(jobs)) is None:
        raise RuntimeError("the copies are no jobs: an id is stored in a form that bench.cloning does not know")


def _recipe(server: redis.Redis, ledger: Ledger, number: int, *, ends: bool) -> bytes:
    """Make one job, and return the commands that write it once more."""
    new = Submission(
        id=job_id(number), task="shop.task_1", identity=identity(number), fingerprint=identity(number), lease=LEASE,
        nonce=new_nonce(), payload='{"task": "shop.task_1", "args": [42, "customer-7"], "kwargs": {}, "options": {}}',
    )  # fmt: skip
    ledger.submit(new)
    if ends:
        claimed = ledger.claim(new.id, nonce=new_nonce(), node="worker-1").job
        if claimed is None:
            raise RuntimeError("the job that is to be copied cannot be claimed")
        ledger.complete(claimed, '{"invoice": 42}')
    return b"".join(packed(command) for command in _commands(server, number))


def _commands(server: redis.Redis, number: int) -> Iterator[list[bytes]]:
    """Yield the commands that write what belongs to a job: whole keys with its name, and its entries in others."""
    marks = _forms(number)
    for key in server.scan_iter():
        kind: Any = server.type(key)
        command, entries = _READERS[kind](server, key)
        own = any(mark in key for mark in marks)
        kept = [entry for entry in entries if own or any(mark in part for part in entry for mark in marks)]
        if kept:
            yield [*command, *(part for entry in kept for part in entry)]


def _forms(number: int) -> list[bytes]:
    """Return the id and the identity of a job in the forms in which a store may write them, each of one length."""
    uuid, digest = UUID(job_id(number)), sha256(b"%d" % number).digest()
    raw = [uuid.bytes, digest]
    texts = [str(uuid).encode(), uuid.hex.encode(), digest.hex().encode()]
    return [*texts, *(b64encode(value).rstrip(b"=") for value in raw), *raw]


def copy(commands: bytes, number: int, other: int) -> bytes:
    """Return the commands of a job for another one. They are as long, so the lengths in the protocol hold."""
    for old, new in zip(_forms(number), _forms(other), strict=True):
        commands = commands.replace(old, new)
    return commands


def packed(command: list[bytes]) -> bytes:
    """Return a command in Redis' protocol."""
    return b"*%d\r\n" % len(command) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in command)


def _send(server: redis.Redis, copies: Iterator[bytes]) -> None:
    connection: Any = server.connection_pool.get_connection()
    connection.send_command("CLIENT", "REPLY", "OFF")
    block: list[bytes] = []
    for one in copies:
        block.append(one)
        if len(block) == _AT_ONCE:
            connection.send_packed_command([b"".join(block)])
            block.clear()
    connection.send_packed_command([b"".join(block)])
    connection.disconnect()
    time.sleep(1.0)
