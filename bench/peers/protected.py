"""The same Celery task with `base=onejob.Task`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import onejob
from bench.peers.common import SECOND, STORE, CeleryPeer, celery_app, work

if TYPE_CHECKING:
    from collections.abc import Sequence

app = celery_app(onejob_store=os.environ[STORE])


class ProtectedPeer(CeleryPeer):
    """A task of ours."""

    def prepare(self) -> None:
        """Make the schema, where that is a step of its own."""
        if os.environ[STORE].startswith("postgresql"):
            from onejob.stores.migrate import upgrade

            upgrade(os.environ[STORE])

    def submit_bulk(self, numbers: Sequence[int]) -> None:
        """Call `submit_many()` once."""
        self.task.submit_many([(number, SECOND) for number in numbers])


peer = ProtectedPeer(__name__, app.task(name="bench.work", base=onejob.Task)(work))
