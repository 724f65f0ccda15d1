"""The options that several commands share, and their ledger, from a store's URL or from a Celery app."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NoReturn

import click

from onejob import errors
from onejob.celery.submission.options import BoundTask, tasks_of
from onejob.client.audit import Attempt, recorded
from onejob.client.operator import Operator
from onejob.config import NO_STORE, Settings, build_ledger
from onejob.errors import ConfigurationError, OneJobError
from onejob.jobs.lifecycle import State
from onejob.jobs.query import Query
from onejob.jobs.timestamps import parse_day, parse_duration, parse_time, seconds_of
from onejob.ledger.job_filters import FILTERS
from onejob.ledger.ledger import Ledger
from onejob.stores import display_url, missing_file


def together(*options: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return one decorator that adds several options, in this order."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class Parsed(click.ParamType[Any]):
    """The type of an option whose value a function parses; its `ValueError` says what to write instead."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value of a text, or fail."""
        try:
            return self._parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _parse_seconds(text: str) -> float:
    seconds = float(text)
    if not seconds > 0:  # false for NaN, too
        raise ValueError(f"{text} is not in the range x>0")
    return seconds


SECONDS = Parsed("seconds", _parse_seconds)
"""A number of seconds, above 0."""
DURATION = Parsed("duration", parse_duration)
"""A duration such as `90d` or `12h`, in seconds."""
TIME = Parsed("time", parse_time)
"""A time with a time zone, in seconds since the epoch, or a duration before or after now, such as `1h`."""


DAY = Parsed("day", parse_day)
"""A day, such as `2026-01-31`."""


def filter_options(*without: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the filter options except `without`; `query_of` makes a query of their values."""
    kinds: dict[type, dict[str, Any]] = {
        str: {}, State: {"multiple": True, "type": click.Choice([*map(str, State)])}, float: {"type": TIME},
    }  # fmt: skip
    chosen = (each for each in FILTERS if each.name not in without)
    return together(*(click.option(f"--{each.name}", help=each.help, **kinds[each.kind]) for each in chosen))


def at_times(asked: dict[str, Any], now: float) -> dict[str, Any]:
    """Return the given options, also with the value "", and with times instead of durations before now."""
    return {name: seconds_of(value, now) for name, value in asked.items() if value not in {None, ()}}


NEWEST = 1000
"""The number of newest jobs that are searched for a part of an id."""
SOURCE = "cli"
ORIGIN = "at the command line"
logger = logging.getLogger("onejob")


@dataclass
class Access:
    """The options that name the ledger: a Celery app, a store's URL, or both."""

    bare_app: Any = None
    """The app, whose tasks may not be imported yet."""
    given_store: str | None = None
    """The value of `--store` or ONEJOB_STORE."""
    namespace: str | None = None
    app_name: str = ""
    create: bool = False
    """Whether a SQLite file that does not exist is created."""

    @cached_property
    def store(self) -> str | None:
        """The given URL, or else the URL in the file that ONEJOB_STORE_FILE names, such as a mounted secret.

        Raises `ConfigurationError` if the file cannot be read. A command that needs no ledger does not read it.
        """
        name = os.environ.get("ONEJOB_STORE_FILE")
        if self.given_store or not name:
            return self.given_store
        try:
            return Path(name).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            msg = f"ONEJOB_STORE_FILE={name!r} cannot be read: {error}. Name a file with the URL of the ledger"
            raise ConfigurationError(msg) from error

    @cached_property
    def app(self) -> Any:
        """The app, after importing the modules that its configuration names, as a worker does; None without an app.

        Raises `click.ClickException` if such a module cannot be imported.
        """
        try:
            if self.bare_app is not None:
                self.bare_app.loader.import_default_modules()
        except ImportError as error:
            raise click.ClickException(f"a module with tasks of the app cannot be imported: {error}") from error
        return self.bare_app

    def app_for(self, what: str) -> Any:
        """Return the app, since only an app knows `what`. Raises `ConfigurationError` without an app."""
        if self.app is None:
            raise ConfigurationError(f"only an app knows {what}: name one with -A module")
        return self.app

    def ledger(self) -> Ledger:
        """Return the ledger of --store, or else of the app. Raises `ConfigurationError`."""
        settings = self.settings()
        self._check_file(settings.store)
        ledger = build_ledger(settings)
        click.get_current_context().call_on_close(ledger.close)
        return ledger

    def operator(self) -> Operator:
        """Return the operator of the ledger's jobs. Raises `ConfigurationError`."""
        return Operator(app=self.app, ledger=self.ledger(), origin=ORIGIN)

    def submitting(self, what: str) -> Operator:
        """Return an operator that can submit jobs of the app to its ledger; `what`: the thing that only an app knows.

        Raises `ConfigurationError` without an app, and if --store or --namespace name another ledger.
        """
        self.app_for(what)
        self.check_own()
        return self.operator()

    def check_own(self) -> None:
        """Raise `ConfigurationError` if --store or --namespace name another ledger than the app's."""
        own = Settings.from_mapping(self.bare_app.conf)
        if not own.store:
            return
        named = self.settings()
        if (display_url(named.store), named.namespace) != (display_url(own.store), own.namespace):
            raise ConfigurationError(f"the app submits to its own ledger, {own.address}: name no other one")

    def ledger_or_none(self) -> Ledger | None:
        """Return the ledger if it is named and its store can be opened, for a command that can do without; or None."""
        try:
            return self.ledger()
        except OneJobError as error:
            logger.info("no ledger: %s", error)
            return None

    def find_id(self, ledger: Ledger, given: str) -> str:
        """Return the id that begins or ends with a text; a part of an id is enough for the newest jobs.

        Raises `OneJobError` for a text with which several ids begin or end.
        """
        if not given or ledger.get_or_none(given) is not None:  # every id begins with ""
            return given
        newest = ledger.find(Query(limit=NEWEST, light=True))
        short = given.removeprefix("…")
        match [job.id for job in newest if job.id.startswith(given) or job.id.endswith(short)]:
            case [found]:
                return found
            case [first, second, *_]:
                msg = f"several ids begin or end with {given!r}, such as {first} and {second}: give more of it"
                raise OneJobError(msg)
        return given

    def address(self, *, may_create: bool = True) -> tuple[str, str]:
        """Return the URL and the namespace of the ledger. Raises `ConfigurationError`."""
        settings = self.settings()
        if not may_create:
            self._check_file(settings.store)
        return settings.store, settings.namespace

    def task(self, name: str) -> BoundTask:
        """Return a task of the app by name. Raises `ConfigurationError`."""
        tasks = tasks_of(self.app_for("the signature of its tasks"))
        if name not in tasks:
            raise ConfigurationError(f"the app has no onejob task named {name!r}; it has: {', '.join(tasks) or 'none'}")
        return tasks[name]

    def settings(self) -> Settings:
        """Return the settings of --store and --namespace, or else the app's. Raises `ConfigurationError`."""
        # A view of Celery's configuration knows its namespace (CELERY_ONEJOB_STORE) in `get` only.
        settings = Settings.from_mapping({} if self.bare_app is None else self.bare_app.conf)
        settings = replace(settings, store=self.store or settings.store, namespace=self.namespace or settings.namespace)
        if not settings.store:
            msg = "no ledger is named: give --store URL (or set ONEJOB_STORE[_FILE]), or an app with -A module"
            raise ConfigurationError(msg if self.bare_app is None else NO_STORE)
        return settings

    def _check_file(self, url: str) -> None:
        """Raise `ConfigurationError` for a SQLite file that does not exist, since opening it would create it."""
        if not self.create and (path := missing_file(url)) is not None:
            msg = f"there is no ledger at {path} ({url}): correct the path, or add --create to create it"
            raise ConfigurationError(msg)


shared_options = together(
    click.option(
        "--store", "given_store", envvar="ONEJOB_STORE",
        help="URL of the ledger: sqlite:///file, postgresql://host/database, redis://host/0",
    ),
    click.option("--namespace", help="The ledger's schema in PostgreSQL, or key prefix in Redis.  [default: onejob]"),
    click.option("--create", is_flag=True, help="Create the ledger's SQLite file if it does not exist."),
)  # fmt: skip
access = click.make_pass_decorator(Access)
json_access = together(json_option, access)
"""The decorator of commands that use the ledger, and print their results as text or as JSON."""


def find_app(name: str) -> Any:
    """Return the Celery app that `-A` names. Raises `click.ClickException`."""
    from celery.app import utils

    try:
        app = utils.find_app(name)
    except (ImportError, AttributeError, ValueError) as error:
        # Celery also tries `module:attribute` as the name of a module, which hides why the attribute was not found.
        reason = error.__context__ if isinstance(error, ModuleNotFoundError) and error.name == name else error
        raise click.ClickException(f"no Celery app found at {name!r}: {reason or error}") from error
    if not hasattr(app, "conf"):
        msg = f"{name!r} is of class {type(app).__name__}, not a Celery app: name it with -A module:attribute"
        raise click.ClickException(msg)
    return app


@contextmanager
def needs_extra(extra: str, what: str) -> Iterator[None]:
    """Raise `click.ClickException` if a package that this extra installs, and that `what` imports, is missing."""
    try:
        with errors.needs_extra(extra, what):
            yield
    except ImportError as error:
        raise click.ClickException(str(error)) from error


@contextmanager
def audited(ledger: Ledger | None, action: str, target: str, detail: str = "") -> Iterator[Attempt]:
    """Record a block as an action of this user on this host.

    The command prints its result, and then fails if the audit log has no entry of the action.
    """
    with recorded(ledger, action, target, detail, source=SOURCE) as attempt:
        yield attempt
    if attempt.fault is not None:
        click.get_current_context().call_on_close(partial(_fail_unrecorded, f"{action} {target}", attempt.fault))


def _fail_unrecorded(action: str, fault: OneJobError) -> NoReturn:
    raise click.ClickException(f"{action} is done, and the audit log of the ledger has no entry of it: {fault}")
