"""Checks of Redis: the ledger's needs, and the broker's."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from shlex import quote
from typing import Any

from redis import Redis, RedisError, ResponseError
from redis.exceptions import NoPermissionError

from onejob.health.finding import Check, Finding, Installation, Level, names_text, or_ok, with_address
from onejob.stores import REDIS_SCHEMES, display_url, kind_of
from onejob.stores.redis.connection import pool_of
from onejob.stores.urls import scheme_of

OLDEST = (7, 0)
"""The oldest version of Redis that runs the ledger's scripts."""
FULL = 0.8
"""The part of `maxmemory` from which memory is nearly full."""
_SET = "in redis.conf, and `redis-cli -u URL CONFIG SET {name} {value}` for the running server"

# fmt: off
VERSION = Check("redis-version", "redis", Level.ERROR,
    when=f"the version is older than {OLDEST[0]}.{OLDEST[1]}",
    meaning="the scripts of the ledger fail: no job can be submitted",
    remedy="upgrade the server to Redis 7.0 or later, or Valkey")
PERSISTENCE = Check("redis-persistence", "redis", Level.ERROR,
    when="`appendonly` is off where the ledger lives",
    meaning="a crash of Redis loses jobs: all, or those since the last snapshot. Nothing publishes them again, because "
    "the ledger itself is gone",
    remedy="`appendonly yes` " + _SET.format(name="appendonly", value="yes"))
FSYNC = Check("redis-fsync", "redis", Level.WARNING,
    when="`appendfsync` is `no`",
    meaning="a power failure of the machine loses the jobs of about the last 30 seconds",
    remedy="`appendfsync everysec` (a second), or `always` (nothing, and slower) "
    + _SET.format(name="appendfsync", value="everysec"))
WRITES_FAIL = Check("redis-writes-fail", "redis", Level.ERROR,
    when="the last write of the append-only file, or the last snapshot, failed",
    meaning="what was acknowledged may not be on disk, and Redis may refuse all writes (MISCONF)",
    remedy="read the server's log: most often its disk is full, or the folder of `dir` is not writable")
EVICTION = Check("redis-eviction", "redis", Level.ERROR,
    when="`maxmemory-policy` is not `noeviction` where the ledger lives",
    meaning="when memory is full, Redis deletes keys of the ledger: jobs are lost silently, and equal jobs run twice",
    remedy="`maxmemory-policy noeviction` " + _SET.format(name="maxmemory-policy", value="noeviction"))
MEMORY = Check("redis-memory", "redis", Level.WARNING,
    when=f"more than {FULL:.0%} of `maxmemory` is used",
    meaning="a full Redis refuses submissions and the ends of runs; runs that cannot record their end wait",
    remedy="raise `maxmemory`, or keep ended jobs for a shorter time: onejob_retention")
REPLICA = Check("redis-replica", "redis", Level.ERROR,
    when="the URL of the ledger leads to a replica",
    meaning="a replica refuses writes, and reads of it are late: no job can be submitted",
    remedy="name the primary in onejob_store")
CLUSTER = Check("redis-cluster", "redis", Level.WARNING,
    when="the server is a node of a Redis Cluster",
    meaning="all keys of a ledger are in one slot, and onejob follows no redirection: after a failover or a "
    "resharding, the node of the URL refuses every operation",
    remedy="use a Redis without cluster mode, with a replica for the failover; or an address that always leads to the "
    "node that has the slot")
REPLICATION = Check("redis-replication", "redis", Level.INFO,
    when="there are replicas, and `min-replicas-to-write` is 0",
    meaning="Redis acknowledges a write before a replica has it: a failover may lose the last moments' jobs",
    remedy="`min-replicas-to-write 1` limits the loss to `min-replicas-max-lag`; a ledger in PostgreSQL with a "
    "synchronous standby has none")
RIGHTS = Check("redis-rights", "redis", Level.ERROR,
    when="the user of the ledger may not use one of its commands, or its keys",
    meaning="operations of the ledger are refused, perhaps in the middle of a script",
    remedy="`ACL SETUSER USER ...` with all rights of docs/operations/redis-user.md, as a user who may")
CHANNELS = Check("redis-channels", "redis", Level.WARNING,
    when="the user of the ledger may not publish or subscribe in its channels",
    meaning="the end of a job wakes nobody: who waits for it looks once a second",
    remedy="`ACL SETUSER USER &{NAMESPACE}:signals:* +publish +subscribe +unsubscribe`, as a user who may")
NOT_CHECKED = Check("redis-config-hidden", "redis", Level.INFO,
    when="the server refuses CONFIG and INFO does not have the value, as managed services do",
    meaning="`appendfsync` and `min-replicas-to-write` could not be checked",
    remedy="look them up in the settings of the service: `appendfsync` should be `everysec` or `always`")
INFO_REFUSED = Check("redis-info-refused", "redis", Level.INFO,
    when="the user of the ledger has no right to INFO",
    meaning="persistence, eviction, memory and replication could not be checked",
    remedy="`ACL SETUSER USER +info +config|get`, or run the command with the URL of another user as --store")
BROKER_EVICTION = Check("broker-eviction", "broker", Level.WARNING,
    when="`maxmemory-policy` of a Redis broker that is not the ledger is not `noeviction`",
    meaning="a full broker drops whole queues silently: no job is lost, since a sweep publishes it again after a "
    "lease, but messages of tasks that are not in the ledger are",
    remedy="`maxmemory-policy noeviction` " + _SET.format(name="maxmemory-policy", value="noeviction"))
# fmt: on


CALLS = (
    "evalsha a 0", "eval a 0", "hgetall KEY", "hget KEY a", "hmget KEY a", "hset KEY a a", "hsetnx KEY a a",
    "hdel KEY a", "hincrby KEY a 1", "hincrbyfloat KEY a 1", "hscan KEY 0", "get KEY", "mget KEY", "set KEY a",
    "del KEY", "unlink KEY", "exists KEY", "expire KEY 1", "zadd KEY 1 a", "zrem KEY a", "zscore KEY a",
    "zmscore KEY a", "zcard KEY", "zrange KEY 0 1", "zrevrange KEY 0 1", "zrangebyscore KEY 0 1",
    "zrevrangebyscore KEY 0 1", "zrank KEY a", "zremrangebyrank KEY 0 1", "zremrangebyscore KEY 0 1", "lpush KEY a",
    "rpush KEY a", "lset KEY 0 a", "lindex KEY 0", "lpos KEY a", "lrange KEY 0 1", "ltrim KEY 0 1", "publish CHANNEL a",
    "subscribe CHANNEL", "unsubscribe CHANNEL", "time", "ping",
)  # fmt: skip
"""A call of each command that the ledger sends, with a key and a channel of the ledger."""


@dataclass(frozen=True, kw_only=True)
class RedisFacts:
    """The facts that a server reports: its INFO (empty: refused), and its CONFIG (None: refused)."""

    info: Mapping[str, Any]
    config: Mapping[str, str] | None

    def setting(self, name: str) -> str | None:
        """Return a setting; None if the server does not report it."""
        if self.config and name in self.config:
            return self.config[name]
        value = self.info.get(name.replace("-", "_"))
        return None if value is None else str(value)


def examine(installation: Installation) -> Iterator[Finding]:
    """Examine the Redis of the ledger, and the broker's if that is another Redis."""
    url = installation.settings.store
    if kind_of(url) == "redis":
        facts = read_facts(url)
        findings = check_ledger(facts) if facts.info else [INFO_REFUSED.found("INFO is refused")]
        findings = chain(findings, check_rights(url, installation.settings.namespace))
        found = with_address(findings, "-u URL", cli_options(url))
        yield from or_ok(found, "redis", f"the server of {display_url(url)} keeps a ledger")
    broker = installation.app and installation.app.connection_for_write().as_uri(include_password=True)
    if not broker or scheme_of(broker) not in REDIS_SCHEMES:
        return
    if display_url(broker).rpartition("/")[0] == display_url(url).rpartition("/")[0]:
        return
    with suppress(RedisError, OSError):  # a broker that does not answer is a finding about the app
        policy = read_facts(broker).setting("maxmemory-policy")
        keeps = policy in {None, "noeviction"}  # the ledger replaces all other messages that a broker loses
        findings = [] if keeps else [BROKER_EVICTION.found(f"maxmemory-policy is {policy}")]
        found = with_address(findings, "-u URL", cli_options(broker))
        yield from or_ok(found, "broker", f"{display_url(broker)} answers")


def cli_options(url: str) -> str:
    """Return redis-cli's options for the server of a URL, without the password, for which REDISCLI_AUTH is used."""
    shown = display_url(url)
    path, _, number = shown.removeprefix("unix://").rpartition("/")
    return f"-s {quote(path)} -n {number}" if shown.startswith("unix:") else f"-u {quote(shown)}"


@contextmanager
def connected(url: str) -> Iterator[Redis]:
    """Yield a client for a URL that Celery or the ledger has. Raises `ConfigurationError` and redis-py's exceptions."""
    pool = pool_of(url.replace("redis+socket://", "unix://", 1))
    pool.connection_kwargs["encoding_errors"] = "replace"
    try:
        yield Redis(connection_pool=pool)
    finally:
        pool.disconnect()


def read_facts(url: str) -> RedisFacts:
    """Read the facts of a server. Raises redis-py's exceptions."""
    with connected(url) as client:
        info: Any = {}
        with suppress(NoPermissionError):
            info = client.info("everything")
        names = ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy", "min-replicas-to-write")
        config: Any = None
        with suppress(ResponseError):
            config = client.config_get(*names) or None
    return RedisFacts(info=info, config=config)


def check_rights(url: str, namespace: str) -> Iterator[Finding]:
    """Check the rights of a URL's user, if the user may test them. Raises redis-py's exceptions."""
    refused = refused_calls(url, namespace)
    for check, is_of_channels in ((RIGHTS, False), (CHANNELS, True)):
        found = {call: reason for call, reason in refused.items() if ("CHANNEL" in call) == is_of_channels}
        if found:
            commands = names_text([call.partition(" ")[0] for call in found])
            reasons = " / ".join(dict.fromkeys(found.values()))
            yield check.found(f"the user may not call {commands} as the ledger does: {reasons:.300}")


def refused_calls(url: str, namespace: str) -> dict[str, str]:
    """Return the calls of the ledger that the server refuses to a user, each with the reason; nothing is executed.

    The server compares commands with the rights of the user when they are queued, before EXEC, which is never sent.
    """
    names = {"KEY": f"{{{namespace}}}:doctor", "CHANNEL": f"{{{namespace}}}:signals:doctor"}
    refused: dict[str, str] = {}
    with connected(url) as client:
        connection: Any = client.connection_pool.get_connection()
        with suppress(NoPermissionError):
            _call(connection, "multi")
            for call in CALLS:
                try:
                    _call(connection, *(names.get(word, word) for word in call.split()))
                except NoPermissionError as error:
                    refused[call] = str(error)
            with suppress(NoPermissionError):
                _call(connection, "discard")
        connection.disconnect()  # this discards the queued commands, too
        client.connection_pool.release(connection)
    return refused


def _call(connection: Any, *words: str) -> None:
    connection.send_command(*words)
    connection.read_response()


def check_ledger(facts: RedisFacts) -> Iterator[Finding]:
    """Check the server of a ledger."""
    info = facts.info
    version = tuple(int(part) for part in str(info.get("redis_version", "")).split(".") if part.isdigit())
    if version and version < OLDEST:
        yield VERSION.found(f"the version is {info['redis_version']}")
    if info.get("role") in {"slave", "replica"}:
        yield REPLICA.found(f"the role is {info['role']}, of {info.get('master_host')}:{info.get('master_port')}")
    if info.get("cluster_enabled"):
        yield CLUSTER.found("cluster_enabled is 1")
    if not info.get("aof_enabled"):
        yield PERSISTENCE.found("appendonly is no")
    elif facts.setting("appendfsync") == "no":
        yield FSYNC.found("appendfsync is no")
    for name in ("aof_last_write_status", "rdb_last_bgsave_status"):
        if info.get(name, "ok") != "ok":
            yield WRITES_FAIL.found(f"{name} is {info[name]}")
    yield from _check_memory(facts)
    replicas = int(info.get("connected_slaves", 0))
    if replicas and facts.setting("min-replicas-to-write") == "0":
        yield REPLICATION.found(f"connected_slaves is {replicas}, and min-replicas-to-write is 0")
    if facts.config is None:
        yield NOT_CHECKED.found("CONFIG GET is refused")


def _check_memory(facts: RedisFacts) -> Iterator[Finding]:
    policy, limit = facts.setting("maxmemory-policy"), int(facts.setting("maxmemory") or 0)
    if policy not in {None, "noeviction"}:
        yield EVICTION.found(f"maxmemory-policy is {policy}{'' if limit else ' (maxmemory is 0: not effective yet)'}")
    used = int(facts.info.get("used_memory", 0))
    if limit and used > FULL * limit:
        yield MEMORY.found(f"{used / limit:.0%} of maxmemory ({limit / 2**20:,.0f} MiB) is used")
