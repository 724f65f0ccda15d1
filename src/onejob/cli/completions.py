"""`completion`, and the arguments that a shell completes from the ledger: jobs, tasks, workers and queues."""

from __future__ import annotations

import io
from contextlib import closing, redirect_stdout, suppress
from threading import Thread
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from onejob.celery.options import tasks_of
from onejob.cli.access import Access, find_app
from onejob.cli.printing import echo
from onejob.jobs.lifecycle import State
from onejob.jobs.records import Query
from onejob.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from onejob.stores.protocol import Store

TIMEOUT = 1.0
"""Seconds after which a shell gets no completions from a ledger."""
JOBS_LIMIT = 200
"""How many of the newest jobs are completed."""


class FromLedger(click.types.StringParamType):
    """A text that a shell completes. `read` returns the values, and what to say of each."""

    def __init__(self, read: Callable[[Access, Store, click.Context], Iterable[tuple[str, str]]]) -> None:
        self._read = read

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002 - click's signature
        """Return the values that begin with `incomplete`; none without a ledger that answers in time."""
        found: dict[str, str] = {}

        def read() -> None:
            with suppress(Exception):
                access = _access_of(ctx)
                url, namespace = access.place(may_create=False)
                with closing(open_store(url, namespace=namespace)) as store:
                    found.update(self._read(access, store, ctx))

        thread = Thread(target=read, daemon=True)
        with redirect_stdout(io.StringIO()):  # the shell would read what an app prints
            thread.start()
            thread.join(TIMEOUT)
        texts = found.copy() if not thread.is_alive() else {}
        return [CompletionItem(value, help=text) for value, text in texts.items() if value.startswith(incomplete)]


def _access_of(context: click.Context | None) -> Access:
    """Return what the options of an incomplete command line name, of which no command was invoked."""
    given: dict[str, Any] = {}
    while context is not None:
        given = context.params | given
        context = context.parent
    name = given.get("app_name")
    return Access(find_app(name) if name else None, given.get("store"), given.get("namespace"))


def _read_jobs(_access: Access, store: Store, context: click.Context) -> Iterable[tuple[str, str]]:
    is_dead = context.parent is not None and context.parent.info_name == "dead"
    states = frozenset({State.FAILED}) if is_dead else frozenset[State]()
    for job in store.find(Query(limit=JOBS_LIMIT, light=True, states=states)):
        yield job.id, f"{job.task} {job.state}"


def _read_tasks(access: Access, store: Store, _context: click.Context) -> Iterable[tuple[str, str]]:
    of_app = {*tasks_of(access.app)} if access.app is not None else set[str]()
    of_workers = {task for worker in store.workers() for task in worker.tasks}
    of_jobs = {job.task for job in store.find(Query(limit=JOBS_LIMIT, light=True))}
    return [(name, "") for name in sorted(of_app | of_workers | of_jobs)]


def _read_workers(_access: Access, store: Store, _context: click.Context) -> Iterable[tuple[str, str]]:
    return [(worker.name, worker.pool) for worker in store.workers()]


def _read_queues(_access: Access, store: Store, _context: click.Context) -> Iterable[tuple[str, str]]:
    return [(queue, "") for queue in sorted({queue for worker in store.workers() for queue in worker.queues})]


JOB, TASK, WORKER, QUEUE = map(FromLedger, (_read_jobs, _read_tasks, _read_workers, _read_queues))


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script by which a shell completes onejob's commands, options, states, tasks and jobs.

    For bash, in ~/.bashrc: eval "$(onejob completion bash)"
    """
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101 - the choices are click's shells
    echo(kind(context.find_root().command, {}, "onejob", "_ONEJOB_COMPLETE").source())
