"""Checks of the server, or the file, that keeps a ledger; the doctor and each worker make them."""

from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

from onejob.health.finding import Finding, Installation, Level
from onejob.stores import kind_of

_MODULES = {"redis": "redis", "postgresql": "postgres", "sqlite": "sqlite"}


def checks_of_store(url: str) -> ModuleType:
    """Return the module that examines the store of a URL. Raises `ConfigurationError` for a URL that names no store."""
    return import_module(f"onejob.health.{_MODULES[kind_of(url)]}")


def warnings_of_store(installation: Installation) -> Iterator[Finding]:
    """Yield the findings about a ledger's store, from level warning on. Raises the driver's errors."""
    for finding in checks_of_store(installation.settings.store).examine(installation):
        if finding.level.rank >= Level.WARNING.rank:
            yield finding
