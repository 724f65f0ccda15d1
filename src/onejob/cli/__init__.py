"""The commands of onejob. `celery` loads this module at each start, also in apps without onejob, so it is small."""

from typing import Any

import click

from onejob.concurrency.worker_options import register_pool

ABOUT = "Inspect and operate the app's onejob jobs."


class LazyCommand(click.Command):
    """The group `onejob` below `celery`, imported when it is used, since other code may patch Celery before."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Return the context of the group itself, whose commands are in it."""
        from onejob.cli.commands import celery_group

        return celery_group.make_context(info_name, args, parent, **extra)


register_pool()  # before `celery` reads its options
celery_command = LazyCommand("onejob", help=ABOUT)
