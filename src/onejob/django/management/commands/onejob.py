"""`manage.py onejob ...`: the sub-commands of `onejob`, with the project's Celery app and its ledger."""

from contextlib import redirect_stdout
from types import SimpleNamespace
from typing import Any

import click
from django.core.management.base import BaseCommand, CommandError

from onejob.cli.commands import celery_group
from onejob.django.conf import celery_app
from onejob.errors import ConfigurationError


class Command(BaseCommand):  # type: ignore[misc] # Django ships no types
    """Passes the command line on to `onejob`, and reports errors as `CommandError`."""

    help = "Inspect and operate the project's jobs: manage.py onejob --help"
    requires_system_checks = ()

    def create_parser(self, prog_name: str, subcommand: str, **options: Any) -> Any:
        """Return a parser that takes Django's own options, and leaves all other words as they are."""
        parser = super().create_parser(prog_name, subcommand, add_help=False, allow_abbrev=False, **options)

        def parse(args: Any = None, namespace: Any = None) -> Any:
            known, known.args = parser.parse_known_args(args, namespace)
            return known

        parser.parse_args = parse
        return parser

    def handle(self, *words: str, **_options: Any) -> None:
        """Run a sub-command. Raises `CommandError`, and `SystemExit` where the sub-command has an exit code."""
        try:
            with redirect_stdout(self.stdout._out):  # noqa: SLF001 - the wrapper would end each write with a line
                code = celery_group.main(
                    list(words), "manage.py onejob", obj=SimpleNamespace(app=celery_app()), standalone_mode=False
                )
        except click.ClickException as error:
            context: click.Context | None = getattr(error, "ctx", None)  # set for an error in the command line
            usage = "" if context is None else f"\n{context.get_usage()}"
            raise CommandError(error.format_message() + usage, returncode=error.exit_code) from error
        except (click.Abort, ConfigurationError) as error:
            raise CommandError(str(error) or "aborted") from error
        if isinstance(code, int) and code:
            raise SystemExit(code)
