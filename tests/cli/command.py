"""What the tests of the command line share: an app, and a way to run a command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click.testing import CliRunner

from onejob.cli import main

if TYPE_CHECKING:
    from click.testing import Result

APP = """
import celery, onejob
app = celery.Celery("shop", broker="memory://")
app.conf.onejob_store = "sqlite:///{path}"

@app.task(base=onejob.Task, unique_on=["order_id"], shared=False)
def invoice(order_id, note=""): ...
"""


def call(*args: str, text: str | None = None) -> Result:
    """Run the command, with a text at its input."""
    return CliRunner().invoke(main, args, catch_exceptions=False, input=text)
