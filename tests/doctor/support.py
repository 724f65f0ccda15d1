"""What the tests of `onejob doctor` share: an installation at a URL, and the names of its findings."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from onejob.config import Settings, build_ledger
from onejob.doctor.finding import Level
from onejob.doctor.installation import Installation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery import Celery

    from onejob.doctor.finding import Finding


@contextmanager
def installed(
    url: str, namespace: str = "onejob", app: Celery | None = None, **settings: Any
) -> Iterator[Installation]:
    """Yield an installation with its ledger at a URL."""
    given = Settings(store=url, namespace=namespace, **settings)
    ledger = build_ledger(given)
    yield Installation(settings=given, ledger=ledger, app=app)
    ledger.close()


def names(findings: Iterable[Finding]) -> set[str]:
    """Return the checks that have findings, without those of the level ok."""
    return {finding.check for finding in findings if finding.level is not Level.OK}
