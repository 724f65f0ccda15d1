"""Redis: what the ledger needs of it, and what the broker does."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from shlex import quote
from typing import Any

from redis import Redis, RedisError, ResponseError
from redis.exceptions import NoPermissionError

from onejob.health.finding import Check, Finding, Installation, Level, or_ok, with_address
from onejob.stores import REDIS_SCHEMES, display_url, kind_of, scheme_of
from onejob.stores.redis.connection import pool_of

OLDEST = (7, 0)
"""The oldest version of Redis that runs the ledger's scripts."""
FULL = 0.8
"""From this part of `maxmemory` on, memory is nearly full."""
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


@dataclass(frozen=True, kw_only=True)
class RedisFacts:
    """What a server says about itself: its INFO (empty: it refuses that), and its CONFIG (None: likewise)."""

    info: Mapping[str, Any]
    config: Mapping[str, str] | None

    def setting(self, name: str) -> str | None:
        """Return a setting; None if the server does not tell."""
        if self.config and name in self.config:
            return self.config[name]
        value = self.info.get(name.replace("-", "_"))
        return None if value is None else str(value)


def examine(installation: Installation) -> Iterator[Finding]:
    """Examine the Redis of the ledger, and that of the broker if it is another one."""
    url = installation.settings.store
    if kind_of(url) == "redis":
        facts = read_facts(url)
        findings = check_ledger(facts) if facts.info else [INFO_REFUSED.found("INFO is refused")]
        found = with_address(findings, "-u URL", cli_options(url))
        yield from or_ok(found, "redis", f"the server of {display_url(url)} keeps a ledger")
    broker = installation.app and installation.app.connection_for_write().as_uri(include_password=True)
    if not broker or scheme_of(broker) not in REDIS_SCHEMES:
        return
    if display_url(broker).rpartition("/")[0] == display_url(url).rpartition("/")[0]:
        return
    with suppress(RedisError, OSError):  # that it does not answer is a finding about the app
        policy = read_facts(broker).setting("maxmemory-policy")
        keeps = policy in {None, "noeviction"}  # the ledger replaces all else that a broker loses
        findings = [] if keeps else [BROKER_EVICTION.found(f"maxmemory-policy is {policy}")]
        found = with_address(findings, "-u URL", cli_options(broker))
        yield from or_ok(found, "broker", f"{display_url(broker)} answers")


def cli_options(url: str) -> str:
    """Return the options of redis-cli for the server of a URL: the password is left out, and REDISCLI_AUTH gives it."""
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
    """Ask a server about itself. Raises redis-py's exceptions."""
    with connected(url) as client:
        info: Any = {}
        with suppress(NoPermissionError):
            info = client.info("everything")
        names = ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy", "min-replicas-to-write")
        config: Any = None
        with suppress(ResponseError):
            config = client.config_get(*names) or None
    return RedisFacts(info=info, config=config)


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
