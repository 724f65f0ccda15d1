"""What one Celery app needs of onejob: its settings, its ledger and its publisher, each built once and never shared."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, proxy

from onejob.celery.publisher import Publisher
from onejob.config import Settings, build_ledger
from onejob.webhooks.settings import WebhookSettings

if TYPE_CHECKING:
    from celery import Celery

    from onejob.ledger.ledger import Ledger


class AppState:
    """The onejob side of one app, read from its configuration at first use."""

    def __init__(self, app: Celery) -> None:
        self._app = proxy(app)
        self.can_kill = False
        """Whether this process is a worker's parent whose pool runs jobs in children that it may end."""

    @cached_property
    def settings(self) -> Settings:
        """The app's settings. Raises `ConfigurationError`."""
        return Settings.from_mapping(self._app.conf)

    @cached_property
    def webhooks(self) -> WebhookSettings:
        """The app's settings of webhooks. Raises `ConfigurationError`."""
        return WebhookSettings.from_mapping(self._app.conf, namespace=self.settings.namespace)

    @cached_property
    def ledger(self) -> Ledger:
        """The app's ledger. Raises `ConfigurationError`."""
        return build_ledger(self.settings, self._knows)

    def _knows(self, task: str) -> bool:
        try:
            return task in self._app.tasks
        except ReferenceError:  # the app is gone, and its ledger is still in use
            return False

    @cached_property
    def publisher(self) -> Publisher:
        """The app's publisher."""
        return Publisher(self._app, self.settings.publish_timeout)


_app_states: WeakKeyDictionary[Celery, AppState] = WeakKeyDictionary()


def app_state_of(app: Celery) -> AppState:
    """Return the runtime of an app."""
    app_state = _app_states.get(app)
    if app_state is None:
        app_state = _app_states.setdefault(app, AppState(app))
    return app_state
