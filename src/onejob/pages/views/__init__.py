"""The pages: each builds what it shows from the ledger, for all formats."""

from __future__ import annotations

from onejob.pages.views.audit import AUDIT
from onejob.pages.views.dead_letters import DEAD_LETTERS
from onejob.pages.views.duplicates import DUPLICATES
from onejob.pages.views.edit import EDIT
from onejob.pages.views.job import JOB
from onejob.pages.views.jobs import JOBS
from onejob.pages.views.overview import OVERVIEW
from onejob.pages.views.palette import FIND, PALETTE
from onejob.pages.views.tasks import TASKS
from onejob.pages.views.view import View
from onejob.pages.views.workers import WORKERS

__all__ = ["VIEWS", "View"]

VIEWS = (OVERVIEW, JOBS, JOB, EDIT, DUPLICATES, DEAD_LETTERS, TASKS, WORKERS, AUDIT, PALETTE, FIND)
"""All pages, in the order in which their paths are matched."""
