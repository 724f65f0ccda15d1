"""The `onejob` command, and the same sub-commands below `celery -A app onejob`."""

from typing import Any

import click

from onejob.cli import ABOUT
from onejob.cli.access import Access, find_app, needs_extra, shared_options
from onejob.cli.beat import beat
from onejob.cli.blocks import lift, pause, pauses, resume, strike, strikes
from onejob.cli.installation import doctor, migrate, probe
from onejob.cli.jobs import dead, identity, jobs, why
from onejob.cli.limits import limits
from onejob.cli.printing import clean
from onejob.cli.reports import activity, audit, costs, duplicates, metrics, queues, workers
from onejob.cli.serve import keys, serve
from onejob.errors import OneJobError


class Commands(click.Group):
    """A group whose commands print an error of onejob as one sentence, with exit code 1 (a wrong argument: 2)."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except OneJobError as error:
            if isinstance(error.__cause__, UnicodeEncodeError):  # of a store
                raise _not_utf8(error.__cause__) from error
            one_line = " ".join(str(error).split())  # a driver's error may have several
            access = ctx.find_object(Access)
            if access is not None and access.app_name and not access.given_store:
                one_line = one_line.replace("onejob --store URL", f"onejob -A {access.app_name}")
            raise click.ClickException(clean(one_line)) from error
        except UnicodeEncodeError as error:
            if error.encoding != "utf-8":
                raise
            raise _not_utf8(error) from error
        except click.NoSuchOption as error:
            if error.ctx is ctx or not any(error.option_name in parameter.opts for parameter in self.params):
                raise
            name, command = error.option_name, ctx.invoked_subcommand
            msg = f"{name} stands before the command: onejob {name} ... {command}"
            raise click.UsageError(msg, error.ctx) from error


def _not_utf8(error: UnicodeEncodeError) -> click.UsageError:
    return click.UsageError(f"an argument or an option is not valid UTF-8: {error.object!r:.100}")


@click.group(cls=Commands)
@click.option("-A", "--app", "app_name", help="The Celery app, as for `celery -A`.")
@shared_options
@click.version_option(package_name="onejob")
@click.pass_context
def main(ctx: click.Context, /, app_name: str | None, **options: Any) -> None:
    """Inspect and operate the jobs of a ledger."""
    ctx.obj = Access(find_app(app_name) if app_name else None, app_name=app_name or "", **options)


@click.group(name="onejob", cls=Commands, help=ABOUT)
@shared_options
@click.pass_context
def celery_group(ctx: click.Context, /, **options: Any) -> None:
    """Use the ledger of the app that `celery -A` names."""
    ctx.obj = Access(ctx.obj.app, **options)


@click.command()
@click.option("--documents", type=click.Path(exists=True, file_okay=False), help="A folder of .txt or .md files.")
@click.option("--stay", is_flag=True, help="Keep the demo running, so that its page can be used.")
@click.option("--in-memory", is_flag=True, help="Start no broker: the ledger alone delivers the jobs.")
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="Port of the page.  [default: a free one]")
def demo(documents: str | None, port: int, *, stay: bool, in_memory: bool) -> None:
    """Run the demo: a double click, a killed worker and a resumed job. It needs no server."""
    with needs_extra("demo", "the demo"):
        from onejob.demo.scenario import run_demo
    raise SystemExit(run_demo(documents=documents, stay=stay, port=port, in_memory=in_memory))


for group in (main, celery_group):
    for command in (
        jobs, dead, duplicates, costs, activity, audit, why, identity, workers, queues, beat, pause, resume, pauses,
        strike, lift, strikes, limits, metrics, migrate, doctor,
        demo, serve, keys, probe,
    ):  # fmt: skip
        group.add_command(command)
