"""The onejob state of one Celery app: its settings, its ledger and its publisher, each built once per app."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import proxy

from celery import Celery
from celery.app import utils

from onejob.celery.context import Contexts
from onejob.celery.option_names import check_setting_names
from onejob.celery.publisher import Publisher
from onejob.celery.routing import Routing
from onejob.config import Settings, build_ledger
from onejob.ledger.ledger import Ledger
from onejob.stores.django_database import address_of, alias_of
from onejob.webhooks.settings import WebhookSettings

if TYPE_CHECKING:
    from onejob.celery.batching import PerEventLoop
    from onejob.celery.slots import Slots


T = TypeVar("T")
_EAGER = ("task_always_eager", "CELERY_ALWAYS_EAGER")
_ATTRIBUTE = "_onejob_state"
"""Where an app has its state, which lives as long as the app."""


class AppState:
    """The settings, ledger and publisher of one app. Each is read from the app's configuration at first use."""

    def __init__(self, app: Celery) -> None:
        self._app = proxy(app)
        self.can_kill = False
        """Whether this process is the parent of a prefork pool, which can kill the children that run jobs."""
        self.warned_tasks: set[str] = set()
        """The tasks of which a warning was logged that a duplicate's other arguments are not used."""
        self.warned_plain_tasks: set[str] = set()
        """The tasks of which a warning was logged that they have options of `onejob.Task` without its class."""
        self.warned_of_themselves: set[str] = set()
        """The tasks of which a warning was logged that a running job is its own duplicate."""
        self.knows_of_unknown = False
        """Whether a warning was logged that messages of another ledger's jobs arrive here."""
        self.received: dict[tuple[str, str, int], str] = {}
        """In a worker's parent: by exchange, routing key and priority, the id of the message received last."""
        self.slots: Slots | None = None
        """In the parent of a worker that takes jobs from the ledger: how many it can run."""
        self._ledger: Ledger | None = None
        self._place: object = None
        """Where Django had the database of the ledger when it was opened; None for a ledger that stays where it is."""
        self._by_loop: dict[Callable[[Celery], object], PerEventLoop[Any]] = {}

    @property
    def is_eager(self) -> bool:
        """Whether tasks run where they are called: `conf.task_always_eager`, which takes much longer to read."""
        conf: Any = self._app.conf
        if not self._app.configured:  # a look into its mappings would not load it
            return bool(conf.task_always_eager)
        prefix = conf.prefix
        names = _EAGER if not prefix else (*_EAGER, f"{prefix}{_EAGER[0]}", f"{prefix}{_EAGER[0]}".upper())
        for mapping in conf.maps:
            for name in names:
                if name in mapping:
                    return bool(mapping[name])
        return False

    def for_loop(self, make: Callable[[Celery], T]) -> T:
        """Return what `make` returns for the app: made once for each event loop, and the running one's."""
        from onejob.celery.batching import PerEventLoop  # imports asyncio

        if make not in self._by_loop:
            self._by_loop.setdefault(make, PerEventLoop(partial(make, self._app)))
        made: T = self._by_loop[make].current()
        return made

    @cached_property
    def settings(self) -> Settings:
        """The app's settings. Raises `ConfigurationError`."""
        check_setting_names(self._app.conf)
        return Settings.from_mapping(self._app.conf)

    @cached_property
    def webhooks(self) -> WebhookSettings:
        """The app's webhook settings. Raises `ConfigurationError`."""
        return WebhookSettings.from_mapping(self._app.conf, namespace=self.settings.namespace)

    @property
    def ledger(self) -> Ledger:
        """The app's ledger; another one after Django moved its database, as in tests. Raises `ConfigurationError`."""
        ledger = self._ledger
        if ledger is None or (self._place is not None and self._place != address_of(self.settings.store)):
            moved, store = ledger, self.settings.store
            self._place = None if alias_of(store) is None else address_of(store)
            self._ledger = ledger = build_ledger(self.settings, self._has_task)
            if moved is not None:
                moved.close()
        return ledger

    @cached_property
    def django_alias(self) -> str | None:
        """The alias of Django's database whose transactions the ledger joins, or None. Raises `ConfigurationError`."""
        return alias_of(self.settings.store)

    def use(self, ledger: Ledger, publisher: Publisher, django_alias: str | None) -> None:
        """Use this ledger, in the transactions of Django on `django_alias`, and this publisher, as tests do."""
        self._ledger, self._place, self.publisher, self.django_alias = ledger, None, publisher, django_alias

    def close(self) -> None:
        """Close the ledger, if it was opened; its next use opens another one, in whatever database is there then."""
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            ledger.close()

    def owns(self, ledger: Ledger) -> bool:
        """Return whether this is the app's ledger, without opening that."""
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
        """What the app adds to its messages."""
        return Contexts(self._app, self.routing, self.settings.limits)

    @cached_property
    def routing(self) -> Routing:
        """How the app's messages are sent."""
        return Routing(self._app, self.settings.limits)


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
    """Return a configuration for display, as Celery does, with the secrets of onejob hidden, too."""
    hidden: dict[Any, Any] = {
        name: MASK if value and isinstance(name, str) and _HIDDEN.search(name) else value
        for name, value in conf.items()
    }
    filtered: dict[Any, Any] = _celery_filter(hidden)
    return filtered


def install() -> None:
    """Replace Celery's filter. Repeating the call changes nothing."""
    utils.filter_hidden_settings = filter_hidden_settings
