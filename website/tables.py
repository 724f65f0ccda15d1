"""The pages that are made from tables: the commands, the columns of the ledger, the packages beside onejob."""

from __future__ import annotations

import inspect
import re
import sqlite3
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from onejob.cli.commands import main
from onejob.stores import open_store
from onejob.stores.postgres import errors as postgres_errors
from onejob.stores.redis import errors as redis_errors
from onejob.stores.sqlite import errors as sqlite_errors
from tests.works_with.rows import all_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onejob.stores.verdicts import Rule
    from tests.works_with.rows import Row

COMMANDS = """# Commands

This page is generated from the commands by `python -m website generate`; `make lint` compares them.

`onejob` takes the ledger from `--store URL`, from the variable `ONEJOB_STORE`,
from the file that `ONEJOB_STORE_FILE` names, or from the app, `-A APP`.
`celery -A APP onejob` takes it from the app and has the same commands.
"""
SCHEMA = """# Schema

This page is generated from an empty ledger in SQLite by `python -m website generate`; `make lint` compares them.
PostgreSQL has the same tables, with its own types: [PostgreSQL internals](sql.md).
The keys in Redis: [Redis keys](../decisions/0001-redis-keys.md).
The columns are no interface: read jobs by [Python](python.md), [HTTP](../guides/api.md) or [commands](cli.md).
"""
WORKS_WITH = """# Packages beside onejob

Each row was run: the module of `tests/works_with` for the package starts a real app with real workers,
with these versions, and asserts what the row says, also what does not work.
`make test-deep` runs all of them.
The page is generated from these modules by `python -m website generate`; `make lint` compares them.

A package that is not here may work as well:
what a package adds by signals, settings and base classes of Celery is in [Celery's features, A to Z](celery.md).
Unless a row says otherwise, it was run on the newest supported Celery.

| package | what was run | what holds | what to do | what does not work |
|---|---|---|---|---|
"""

ERRORS = """# Errors of the stores

What a store makes of each error of its driver.
This page is generated from the tables of the stores by `python -m website generate`; `make lint` compares them.

| verdict | exception | over HTTP | what to do |
|---|---|---|---|
| ours | `StoreError` | 500 | a bug: report it |
| value | `StoreRefusedError` | 500 | the store can never hold a value of this write; it fails the job that makes it |
| operator | `StoreUnusableError` | 503 `store-unusable` | act as the message says; runs wait, workers go on |
| outage | `StoreUnavailableError` | 503 `store-unavailable` | repeat the call, later |
| busy | `StoreBusyError`, a `StoreUnavailableError` | 503 `store-unavailable` | repeat the call, soon |
| stale | nothing, as a rule | nothing | the operation is repeated on a new connection |

The store itself repeats an operation that is *repeated*, a few times within seconds, before it raises:
each is safe to repeat.
In a transaction of yours it repeats nothing:
there the error is the driver's own, with the sentence of this page as a note
(`error.__notes__`, which a traceback shows).
"""

INDEXES = """
select name, sql from sqlite_master where type = 'index' and tbl_name = ? and sql is not null order by name
"""


def cli() -> str:
    """Return the page of the commands."""
    sections = [_command(path, command) for path, command in _walk(("onejob",), main)]
    return "\n".join([COMMANDS, *sections])


def _walk(path: tuple[str, ...], command: click.Command) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield a command and those below it, with their names."""
    yield path, command
    if isinstance(command, click.Group):
        for name in sorted(command.commands):
            yield from _walk((*path, name), command.commands[name])


def _command(path: tuple[str, ...], command: click.Command) -> str:
    """Return the section of one command."""
    context = click.Context(command, info_name=" ".join(path))
    usage = " ".join([" ".join(path), *command.collect_usage_pieces(context)])
    lines = [f"## {' '.join(path)}", "", _paragraphs(command.help or ""), "", f"Usage: `{usage}`", ""]
    options = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
    if options:
        lines += ["| option | |", "|---|---|", *(_option(option, context) for option in options), ""]
    return "\n".join(lines)


def _paragraphs(text: str) -> str:
    """Return a help text as Markdown: what click is told to leave as it is becomes a block of text."""
    parts = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(f"```text\n{p.removeprefix(chr(8)).strip()}\n```" if p.startswith("\b") else p for p in parts)


def _option(option: click.Option, context: click.Context) -> str:
    """Return the row of one option."""
    names, text = cast("tuple[str, str]", option.get_help_record(context))
    shown = re.sub(r"([\[\]<>*_|])", r"\\\1", " ".join(text.split()))
    return f"| `{names.replace('|', '/')}` | {shown} |"


def errors() -> str:
    """Return the page of the errors of the stores."""
    sections = [
        _rules("PostgreSQL", "SQLSTATE, its class, or exception", postgres_errors.RULES),
        _rules("SQLite", "result code, words, or exception", sqlite_errors.RULES),
        _rules("Redis", "exception of redis-py, code of a reply, or words", redis_errors.RULES),
    ]
    return "\n".join([ERRORS, *sections])


def _rules(store: str, kind: str, rules: dict[str, Rule]) -> str:
    """Return the section of one store."""
    rows = [
        f"| `{name}` | {rule.verdict} | {rule.text} | {rule.remedy} | {'yes' if rule.repeats else ''} |"
        for name, rule in rules.items()
    ]
    head = [f"## {store}", "", f"| {kind} | verdict | it | to do | repeated |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows, ""])


def works_with() -> str:
    """Return the page of the packages beside ours."""
    return WORKS_WITH + "\n".join(map(_works_with, all_rows())) + "\n"


def _works_with(row: Row) -> str:
    names = "<br>".join(package.replace("==", " ") for package in row.packages)
    names += f": {row.feature}" if row.feature else ""
    return f"| {names} | {row.ran} | {row.holds} | {row.do or 'nothing'} | {row.fails or 'nothing was found'} |"


def schema() -> str:
    """Return the page of the tables."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        store = open_store(f"sqlite:///{path}")
        store.get_many(["none"])
        store.close()
        connection = sqlite3.connect(path)
        try:
            return "\n".join([SCHEMA, *_tables(connection)])
        finally:
            connection.close()


def _tables(connection: sqlite3.Connection) -> Iterator[str]:
    """Yield the section of each table."""
    names = "select name from sqlite_master where type = 'table' and name not like 'sqlite_%' order by name"
    for (table,) in connection.execute(names).fetchall():
        yield f"## {table}\n\n| column | type | |\n|---|---|---|"
        rows: list[Any] = connection.execute(f"pragma table_info({table})").fetchall()
        for _, column, kind, required, default, key in rows:
            notes = ["primary key"] if key else []
            notes += ["not null"] if required else []
            notes += [f"default `{default}`"] if default is not None else []
            yield f"| `{column}` | {kind.lower()} | {', '.join(notes)} |"
        for name, sql in connection.execute(INDEXES, [table]).fetchall():
            definition = " ".join(re.sub(r"--.*", "", sql).split()).partition(" on ")[2]
            yield f"\nIndex `{name}` on `{definition}`"
        yield ""
