"""The settings, and the ledger that is built from them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, Self

from onejob.errors import ConfigurationError
from onejob.jobs.durations import DAY, check_seconds
from onejob.jobs.ledger_settings import RETENTION, LedgerSettings
from onejob.jobs.lifecycle import FINAL, State
from onejob.jobs.submitter import NO_QUOTAS, Quotas, Submitter
from onejob.jobs.text_limits import TextLimits
from onejob.ledger.ledger import Ledger
from onejob.ledger.schedules import Missed
from onejob.observability.logs import emit_to, log
from onejob.observability.meter import METRICS_INTERVAL, Meter
from onejob.stores import POSTGRES_SCHEMES, REDIS_SCHEMES, SCHEMES, display_url, kind_of, open_store
from onejob.stores.protocol import Store
from onejob.stores.schema import checked_schema
from onejob.stores.urls import scheme_of

KINDS: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (("store", "namespace", "probe_file"), lambda value: isinstance(value, str), "text"),
    (("broker_acks", "beat"), lambda value: isinstance(value, bool), "True or False"),
    (("crash_limit", "payload_limit"), lambda value: type(value) is int and value > 0, "an integer of at least 1"),
)
"""The kinds of values: the names of the settings that have it, whether a value fits, and the kind in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings: `onejob_<name>` in Celery's configuration. Times in seconds, sizes in bytes."""

    store: str = ""
    """URL of the ledger's store. Default: the result backend or the broker, if one of them is supported."""
    lease: float = 30.0
    """How long a run stays valid without a heartbeat."""
    shutdown_grace: float = 0.0
    """How long runs may continue after SIGTERM before the worker stops and releases them."""
    beat: bool = False
    """Whether the workers run the beat schedule, without a process of `celery beat`."""
    beat_missed: str = "last"
    """Which ticks of a downtime are made up for: `skip` (none), `last` or `all`."""
    retention: Mapping[str, float] = field(default_factory=dict)
    """How long a job is kept after its end, by final state. Default: a day, and 14 days for failed jobs."""
    key_retention: float = DAY
    """How long an idempotency key is kept."""
    tombstone_retention: float = 7 * DAY
    """How long the tombstone of a purged job is kept; 0: no tombstones."""
    quota: str | None = None
    """How many new jobs each named submitter may submit, such as "1000/day", unless it has quotas of its own."""
    identity_quota: str | None = None
    """How many new jobs with the same identity each named submitter may submit."""
    payload_limit: int = 256 * 1024
    """The maximum size of arguments, a result or a step as JSON."""
    crash_limit: int = 3
    """After this many crashed runs a job becomes a dead letter."""
    metrics_port: int | str = 0
    """The port at which a worker's parent process serves the ledger's metrics, or its address and port; 0: none."""
    probe_file: str = ""
    """The file by which `onejob probe` tells that a worker is alive; "": none."""
    namespace: str = "onejob"
    """Separates ledgers in one database: the schema in PostgreSQL, the key prefix in Redis."""
    publish_timeout: float = 2.0
    """How long a submission waits for the broker; after that the sweeper publishes the message."""
    broker_acks: bool = False
    """Whether workers have the broker keep each message of a job, too, until a process has accepted it."""

    def __post_init__(self) -> None:
        for name in ("lease", "key_retention", "publish_timeout"):
            check_seconds(f"onejob_{name}", getattr(self, name))
        for name in ("shutdown_grace", "tombstone_retention"):
            check_seconds(f"onejob_{name}", getattr(self, name), zero=True)
        parse_metrics_port(self.metrics_port)
        for names, fits, what in KINDS:
            for name in names:
                if not fits(getattr(self, name)):
                    raise ConfigurationError(f"onejob_{name}={getattr(self, name)!r} must be {what}")
        check_missed("onejob_beat_missed", self.beat_missed)
        Quotas.parse(self.quota, self.identity_quota)
        check_retention(self.retention)
        if not self.namespace or any(c in self.namespace for c in "{} \n\t*?[]"):
            msg = f"onejob_namespace={self.namespace!r} must be a plain name without spaces, braces or wildcards"
            raise ConfigurationError(msg)
        if scheme_of(self.store) in POSTGRES_SCHEMES:
            checked_schema(self.namespace)

    @classmethod
    def from_mapping(cls, conf: Mapping[str, Any]) -> Self:
        """Read Celery's configuration. Raises `ConfigurationError` for an invalid value."""
        values = {name: conf.get(f"onejob_{name}") for name in NAMES}
        values["store"] = values["store"] or _default_store(conf)
        brokers = [conf.get(name) for name in ("broker_url", "broker_read_url", "broker_write_url")]
        if "onejob" in {scheme_of(str(url)) for url in brokers} and scheme_of(str(values["store"])) in REDIS_SCHEMES:
            raise ConfigurationError(NO_BROKER)
        return cls(**{name: value for name, value in values.items() if value is not None})

    def check_window(self, task: str, seconds: float) -> None:
        """Raise `ConfigurationError` when a job would be purged before the end of its uniqueness window."""
        retention = self.retention.get(State.COMPLETED, RETENTION[State.COMPLETED])
        if seconds > retention:
            raise ConfigurationError(
                f"task {task} is unique for up to {seconds:g} s after its success, but completed jobs are kept for "
                f"{retention:g} s: set onejob_retention = {{'completed': {seconds:g}}} or more"
            )

    def quotas_of(self, submitter: Submitter) -> Quotas:
        """Return the quotas of a submitter: its own, or else these settings, for a submitter with a name."""
        if submitter.quotas is not None or not submitter.name:
            return submitter.quotas or NO_QUOTAS
        return Quotas.parse(self.quota, self.identity_quota)

    @property
    def address(self) -> str:
        """Where the ledger is, without secrets; a SQLite file has no namespaces. Raises `ConfigurationError`."""
        shown = display_url(self.store)
        return shown if kind_of(self.store) == "sqlite" else f"{shown}, namespace {self.namespace}"

    @property
    def heartbeat_late_after(self) -> float:
        """Seconds after which a worker's heartbeat is late: a worker whose runs are renewed sends three per lease."""
        return self.lease * 2 / 3

    @property
    def limits(self) -> TextLimits:
        """The limits of the size and depth of arguments and results."""
        return _limits(self.payload_limit)

    @property
    def metrics_place(self) -> tuple[str, int] | None:
        """The address and the port at which a worker serves metrics; None: nowhere."""
        return parse_metrics_port(self.metrics_port)


_limits = lru_cache(maxsize=256, typed=True)(TextLimits)
NAMES = tuple(f.name for f in fields(Settings))


def parse_metrics_port(given: object) -> tuple[str, int] | None:
    """Return the address and the port of a `metrics_port`; None for 0. Raises `ConfigurationError`."""
    if type(given) is int and 0 <= given < PORT_END:
        return (LOOPBACK, given) if given else None
    found = ADDRESS_AND_PORT.fullmatch(given) if isinstance(given, str) else None
    if found is None or not 0 < int(found["port"]) < PORT_END:
        raise ConfigurationError(
            f"onejob_metrics_port={given!r:.100} must be a port number, an address and a port such as "
            "'0.0.0.0:9100' or '[::1]:9100', or 0 for none"
        )
    return found["ipv6"] or found["host"], int(found["port"])


LOOPBACK = "127.0.0.1"
PORT_END = 2**16
ADDRESS_AND_PORT = re.compile(r"(?:\[(?P<ipv6>[^\s\[\]]+)\]|(?P<host>[^\s:\[\]]+)):(?P<port>[0-9]{1,5})", re.ASCII)


def check_missed(name: str, given: Any) -> Missed:
    """Return the policy for missed ticks. Raises `ConfigurationError`."""
    try:
        return Missed(given)
    except ValueError:
        raise ConfigurationError(f"{name}={given!r:.100} must be one of {', '.join(Missed)}") from None


def check_retention(retention: object) -> None:
    """Raise `ConfigurationError` unless `retention` maps final states to positive numbers of seconds."""
    if not isinstance(retention, Mapping):
        msg = f"onejob_retention maps final states to seconds, e.g. {{'completed': 3600}}, not {retention!r}"
        raise ConfigurationError(msg)
    for state, seconds in retention.items():
        if state not in FINAL:
            raise ConfigurationError(f"onejob_retention has {state!r}; the final states are {', '.join(sorted(FINAL))}")
        check_seconds(f"onejob_retention of {state} jobs", seconds)


NO_BROKER = (
    "broker_url = 'onejob://' needs a ledger in PostgreSQL or SQLite: set onejob_store to one. With a ledger in Redis, "
    "set the URL of that Redis as broker_url, too: the ledger then pushes the message of each job in the operation "
    "that writes the job"
)
NO_STORE = (
    "onejob has no store: neither the result backend nor the broker is supported as one. "
    "Set app.conf.onejob_store, for example to 'sqlite:///onejob.db' or 'redis://localhost:6379/0'"
)


def build_ledger(
    settings: Settings, is_known_task: Callable[[str], bool] | None = None, *, store: Store | None = None,
    kind: type[Ledger] = Ledger, metrics_interval: float = METRICS_INTERVAL,
) -> Ledger:  # fmt: skip
    """Build the ledger for `settings`. Raises `ConfigurationError` when they set no store.

    `is_known_task` decides whether a task gets a metrics label of its own; the others share one. `store` and `kind`:
    an opened store and a class of ledger to use instead, as tests do. `metrics_interval`: how often the ledger adds its
    counts to the totals in the store, in seconds; 0: it counts nothing.
    """
    if not settings.store:
        raise ConfigurationError(NO_STORE)
    store = store or open_store(settings.store, namespace=settings.namespace)
    retention = dict(RETENTION) | {State(state): seconds for state, seconds in settings.retention.items()}
    ledger_settings = LedgerSettings(
        crash_limit=settings.crash_limit, retention=retention, tombstone_retention=settings.tombstone_retention
    )
    if not metrics_interval:
        return kind(store, ledger_settings, emit_to(log))
    meter = Meter(store, metrics_interval, is_known_task or (lambda _task: False))
    return kind(store, ledger_settings, emit_to(log, meter.count), at_close=meter.close)


def _default_store(conf: Mapping[str, Any]) -> str:
    candidates = [
        str(conf.get("result_backend") or "").removeprefix("onejob+"),
        conf.get("broker_write_url") or conf.get("broker_url"),
    ]
    usable = (url for url in candidates if isinstance(url, str) and scheme_of(url) in SCHEMES and ";" not in url)
    return next(usable, "")
