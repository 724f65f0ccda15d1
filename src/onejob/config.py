"""Settings to ledger: the only place where one is built from the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self

from onejob.errors import ConfigurationError
from onejob.jobs.lifecycle import FINAL, State
from onejob.jobs.policy import DAY, RETENTION, Policy, check_seconds
from onejob.ledger.ledger import Ledger
from onejob.observability.logs import log
from onejob.observability.meter import Meter
from onejob.stores import POSTGRES_SCHEMES, SCHEMES, open_store, scheme_of
from onejob.stores.schema_version import checked_schema
from onejob.uniqueness.canonical_json import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from onejob.observability.events import JobEvent, Listener


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a team may set, as `onejob_<name>` in Celery's configuration. Times in seconds, sizes in bytes."""

    store: str = ""
    """URL of the ledger's store; empty: the result backend or the broker, when a ledger can live there."""
    lease: float = 30.0
    """How long a run stays valid without a sign of life."""
    heartbeat: float = 10.0
    """How often a worker's parent process renews the leases of its runs."""
    sweep: float = 1.0
    """How often a worker looks for jobs that are due, lost or old."""
    namespace: str = "onejob"
    """What keeps the ledger apart from others in the same place: schema in PostgreSQL, prefix of the keys in Redis."""
    crash_limit: int = 3
    """A job that has killed this many workers fails as a dead letter."""
    shutdown_grace: float = 0.0
    """How long runs may go on after SIGTERM before the worker ends them and hands them back."""
    retention: Mapping[str, float] = field(default_factory=dict)
    """How long a job stays readable after its end, by final state; a day, and 14 days for failed ones."""
    tombstone_retention: float = 7 * DAY
    """How long it is remembered that a job was purged, and what had come of it; 0: not at all."""
    key_retention: float = DAY
    """How long the answer to an idempotency key is kept."""
    publish_timeout: float = 2.0
    """How long a submission waits for the broker; past it the sweeper publishes."""
    log_jobs: bool = True
    """Whether what happens to jobs is logged, as `onejob.jobs`."""
    metrics_interval: float = 2.0
    """How often a process adds what it has counted to the ledger's totals; 0: it counts nothing."""
    payload_limit: int = 256 * 1024
    depth_limit: int = 64

    def __post_init__(self) -> None:
        """Refuse values that cannot work, with `ConfigurationError`."""
        for name in ("lease", "heartbeat", "sweep", "key_retention", "publish_timeout"):
            check_seconds(f"onejob_{name}", getattr(self, name))
        for name in ("shutdown_grace", "tombstone_retention", "metrics_interval"):
            check_seconds(f"onejob_{name}", getattr(self, name), zero=True)
        if not isinstance(self.log_jobs, bool):
            msg = f"onejob_log_jobs={self.log_jobs!r} must be True or False"
            raise ConfigurationError(msg)
        check_lease(self.lease, self.heartbeat)
        check_retention(self.retention)
        if not self.namespace or any(c in self.namespace for c in "{} \n\t*?[]"):
            msg = f"onejob_namespace={self.namespace!r} must be a plain name without spaces, braces or wildcards"
            raise ConfigurationError(msg)
        if scheme_of(self.store) in POSTGRES_SCHEMES:
            checked_schema(self.namespace)

    @classmethod
    def from_mapping(cls, conf: Mapping[str, Any]) -> Self:
        """Read Celery's configuration. Raises `ConfigurationError` for a value that cannot work."""
        given = {name: conf.get(f"onejob_{name}") for name in NAMES}
        given["store"] = given["store"] or _default_store(conf)
        return cls(**{name: value for name, value in given.items() if value is not None})

    def check_window(self, task: str, seconds: float) -> None:
        """Raise `ConfigurationError` when a job would be purged before its uniqueness window is over."""
        kept = self.retention.get(State.COMPLETED, RETENTION[State.COMPLETED])
        if seconds > kept:
            msg = (
                f"task {task} is unique for up to {seconds:g} s after its success, but completed jobs are kept for "
                f"{kept:g} s: set onejob_retention = {{'completed': {seconds:g}}} or more"
            )
            raise ConfigurationError(msg)

    @property
    def limits(self) -> Limits:
        """How large and how deep arguments and results may be."""
        return Limits(size=self.payload_limit, depth=self.depth_limit)


NAMES = tuple(f.name for f in fields(Settings))


def check_lease(lease: float, heartbeat: float) -> None:
    """Raise `ConfigurationError` when one missed heartbeat would lose a lease."""
    if lease < 2 * heartbeat:
        msg = (
            f"a lease of {lease:g} s does not survive one missed heartbeat of {heartbeat:g} s: "
            f"make onejob_lease at least {2 * heartbeat:g}, or onejob_heartbeat at most {lease / 2:g}"
        )
        raise ConfigurationError(msg)


def check_retention(retention: object) -> None:
    """Raise `ConfigurationError` unless `retention` maps final states to positive numbers of seconds."""
    if not isinstance(retention, Mapping):
        msg = f"onejob_retention maps final states to seconds, e.g. {{'completed': 3600}}, not {retention!r}"
        raise ConfigurationError(msg)
    for state, seconds in retention.items():
        if state not in FINAL:
            msg = f"onejob_retention has {state!r}; a job ends as one of {', '.join(sorted(FINAL))}"
            raise ConfigurationError(msg)
        check_seconds(f"onejob_retention of {state} jobs", seconds)


def build_ledger(settings: Settings, knows: Callable[[str], bool] | None = None) -> Ledger:
    """Return the ledger that `settings` describe. Raises `ConfigurationError` when they name no store.

    `knows` tells the names of an app's tasks; the others are counted together.
    """
    if not settings.store:
        msg = (
            "onejob has no store for its ledger: neither the result backend nor the broker is one. "
            "Set app.conf.onejob_store, for example to 'sqlite:///onejob.db' or 'redis://localhost:6379/0'"
        )
        raise ConfigurationError(msg)
    store = open_store(settings.store, namespace=settings.namespace)
    retention = dict(RETENTION) | {State(state): seconds for state, seconds in settings.retention.items()}
    policy = Policy(
        crash_limit=settings.crash_limit, retention=retention, tombstone_retention=settings.tombstone_retention
    )
    listeners: list[Listener] = [log] if settings.log_jobs else []
    if not settings.metrics_interval:
        return Ledger(store, policy, _telling(listeners))

    def add(amounts: Mapping[str, float]) -> None:
        ledger.increment(amounts)

    meter = Meter(add, settings.metrics_interval, knows or _knows_none)
    ledger = Ledger(store, policy, _telling([*listeners, meter.count]), at_close=meter.close)
    return ledger


def _telling(listeners: Sequence[Listener]) -> Listener | None:
    """Return what tells all of them; None when there are none."""

    def emit(event: JobEvent) -> None:
        for hear in listeners:
            hear(event)

    return emit if listeners else None


def _knows_none(_task: str) -> bool:
    return False


def _default_store(conf: Mapping[str, Any]) -> str:
    candidates = [conf.get("result_backend"), conf.get("broker_write_url") or conf.get("broker_url")]
    usable = (url for url in candidates if isinstance(url, str) and scheme_of(url) in SCHEMES and ";" not in url)
    return next(usable, "")
