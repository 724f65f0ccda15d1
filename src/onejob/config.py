"""The settings, and the ledger that is built from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, Self

from onejob.errors import ConfigurationError
from onejob.jobs.lifecycle import FINAL, State
from onejob.jobs.policy import DAY, RETENTION, Limits, Policy, check_seconds
from onejob.jobs.submitter import NO_QUOTAS, Quotas, Submitter
from onejob.ledger.ledger import Ledger
from onejob.ledger.schedules import Missed
from onejob.observability.events import Listener
from onejob.observability.logs import emit_to, log
from onejob.observability.meter import Meter
from onejob.stores import POSTGRES_SCHEMES, REDIS_SCHEMES, SCHEMES, display_url, kind_of, open_store, scheme_of
from onejob.stores.protocol import Store
from onejob.stores.schema import checked_schema

KINDS: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (("store", "namespace", "probe_file", "metrics_address"), lambda value: isinstance(value, str), "text"),
    (("broker_acks", "log_jobs", "log_json", "share_old_locks", "beat"), lambda value: isinstance(value, bool),
     "True or False"),
    (("crash_limit", "payload_limit", "depth_limit"), lambda value: type(value) is int and value > 0,
     "an integer of at least 1"),
)  # fmt: skip
"""What the values of settings are: the names of the settings, whether a value fits, and the kind in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings: `onejob_<name>` in Celery's configuration. Times in seconds, sizes in bytes."""

    store: str = ""
    """URL of the ledger's store. Default: the result backend or the broker, if one of them is supported."""
    lease: float = 30.0
    """How long a run stays valid without a heartbeat."""
    heartbeat: float = 10.0
    """Interval at which a worker's parent process renews the leases of its runs."""
    sweep: float = 1.0
    """Interval at which a worker looks for jobs that are due, lost or past their retention."""
    namespace: str = "onejob"
    """Separates ledgers in one database: the schema in PostgreSQL, the key prefix in Redis."""
    crash_limit: int = 3
    """After this many crashed runs a job becomes a dead letter."""
    shutdown_grace: float = 0.0
    """How long runs may continue after SIGTERM before the worker stops and releases them."""
    retention: Mapping[str, float] = field(default_factory=dict)
    """How long a job is kept after its end, by final state. Default: a day, and 14 days for failed jobs."""
    tombstone_retention: float = 7 * DAY
    """How long the tombstone of a purged job is kept; 0: no tombstones."""
    key_retention: float = DAY
    """How long an idempotency key is kept."""
    probe_file: str = ""
    """The file by which `onejob probe` tells that a worker is alive; "": none."""
    publish_timeout: float = 2.0
    """How long a submission waits for the broker; after that the sweeper publishes the message."""
    silence: float = 15.0
    """After so long without a message, a worker with free slots takes published jobs from the ledger; 0: never."""
    broker_acks: bool = False
    """Whether workers have the broker keep each message of a job, too, until a process has accepted it."""
    log_jobs: bool = True
    """Whether job events are logged, by the logger `onejob.jobs`."""
    log_json: bool = False
    """Whether workers log lines of JSON."""
    metrics_interval: float = 2.0
    """Interval at which a process adds its counts to the ledger's totals; 0: no metrics."""
    metrics_port: int = 0
    """The port at which a worker's parent process serves the ledger's metrics; 0: none."""
    metrics_address: str = "127.0.0.1"
    """The address of this host that `metrics_port` is bound to."""
    quota: str | None = None
    """How many new jobs each named submitter may submit, such as "1000/day", unless it has quotas of its own."""
    identity_quota: str | None = None
    """How many new jobs with the same identity each named submitter may submit."""
    share_old_locks: bool = False
    """Whether the tasks of `onejob.compat` respect and hold the locks of the library they replace, while both run."""
    beat: bool = False
    """Whether the workers run the beat schedule, without a process of `celery beat`."""
    beat_missed: str = "last"
    """Which ticks of a downtime are made up for: `skip` (none), `last` or `all`."""
    payload_limit: int = 256 * 1024
    depth_limit: int = 64

    def __post_init__(self) -> None:
        for name in ("lease", "heartbeat", "sweep", "key_retention", "publish_timeout"):
            check_seconds(f"onejob_{name}", getattr(self, name))
        for name in ("shutdown_grace", "tombstone_retention", "metrics_interval", "silence"):
            check_seconds(f"onejob_{name}", getattr(self, name), zero=True)
        if type(self.metrics_port) is not int or not 0 <= self.metrics_port < 2**16:
            raise ConfigurationError(f"onejob_metrics_port={self.metrics_port!r} must be a port number, or 0 for none")
        for names, fits, what in KINDS:
            for name in names:
                if not fits(getattr(self, name)):
                    raise ConfigurationError(f"onejob_{name}={getattr(self, name)!r} must be {what}")
        check_missed("onejob_beat_missed", self.beat_missed)
        Quotas.parse(self.quota, self.identity_quota)
        check_lease(self.lease, self.heartbeat)
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
    def limits(self) -> Limits:
        """The limits of the size and depth of arguments and results."""
        return _limits(self.payload_limit, self.depth_limit)


_limits = lru_cache(maxsize=256, typed=True)(Limits)
NAMES = tuple(f.name for f in fields(Settings))


def check_lease(lease: float, heartbeat: float) -> None:
    """Raise `ConfigurationError` when one missed heartbeat would let a lease expire."""
    if lease < 2 * heartbeat:
        raise ConfigurationError(
            f"a lease of {lease:g} s does not survive one missed heartbeat of {heartbeat:g} s: "
            f"make onejob_lease at least {2 * heartbeat:g}, or onejob_heartbeat at most {lease / 2:g}"
        )


def check_missed(name: str, given: Any) -> Missed:
    """Return what becomes of missed ticks. Raises `ConfigurationError`."""
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
    kind: type[Ledger] = Ledger,
) -> Ledger:  # fmt: skip
    """Build the ledger for `settings`. Raises `ConfigurationError` when they set no store.

    `is_known_task` decides whether a task gets a metrics label of its own; the others share one. `store` and `kind`:
    an opened store and a class of ledger to use instead, as tests do.
    """
    if not settings.store:
        raise ConfigurationError(NO_STORE)
    store = store or open_store(settings.store, namespace=settings.namespace)
    retention = dict(RETENTION) | {State(state): seconds for state, seconds in settings.retention.items()}
    policy = Policy(
        crash_limit=settings.crash_limit, retention=retention, tombstone_retention=settings.tombstone_retention
    )
    listeners: list[Listener] = [log] if settings.log_jobs else []
    if not settings.metrics_interval:
        return kind(store, policy, emit_to(*listeners))
    meter = Meter(store, settings.metrics_interval, is_known_task or (lambda _task: False))
    return kind(store, policy, emit_to(*listeners, meter.count), at_close=meter.close)


def _default_store(conf: Mapping[str, Any]) -> str:
    candidates = [
        str(conf.get("result_backend") or "").removeprefix("onejob+"),
        conf.get("broker_write_url") or conf.get("broker_url"),
    ]
    usable = (url for url in candidates if isinstance(url, str) and scheme_of(url) in SCHEMES and ";" not in url)
    return next(usable, "")
