"""Our backend in place of Django's dummy backend, with the methods by which Django's tests look into that."""

from __future__ import annotations

from typing import Any

from onejob.django import TaskBackend, conf
from onejob.jobs.query import Query


class DummyBackend(TaskBackend):
    """The backend; `results` and `clear` read and empty the ledger."""

    @property
    def results(self) -> list[Any]:
        return [self.get_result(job.id) for job in reversed(self._ledger().find(Query(limit=1000)))]

    def clear(self) -> None:
        ledger = conf.app_state().ledger
        for job in ledger.find(Query(limit=1000)):
            ledger.remove(job if job.state.final else ledger.cancel(job.id))
