"""What one Celery app needs of onejob: its settings, its ledger and its publisher, each built once and never shared."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, proxy

from onejob.callbacks.settings import CallbackSettings
from onejob.celery.message import Publisher
from onejob.config import Settings, build_ledger

if TYPE_CHECKING:
    from celery import Celery

    from onejob.ledger import Ledger


class Runtime:
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
    def callbacks(self) -> CallbackSettings:
        """The app's settings of callbacks. Raises `ConfigurationError`."""
        return CallbackSettings.from_mapping(self._app.conf, namespace=self.settings.namespace)

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


_runtimes: WeakKeyDictionary[Celery, Runtime] = WeakKeyDictionary()


def runtime_of(app: Celery) -> Runtime:
    """Return the runtime of an app."""
    runtime = _runtimes.get(app)
    if runtime is None:
        runtime = _runtimes.setdefault(app, Runtime(app))
    return runtime
