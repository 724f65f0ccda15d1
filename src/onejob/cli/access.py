"""The options that several commands have; and the ledger that they work on: of a store's URL, or of a Celery app."""

from __future__ import annotations

import getpass
import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from onejob.celery.options import BoundTask, tasks_of
from onejob.cli.printing import echo
from onejob.config import NO_STORE, Settings, build_ledger
from onejob.errors import ConfigurationError, OneJobError
from onejob.jobs.lifecycle import State
from onejob.jobs.model import Job
from onejob.jobs.records import AuditEntry, Query
from onejob.jobs.timestamps import parse_duration, parse_timestamp
from onejob.ledger.ledger import Ledger
from onejob.ledger.search import FILTERS, Filter
from onejob.observability.logs import record_audit
from onejob.stores import display_url, kind_of, sqlite_path
from onejob.stores.django_database import resolve


def together(*options: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return one decorator that adds several options, in this order."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class Duration(click.ParamType[float]):
    """A duration such as `90d` or `12h`, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds; fail with the units."""
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Time(click.ParamType["float | timedelta"]):
    """A time with a time zone, as RFC 3339 has it, or a duration before or after now, such as `1h`."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | timedelta:
        """Return seconds since the epoch, or the duration; fail with an example of both formats."""
        with suppress(ValueError):
            return timedelta(seconds=parse_duration(str(value)))
        try:
            return parse_timestamp(value)
        except ValueError as error:
            self.fail(f"{error}, nor a duration such as 90m, 1h or 1d", param, ctx)


def seconds_of(at: float | timedelta | None, now: float, sign: int = -1) -> float | None:
    """Return a time in seconds since the epoch: a duration before now, or after it with a positive sign."""
    return now + sign * at.total_seconds() if isinstance(at, timedelta) else at


def filter_options(*without: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the decorator that adds the options that filter jobs, without some; `query_of` makes a query of them."""
    return together(*(_option_of(each) for each in FILTERS if each.name not in without))


def _option_of(each: Filter) -> Callable[..., Any]:
    kinds: dict[type, dict[str, Any]] = {
        State: {"multiple": True, "type": click.Choice([each.value for each in State])}, float: {"type": Time()},
    }  # fmt: skip
    return click.option(f"--{each.name}", help=each.help, **kinds.get(each.kind, {}))


def at_times(asked: dict[str, Any], now: float) -> dict[str, Any]:
    """Return the values of the options that were given, "" too, with times before now instead of durations."""
    return {name: seconds_of(value, now) for name, value in asked.items() if value not in {None, ()}}


NEWEST = 1000
"""How many of the newest jobs are searched for the beginning of an id."""
SOURCE = "cli"
"""The source of entries of the audit log."""
logger = logging.getLogger("onejob")


@dataclass
class Access:
    """The options that name the ledger: a Celery app, a store's URL, or both."""

    bare_app: Any = None
    """The app, whose tasks may not be imported yet."""
    store: str | None = None
    namespace: str | None = None
    app_name: str = ""
    """What `-A` has."""
    create: bool = False
    """Whether a SQLite file that does not exist is created."""

    @cached_property
    def app(self) -> Any:
        """The app with its tasks, as a worker has it; None without one. Raises `click.ClickException`."""
        return None if self.bare_app is None else with_tasks(self.bare_app)

    def ledger(self) -> Ledger:
        """Return the ledger of --store, or else of the app. Raises `ConfigurationError`."""
        settings = self.settings()
        self._check_file(settings.store)
        ledger = build_ledger(settings)
        click.get_current_context().call_on_close(ledger.close)
        return ledger

    def report_if_empty(self, ledger: Ledger, found: Sequence[Job]) -> None:
        """Print, if nothing was found, that nothing at all is stored at this address, which may be a wrong one."""
        if not found and not any(ledger.counts(Query()).values()) and not ledger.workers():
            settings = self.settings()
            address = f"{display_url(settings.store)}, namespace {settings.namespace}"
            echo(f"There is no ledger here, or an empty one: {address}. Check --store and --namespace", err=True)

    def ledger_or_none(self) -> Ledger | None:
        """Return the ledger if one is named and its store can be opened, for a command that needs none."""
        try:
            return self.ledger()
        except OneJobError as error:
            logger.info("no ledger: %s", error)
            return None

    def find_id(self, ledger: Ledger, given: str) -> str:
        """Return the id that begins with a text, which may be short if it is that of one of the newest jobs.

        Raises `OneJobError` for a text with which several of them begin.
        """
        if not given or ledger.get_or_none(given) is not None:  # every id begins with ""
            return given
        newest = ledger.find(Query(limit=NEWEST, light=True))
        match [job.id for job in newest if job.id.startswith(given)]:
            case [found]:
                return found
            case [first, second, *_]:
                raise OneJobError(f"several ids begin with {given!r}, such as {first} and {second}: give more of it")
        return given

    def address(self, *, may_create: bool = True) -> tuple[str, str]:
        """Return the URL and the namespace of the ledger. Raises `ConfigurationError`."""
        settings = self.settings()
        if not may_create:
            self._check_file(settings.store)
        return settings.store, settings.namespace

    def task(self, name: str) -> BoundTask:
        """Return a task of the app by name. Raises `ConfigurationError`."""
        if self.app is None:
            raise ConfigurationError("only an app knows the signature of its tasks: name one with -A module")
        tasks = tasks_of(self.app)
        if name not in tasks:
            raise ConfigurationError(f"the app has no onejob task named {name!r}; it has: {', '.join(tasks) or 'none'}")
        return tasks[name]

    def settings(self) -> Settings:
        """Return the settings of --store and --namespace, and else those of the app. Raises `ConfigurationError`."""
        # A view of Celery's configuration knows its namespace (CELERY_ONEJOB_STORE) in `get` only.
        settings = Settings.from_mapping({} if self.bare_app is None else self.bare_app.conf)
        settings = replace(settings, store=self.store or settings.store, namespace=self.namespace or settings.namespace)
        if not settings.store:
            msg = "no ledger is named: give --store URL (or set ONEJOB_STORE[_FILE]), or an app with -A module"
            raise ConfigurationError(msg if self.bare_app is None else NO_STORE)
        return settings

    def _check_file(self, url: str) -> None:
        """Raise `ConfigurationError` for a SQLite file that does not exist, since opening it would create it."""
        if self.create or kind_of(url) != "sqlite":
            return
        path = Path(sqlite_path(resolve(url)))
        if not path.exists():
            msg = f"there is no ledger at {path.absolute()} ({url}): correct the path, or add --create to create it"
            raise ConfigurationError(msg)


def _from_file(_context: click.Context, _option: click.Parameter, url: str | None) -> str | None:
    """Return the URL of a store; that in the file which ONEJOB_STORE_FILE names, a mounted secret, if none is given."""
    name = os.environ.get("ONEJOB_STORE_FILE")
    if url or not name:
        return url
    try:
        return Path(name).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        msg = f"ONEJOB_STORE_FILE={name!r} cannot be read: {error}. Name a file with the URL of the ledger"
        raise click.ClickException(msg) from error


shared_options = together(
    click.option(
        "--store", envvar="ONEJOB_STORE", callback=_from_file,
        help="URL of the ledger: sqlite:///file, postgresql://host/database, redis://host/0",
    ),
    click.option("--namespace", help="The ledger's schema in PostgreSQL, or key prefix in Redis.  [default: onejob]"),
    click.option("--create", is_flag=True, help="Create the ledger's SQLite file if it does not exist."),
)  # fmt: skip
"""The options that name the ledger."""
access = click.make_pass_decorator(Access)
json_access = together(json_option, access)
"""What a command has that reads or changes the ledger, and prints what it finds as text or as JSON."""


def find_app(name: str) -> Any:
    """Return the Celery app that `-A` names. Raises `click.ClickException`."""
    from celery.app import utils

    try:
        app = utils.find_app(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise click.ClickException(f"no Celery app found at {name!r}: {error}") from error
    if not hasattr(app, "conf"):
        msg = f"{name!r} is of class {type(app).__name__}, not a Celery app: name it with -A module:attribute"
        raise click.ClickException(msg)
    return app


def with_tasks(app: Any) -> Any:
    """Return a Celery app with its tasks: `include`, `imports` and `autodiscover_tasks` name their modules.

    Raises `click.ClickException` if one of these cannot be imported.
    """
    try:
        app.loader.import_default_modules()
    except ImportError as error:
        raise click.ClickException(f"a module with tasks of the app cannot be imported: {error}") from error
    return app


@contextmanager
def needs_extra(extra: str, what: str) -> Iterator[None]:
    """Raise `click.ClickException` if a package that this extra installs, and that `what` imports, is missing."""
    try:
        yield
    except ImportError as error:
        msg = f'{what} needs additional packages ({error.name} is missing): pip install "onejob[{extra}]"'
        raise click.ClickException(msg) from error


@dataclass(slots=True)
class Attempt:
    """What is recorded of an action."""

    outcome: str = "done"


@contextmanager
def audited(ledger: Ledger | None, action: str, target: str, detail: str = "") -> Iterator[Attempt]:
    """Record what happens in a block, done or refused, as the action of this user on this host."""
    attempt = Attempt()
    try:
        yield attempt
    except OneJobError as error:
        attempt.outcome = f"refused: {error}"
        raise
    finally:
        entry = AuditEntry(
            actor=_user(), source=SOURCE, address=socket.gethostname(), action=action, target=target,
            outcome=attempt.outcome, detail=detail,
        )  # fmt: skip
        record_audit(None if ledger is None else ledger.append_audit, entry)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may run under a user id without a name
        return f"uid {os.getuid()}"
