"""What the sub-commands work on: the ledger of a store's URL, or of a Celery app."""

from __future__ import annotations

from collections import ChainMap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from onejob.celery.options import tasks_of
from onejob.config import Settings, build_ledger
from onejob.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from onejob.celery.options import BoundTask
    from onejob.ledger.ledger import Ledger


@dataclass
class Access:
    """What the sub-commands work on: a Celery app, a store's URL, or both."""

    app: Any = None
    store: str | None = None
    namespace: str | None = None

    def ledger(self) -> Ledger:
        """Return the ledger of --store, or else of the app. Raises `ConfigurationError`."""
        ledger = build_ledger(self._settings())
        click.get_current_context().call_on_close(ledger.close)
        return ledger

    def place(self) -> tuple[str, str]:
        """Return the URL and the namespace of the ledger. Raises `ConfigurationError`."""
        settings = self._settings()
        return settings.store, settings.namespace

    def task(self, name: str) -> BoundTask:
        """Return a task of the app by name. Raises `ConfigurationError`."""
        if self.app is None:
            msg = "the signature of a task is known to its app: give one with -A module"
            raise ConfigurationError(msg)
        tasks = tasks_of(self.app)
        if name not in tasks:
            msg = f"the app has no onejob task named {name!r}; it has: {', '.join(tasks) or 'none'}"
            raise ConfigurationError(msg)
        return tasks[name]

    def broadcast_cancel(self, job_id: str) -> None:
        """Have the workers of the app, if there is one, end a run at once."""
        if self.app is None:
            return
        from onejob.celery.control import broadcast_cancel

        error = broadcast_cancel(self.app, job_id)
        if error is not None:
            click.echo(f"The workers could not be told ({error}); they learn it with their next heartbeat.", err=True)

    def _settings(self) -> Settings:
        given = {"onejob_store": self.store, "onejob_namespace": self.namespace}
        asked = {key: value for key, value in given.items() if value}
        settings = Settings.from_mapping(asked if self.app is None else ChainMap(asked, self.app.conf))
        if not settings.store:
            msg = "which ledger? Give --store URL (or set ONEJOB_STORE), or an app with -A module"
            raise ConfigurationError(msg)
        return settings


def shared_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say where the ledger is."""
    namespace = click.option(
        "--namespace", help="The ledger's schema in PostgreSQL, or prefix in Redis.  [default: onejob]"
    )
    where = "URL of the ledger: sqlite:///file, postgresql://host/database, redis://host/0"
    return click.option("--store", envvar="ONEJOB_STORE", help=where)(namespace(command))


access = click.make_pass_decorator(Access)


def find_app(name: str) -> Any:
    """Return the Celery app that `-A` names. Raises `click.ClickException`."""
    from celery.app import utils

    try:
        return utils.find_app(name)
    except (ImportError, AttributeError, ValueError) as error:
        msg = f"no Celery app found at {name!r}: {error}"
        raise click.ClickException(msg) from error
