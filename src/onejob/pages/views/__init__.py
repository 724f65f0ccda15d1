"""The pages: each builds what it shows from the ledger, for all formats."""

from __future__ import annotations

from onejob.pages.rendering import View
from onejob.pages.views.activity import DUPLICATES, OVERVIEW, TASKS
from onejob.pages.views.job import EDIT, JOB
from onejob.pages.views.lists import AUDIT, DEAD_LETTERS, FIND, JOBS, PALETTE, WORKERS

__all__ = ["VIEWS", "View"]

VIEWS = (OVERVIEW, JOBS, JOB, EDIT, DUPLICATES, DEAD_LETTERS, TASKS, WORKERS, AUDIT, PALETTE, FIND)
"""All pages, in the order in which their paths are matched."""
