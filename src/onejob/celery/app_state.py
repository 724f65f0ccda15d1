"""The onejob state of one Celery app: its settings, its ledger and its publisher, each built once per app."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import proxy

from celery import Celery
from celery.app import utils

from onejob.celery.messages.context import Contexts
from onejob.celery.messages.publisher import Publisher
from onejob.celery.messages.routing import Routing
from onejob.celery.option_declarations import check_setting_names
from onejob.config import Settings, build_ledger
from onejob.errors import ConfigurationError, StoreError
from onejob.jobs.limits import Limit
from onejob.jobs.model import JobRow
from onejob.ledger.blocks import BlockCache
from onejob.ledger.budgets import SpentToday, read_spent
from onejob.ledger.ledger import Ledger
from onejob.ledger.limit_operations import Freeing
from onejob.observability.logs import log_warning
from onejob.observability.meter import METRICS_INTERVAL
from onejob.stores import display_url
from onejob.stores.django_database import address_of, alias_of
from onejob.webhooks.job import SCHEDULE
from onejob.webhooks.settings import WebhookSettings

if TYPE_CHECKING:
    from onejob.celery.slots import Slots
    from onejob.concurrency.batching import PerEventLoop


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """The seconds between two rounds of each work in the background. They are no settings: only tests change them."""

    heartbeat: float = 10.0
    """The longest interval of heartbeats; a third of the lease is the interval if it is shorter."""
    sweep: float = 1.0
    """The interval of a worker's sweeps, and of its looks at the beat schedule."""
    metrics: float = METRICS_INTERVAL
    """The interval at which a process adds its counts to the totals in the store."""
    silence: float = 15.0
    """The time without a message after which a worker with free slots takes published jobs from the ledger."""
    webhooks: tuple[float, ...] = SCHEDULE
    """The pauses between the attempts of a webhook."""


T = TypeVar("T")
BUDGET_SECONDS = 1.0
"""Seconds after which a process knows what has been spent meanwhile."""
HEARTBEATS_PER_LEASE = 3
"""How often a worker renews a lease in the time of that lease."""
_EAGER = ("task_always_eager", "CELERY_ALWAYS_EAGER")
_ATTRIBUTE = "_onejob_state"
"""The attribute in which an app has its state, which lives as long as the app."""


class AppState:
    """The settings, ledger and publisher of one app, each made from the app's configuration at first use."""

    def __init__(self, app: Celery) -> None:
        self._app = proxy(app)
        self.intervals = Intervals()
        """The intervals of background work. Tests replace them before a worker starts, and before the ledger opens."""
        self.can_kill = False
        """Whether this process is the parent of a prefork pool, which can kill the children that run jobs."""
        self.limits: dict[str, tuple[Limit, str]] = {}
        """The limits of the app's tasks by name, each with a task that has it."""
        self._defined_limits: dict[str, tuple[Limit, str]] = {}
        self.warned_tasks: set[str] = set()
        """The tasks for which a warning was logged: a duplicate's other arguments are not used."""
        self.warned_plain_tasks: set[str] = set()
        """The tasks for which a warning was logged: they have options of `onejob.Task` without its class."""
        self.warned_of_themselves: set[str] = set()
        """The tasks for which a warning was logged: a running job is its own duplicate."""
        self.knows_of_unknown = False
        """Whether a warning was logged that messages of another ledger's jobs arrive here."""
        self.blocks = BlockCache(lambda: self.ledger, time.monotonic)
        """The pauses and strikes, which a claim obeys."""
        self.received: dict[tuple[str, str, int], str] = {}
        """The ids of the messages received last, by exchange, routing key and priority: in a worker's parent."""
        self.is_fed = False
        """Whether the pool of this worker takes jobs from the ledger by itself, instead of the worker's consumer."""
        self.wake_feed: Callable[[], object] = lambda: None
        """Lets such a pool look for jobs; any thread may call it."""
        self.slots: Slots | None = None
        """The slots of a worker that takes jobs from the ledger, in its parent: how many more jobs it can run."""
        self._ledger: Ledger | None = None
        self._place: object = None
        """The address of the ledger's database in Django when the ledger was opened; None: the ledger never moves."""
        self._read_from: tuple[Any, int, list[tuple[str, Any]]] | None = None
        """The configuration from which settings were read, how many values it had, and its values for onejob."""
        self._by_loop: dict[Callable[[Celery], object], PerEventLoop[Any]] = {}

    @property
    def is_eager(self) -> bool:
        """Whether tasks run where they are called: the value of `conf.task_always_eager`, read much faster."""
        conf: Any = self._app.conf
        if not self._app.configured:  # a look into its mappings would not load it
            return bool(conf.task_always_eager)
        if self._read_from is not None:  # in each submission: without a call, as long as nothing has changed
            read_from, count, given = self._read_from
            changes = conf.changes
            if read_from is not conf or len(changes) != count:
                self.refresh()
            else:
                for name, value in given:
                    if changes.get(name) is not value:
                        self.refresh()  # which reads all of them
                        break
        prefix = conf.prefix
        names = _EAGER if not prefix else (*_EAGER, f"{prefix}{_EAGER[0]}", f"{prefix}{_EAGER[0]}".upper())
        for mapping in conf.maps:
            for name in names:
                if name in mapping:
                    return bool(mapping[name])
        return False

    def for_loop(self, make: Callable[[Celery], T]) -> T:
        """Return the value of `make` for the app and the running event loop; call `make` once per loop."""
        from onejob.concurrency.batching import PerEventLoop  # imports asyncio

        if make not in self._by_loop:
            self._by_loop.setdefault(make, PerEventLoop(partial(make, self._app)))
        made: T = self._by_loop[make].current()
        return made

    @cached_property
    def settings(self) -> Settings:
        """The app's settings. Raises `ConfigurationError`."""
        conf: Any = self._app.conf
        self._read_from = _given_in(conf)
        check_setting_names(conf)
        return Settings.from_mapping(conf)

    @property
    def heartbeat(self) -> float:
        """Seconds between two heartbeats of a worker whose tasks have no shorter lease than the app."""
        return min(self.intervals.heartbeat, self.settings.lease / HEARTBEATS_PER_LEASE)

    @cached_property
    def webhooks(self) -> WebhookSettings:
        """The app's webhook settings. Raises `ConfigurationError`."""
        return WebhookSettings.from_mapping(self._app.conf)

    @cached_property
    def spent(self) -> Callable[[], SpentToday]:
        """Returns the costs of the submitters today, as they were read within the last second. Raises `StoreError`."""
        from onejob.concurrency.batching import TTLCache  # imports asyncio

        return TTLCache(lambda: read_spent(self.ledger), BUDGET_SECONDS)

    def refresh(self) -> None:
        """Read the settings again if the app has changed any since: in a hook of the worker, or after a task was bound.

        Raises `ConfigurationError` if a setting has changed while the ledger, which has the old value, is open.
        """
        if "settings" not in self.__dict__:
            return
        conf: Any = self._app.conf
        check_setting_names(conf)
        settings = Settings.from_mapping(conf)
        pairs: list[tuple[str, Any, Any]] = [("onejob_", self.settings, settings)]
        if "webhooks" in self.__dict__:
            webhooks = WebhookSettings.from_mapping(conf)
            pairs.append(("onejob_webhook_", self.webhooks, webhooks))
        changed = [each for prefix, old, new in pairs for each in _differing(prefix, old, new)]
        if changed and self._ledger is not None:
            raise ConfigurationError(
                f"{'; '.join(changed)}: the ledger of the app was opened with the earlier value. Set it before the "
                "first job is submitted or read, where the app is configured, or in celeryd_init or worker_init"
            )
        self._read_from = _given_in(conf)
        if not changed:
            return
        for name in ("settings", "webhooks", "publisher", "contexts", "routing", "django_alias"):
            self.__dict__.pop(name, None)
        for task in [*self._app._tasks.values()]:  # noqa: SLF001 - `tasks` would define those that nothing has used yet
            if (resolve := getattr(type(task), "_onejob_resolve", None)) is not None:
                resolve(self._app)

    def _freeing_by(self, ledger: Ledger) -> Ledger:
        """Have a ledger send the messages of the jobs that have waited for room, and return it."""
        ledger.freeing = Freeing(lambda: self.publisher.handover.way, self._publish_freed, _report_unfreed)
        return ledger

    def _publish_freed(self, jobs: Sequence[JobRow]) -> None:
        self.publisher.publish_stored(jobs)  # of the app as it is configured then

    def define_limits(self) -> None:
        """Write the definitions of the limits of the app's tasks to the ledger, unless this process has done so."""
        if self.limits != self._defined_limits:
            defined = dict(self.limits)
            self.ledger.define_limits([limit.value() for limit, _ in defined.values()])
            self._defined_limits = defined

    def add_limits(self, task: str, limits: Sequence[Limit]) -> None:
        """Add the limits of a task. Raises `ConfigurationError` if another task has one with another value."""
        for limit in limits:
            known, owner = self.limits.get(limit.name, (limit, task))
            if owner != task and known.value() != limit.value():
                raise ConfigurationError(
                    f"limit {limit.name} of task {task} is {limit.value().text}, and that of task {owner} is "
                    f"{known.value().text}: tasks share a limit by its name, so give both one value, or two names"
                )
            self.limits[limit.name] = (limit, owner)

    @property
    def ledger(self) -> Ledger:
        """The app's ledger; opened again after Django moved its database, as in tests. Raises `ConfigurationError`."""
        ledger = self._ledger
        if ledger is None:
            self.refresh()
        if ledger is None or (self._place is not None and self._place != address_of(self.settings.store)):
            moved, store = ledger, self.settings.store
            self._place = None if alias_of(store) is None else address_of(store)
            ledger = build_ledger(self.settings, self._has_task, metrics_interval=self.intervals.metrics)
            self._ledger = self._freeing_by(ledger)
            if moved is not None:
                moved.close()
        return ledger

    @cached_property
    def django_alias(self) -> str | None:
        """The alias of Django's database whose transactions the ledger joins, or None. Raises `ConfigurationError`."""
        return alias_of(self.settings.store)

    def use(self, ledger: Ledger, publisher: Publisher, django_alias: str | None) -> None:
        """Replace the ledger, the publisher, and the alias of Django's database whose transactions the ledger joins."""
        self._ledger, self._place, self.publisher, self.django_alias = ledger, None, publisher, django_alias
        self._freeing_by(ledger)

    def close(self) -> None:
        """Close the ledger, if it is open; its next use opens it again, in the database that is configured then."""
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            ledger.close()

    def owns(self, ledger: Ledger) -> bool:
        """Return whether a ledger is the app's, without opening the app's ledger."""
        return self._ledger is ledger

    def _has_task(self, task: str) -> bool:
        try:
            return task in self._app.tasks
        except ReferenceError:  # the app was garbage-collected, and its ledger is still in use
            return False

    @cached_property
    def publisher(self) -> Publisher:
        """The app's publisher."""
        timeout, contexts = self.settings.publish_timeout, self.contexts
        return Publisher(self._app, timeout, self.routing, contexts, lambda: self.ledger)

    @cached_property
    def contexts(self) -> Contexts:
        """The contexts of the app's submissions: the headers that the app adds to messages."""
        return Contexts(self._app, self.routing, self.settings.limits)

    @cached_property
    def routing(self) -> Routing:
        """The routes of the app's messages."""
        return Routing(self._app, self.settings.limits)


def _report_unfreed(error: StoreError) -> None:
    log_warning("jobs that wait for room on keys of limits are looked at again within seconds: %s", error)


def _given_in(conf: Any) -> tuple[Any, int, list[tuple[str, Any]]]:
    """Return a configuration, how many values the app has set in it, and the set values that belong to onejob."""
    ours = [(name, conf.changes.get(name)) for name in conf.changes if "onejob_" in str(name).lower()]
    return conf, len(conf.changes), ours


def _differing(prefix: str, old: Any, new: Any) -> Iterator[str]:
    """Yield a sentence for each difference of two groups of settings, without their secrets."""
    for field in fields(old):
        name, values = f"{prefix}{field.name}", [getattr(each, field.name) for each in (old, new)]
        if values[0] == values[1]:
            continue
        if name == "onejob_store":
            values = [display_url(each) if each else "not set" for each in values]
        elif _HIDDEN.search(name):
            values = [MASK, "another value"]
        yield f"{name} was {values[0]!r:.100} when it was first read, and is {values[1]!r:.100} now"


def app_state_of(app: Celery) -> AppState:
    """Return the state of an app."""
    try:
        return app.__dict__[_ATTRIBUTE]  # type: ignore[no-any-return]
    except KeyError:
        return app.__dict__.setdefault(_ATTRIBUTE, AppState(app))  # type: ignore[no-any-return]


# --- secrets in reports of the settings ------------------------------------------------------------------------------


MASK = "********"
_HIDDEN = re.compile(r"onejob_(store|webhook_\w*secrets\w*)$", re.IGNORECASE)
_celery_filter = utils.filter_hidden_settings


def filter_hidden_settings(conf: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a configuration for display, in place of Celery's filter, with the secrets of onejob hidden, too."""
    hidden: dict[Any, Any] = {
        name: MASK if value and isinstance(name, str) and _HIDDEN.search(name) else value
        for name, value in conf.items()
    }
    filtered: dict[Any, Any] = _celery_filter(hidden)
    return filtered


def install() -> None:
    """Replace Celery's filter of displayed settings. Repeating the call changes nothing."""
    utils.filter_hidden_settings = filter_hidden_settings
