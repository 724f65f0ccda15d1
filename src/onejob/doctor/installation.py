"""What is examined: the settings, the ledger that they name, and the app, if one is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from celery import Celery

    from onejob.config import Settings
    from onejob.ledger.ledger import Ledger


@dataclass(frozen=True, kw_only=True)
class Installation:
    """An installation of onejob. Nothing in it is changed by an examination."""

    settings: Settings
    ledger: Ledger
    app: Celery | None = None
    keys: Path | None = None
    """The file of the API keys."""
