"""The `onejob` command, and the same sub-commands below `celery -A app onejob`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from onejob.config import Settings, build_ledger
from onejob.errors import ConfigurationError, OneJobError
from onejob.job import Query
from onejob.lifecycle import State
from onejob.why import explain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from onejob.job import Job
    from onejob.ledger import Ledger

COLUMNS = ("id", "state", "task", "attempt", "duplicates", "reason")


@dataclass
class Access:
    """What the sub-commands work on: a Celery app, a store's URL, or both."""

    app: Any = None
    store: str | None = None
    prefix: str | None = None

    def ledger(self) -> Ledger:
        """Return the ledger of --store, or else of the app. Raises `ConfigurationError`."""
        settings = self._settings()
        if not settings.store:
            msg = "which ledger? Give --store URL (or set ONEJOB_STORE), or an app with -A module"
            raise ConfigurationError(msg)
        return build_ledger(settings)

    def task(self, name: str) -> Any:
        """Return a task of the app by name. Raises `ConfigurationError`."""
        if self.app is None:
            msg = "the signature of a task is known to its app: give one with -A module"
            raise ConfigurationError(msg)
        task = self.app.tasks.get(name)
        if task is None or not hasattr(task, "identifier"):
            ours = ", ".join(sorted(n for n, t in self.app.tasks.items() if hasattr(t, "identifier"))) or "none"
            msg = f"the app has no onejob task named {name!r}; it has: {ours}"
            raise ConfigurationError(msg)
        return task

    def _settings(self) -> Settings:
        conf: dict[str, Any] = {}
        if self.app is not None:
            keys = ("onejob_store", "onejob_key_prefix", "result_backend", "broker_write_url", "broker_url")
            conf = {key: self.app.conf.get(key) for key in keys}
        given = {"onejob_store": self.store, "onejob_key_prefix": self.prefix}
        return Settings.from_mapping(conf | {key: value for key, value in given.items() if value})


class Friendly(click.Group):
    """A group whose commands tell an error of onejob as a sentence, with exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except OneJobError as error:
            raise click.ClickException(str(error)) from error


def shared_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say where the ledger is."""
    prefix = click.option("--prefix", help="Key prefix of the ledger in Redis.  [default: onejob]")
    store = click.option("--store", envvar="ONEJOB_STORE", help="URL of the ledger: sqlite:///file, redis://host/0")
    return store(prefix(command))


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
access = click.make_pass_decorator(Access)


@click.group(cls=Friendly)
@click.option("-A", "--app", "app_name", help="The Celery app, as for `celery -A`.")
@shared_options
@click.version_option(package_name="onejob")
@click.pass_context
def main(ctx: click.Context, app_name: str | None, store: str | None, prefix: str | None) -> None:
    """Look at the jobs of a ledger, and at why they are where they are."""
    ctx.obj = Access(_find_app(app_name) if app_name else None, store, prefix)


@click.group(name="onejob", cls=Friendly)
@shared_options
@click.pass_context
def celery_group(ctx: click.Context, store: str | None, prefix: str | None) -> None:
    """Look at onejob's jobs, and at why they are where they are."""
    ctx.obj = Access(ctx.obj.app, store, prefix)


# --- jobs -----------------------------------------------------------------------------------------------------------


@click.group()
def jobs() -> None:
    """List, show and cancel jobs."""


@jobs.command("list")
@click.option("--state", "states", multiple=True, type=click.Choice([str(s) for s in State]), help="May be repeated.")
@click.option("--task", help="Name of a task.")
@click.option("--identity", help="Identity, as `onejob identity` prints it.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 1000))
@json_option
@access
def list_jobs(
    access: Access, states: Sequence[str], task: str | None, identity: str | None, limit: int, *, as_json: bool
) -> None:
    """List jobs, newest first."""
    query = Query(states=frozenset(State(s) for s in states), task=task, identity=identity, limit=limit)
    found = access.ledger().find(query)
    if as_json:
        _print_json([_job_as_json(job) for job in found])
    else:
        _print_table(found)


@jobs.command()
@click.argument("job_id")
@json_option
@access
def show(access: Access, job_id: str, *, as_json: bool) -> None:
    """Show one job."""
    _print_job(access.ledger().get(job_id), as_json=as_json)


@jobs.command()
@click.argument("job_id")
@click.option("--force", is_flag=True, help="End a running job at once instead of asking it to stop.")
@json_option
@access
def cancel(access: Access, job_id: str, *, force: bool, as_json: bool) -> None:
    """Cancel a job: at once before it runs, by asking it to stop otherwise."""
    job = access.ledger().cancel(job_id, force=force, reason="canceled at the command line")
    _print_job(job, as_json=as_json)


# --- understanding --------------------------------------------------------------------------------------------------


@click.command()
@click.argument("job_id")
@json_option
@access
def why(access: Access, job_id: str, *, as_json: bool) -> None:
    """Tell the history of a job in sentences."""
    ledger = access.ledger()
    job, history = ledger.get(job_id), ledger.history(job_id)
    if as_json:
        _print_json({"job": _job_as_json(job), "history": [asdict(entry) for entry in history]})
        return
    for sentence in explain(job, history):
        click.echo(sentence)


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("task")
@click.argument("args", nargs=-1)
@json_option
@access
def identity(access: Access, task: str, args: Sequence[str], *, as_json: bool) -> None:
    """Print what is hashed to make the identity of a call, and the identity.

    ARGS are JSON values or plain text; name=value gives a keyword argument.
    """
    identifier = access.task(task).identifier
    positional, keywords = _parse(args)
    text, result = identifier.describe(positional, keywords), identifier.identity(positional, keywords)
    if as_json:
        _print_json({"hashed": text, "identity": result})
    else:
        click.echo(f"hashed:   {text}\nidentity: {result}")


def _parse(args: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
    """Split words into positional and keyword arguments, each JSON or plain text."""
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for word in args:
        name, equals, value = word.partition("=")
        if equals and name.isidentifier():
            keywords[name] = _value(value)
        else:
            positional.append(_value(word))
    return positional, keywords


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


# --- the demo -------------------------------------------------------------------------------------------------------


@click.command()
@click.option("--documents", type=click.Path(exists=True, file_okay=False), help="A folder of .txt or .md files.")
@click.option("--stay", is_flag=True, help="Keep the demo up, to play with its page.")
@click.option("--in-memory", is_flag=True, help="Start no broker: let the ledger do without.")
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="Port of the page.  [default: a free one]")
def demo(documents: str | None, port: int, *, stay: bool, in_memory: bool) -> None:
    """Play the double click, a killed worker and the resumed job, with no server to install."""
    try:
        from onejob.demo.supervisor import run_demo
    except ImportError as error:
        msg = f'the demo needs more than the library ({error.name} is missing): pip install "onejob[demo]"'
        raise click.ClickException(msg) from error
    raise SystemExit(run_demo(documents=documents, stay=stay, port=port, in_memory=in_memory))


for group in (main, celery_group):
    for command in (jobs, why, identity):
        group.add_command(command)
main.add_command(demo)


# --- printing -------------------------------------------------------------------------------------------------------


def _job_as_json(job: Job) -> dict[str, Any]:
    """Return a job with its JSON texts opened; its arguments stay in `payload`."""
    opened = ("payload", "progress", "result", "error")
    return {k: json.loads(v) if k in opened and v is not None else v for k, v in asdict(job).items()}


def _print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _print_job(job: Job, *, as_json: bool) -> None:
    if as_json:
        _print_json(_job_as_json(job))
        return
    for name, value in _job_as_json(job).items():
        if value is not None and value != "":
            click.echo(f"{name:>12}  {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")


def _print_table(found: Sequence[Job]) -> None:
    cells = [list(COLUMNS), *([str(getattr(job, name))[:80] for name in COLUMNS] for job in found)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(COLUMNS))]
    for row in cells:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _find_app(name: str) -> Any:
    from celery.app.utils import find_app

    try:
        return find_app(name)
    except (ImportError, AttributeError, ValueError) as error:
        msg = f"no Celery app found at {name!r}: {error}"
        raise click.ClickException(msg) from error
