"""What the tests of `onejob doctor` share: an installation at a URL, and the names of its findings."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from onejob.config import Settings, build_ledger
from onejob.health.finding import Finding, Installation, Level
from tests.services import client_program


@contextmanager
def installed(url: str, namespace: str = "onejob") -> Iterator[Installation]:
    settings = Settings(store=url, namespace=namespace)
    ledger = build_ledger(settings)
    yield Installation(settings=settings, ledger=ledger)
    ledger.close()


def run_command(command: str) -> None:
    """Run a command that a finding gives, as somebody who pastes it into a shell does.

    Raises `MissingServiceError` if the client that it names is not on this machine.
    """
    name, _, arguments = command.partition(" ")
    program = shlex.quote(client_program(name)) if name in {"redis-cli", "psql"} else name
    subprocess.run(f"{program} {arguments}", shell=True, check=True, capture_output=True, timeout=60)  # noqa: S602 - pasted


def commands(findings: Iterable[Finding], check: str) -> list[str]:
    """Return what a check's finding gives between backquotes in its advice: settings and commands."""
    return [text for finding in findings if finding.check == check for text in finding.remedy.split("`")[1::2]]


def names(findings: Iterable[Finding]) -> set[str]:
    """Return the checks that have findings, without those of the level ok."""
    return {finding.check for finding in findings if finding.level is not Level.OK}
