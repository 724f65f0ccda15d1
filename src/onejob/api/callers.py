"""The caller of a request: its name, the jobs that it sees, and its permissions."""

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeAlias

from fastapi import Depends, Request

from onejob.api.problems import Problem
from onejob.jobs.model import Admission, JobRow
from onejob.jobs.submitter import SUBMITTER, Quotas, Submitter, check_name
from onejob.ledger.ledger import Ledger
from onejob.ledger.reader import JobReader, Visibility


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated client.

    `own_jobs`: the client sees, cancels and redrives only jobs that it has submitted, and only its own submissions are
    equal to each other. `tasks`: the names of the tasks that it may submit and whose jobs it sees; None: all. `quota`,
    `identity_quota`: limits on its new jobs ("1000/day"); None: the limits of the router or of the settings.
    """

    name: str
    own_jobs: bool = True
    tasks: Collection[str] | None = None
    quota: str | None = None
    identity_quota: str | None = None

    @property
    def submitter(self) -> Submitter:
        """The submitter of its jobs. Raises `ConfigurationError` for an invalid quota."""
        return _submitter(self.name, self.own_jobs, self.quota, self.identity_quota)


May: TypeAlias = Callable[[Caller, str, JobRow | str | None], bool]
"""A function that permits an action: of a caller, the action's name, and the job or task name that it concerns."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """The permissions of the caller of one request, and the jobs that it sees."""

    caller: Caller
    may: May | None = None

    @property
    def visibility(self) -> Visibility:
        """The jobs that the caller sees."""
        caller = self.caller
        tasks = None if caller.tasks is None else frozenset(caller.tasks)
        predicate = None if self.may is None else partial(self._allows, "read")
        return Visibility(caller.name if caller.own_jobs else None, tasks, predicate)

    def reader(self, ledger: Ledger) -> JobReader:
        """Return a reader of the jobs that the caller sees."""
        return JobReader(ledger.store, self.visibility) if self.visibility.limited else ledger

    def allows(self, action: str, target: JobRow | str | None) -> bool:
        """Return whether the caller may perform an action on a job that it sees, or submit a task."""
        tasks = self.caller.tasks
        return (not isinstance(target, str) or tasks is None or target in tasks) and self._allows(action, target)

    def check(self, action: str, target: JobRow | str | None = None) -> None:
        """Raise `Problem` unless the caller may perform the action."""
        if not self.allows(action, target):
            what = f"{action} jobs of the task {target}" if isinstance(target, str) else action
            raise Problem("forbidden", f"{self.caller.name!r} is not permitted: {what}")

    def check_answer(self, admission: Admission) -> None:
        """Raise `Problem` if an existing job that the caller does not see answers its submission.

        Only `may` can hide such a job: equal jobs have the same task, and a caller with own jobs shares no identity.
        """
        job = admission.job
        if self.may is not None and not admission.outcome.makes_job and not self.visibility.includes(job):
            detail = f"an equal job of {job.task} exists, which {self.caller.name!r} is not permitted to read"
            raise Problem("duplicate-job", detail, outcome=admission.outcome)

    def _allows(self, action: str, target: JobRow | str | None) -> bool:
        return self.may is None or self.may(self.caller, action, target) is True


def permissions_of(request: Request) -> Permissions:
    """Return the permissions of the caller of a request, which its route has authenticated."""
    permissions: Permissions = request.state.permissions
    return permissions


async def check_operator(request: Request) -> None:
    """Refuse a caller that is limited to some jobs: a dependency of the endpoints that are about all jobs."""
    permissions = permissions_of(request)
    caller = permissions.caller
    if caller.own_jobs or caller.tasks is not None:
        raise Problem("forbidden", f"{caller.name!r} is limited to some jobs, and this is about all of them")
    permissions.check("statistics")


def share_of(request: Request) -> str:
    """Return the key by which requests are counted together: the caller's name, or else the client's address."""
    return request.state.caller.name or f"address {request.client.host if request.client else ''}"


def set_caller(request: Request, caller: Caller, may: May | None = None) -> None:
    """Set the caller of a request."""
    request.state.caller = caller
    request.state.permissions = Permissions(caller, may)


def caller_in_context(quotas: Quotas) -> Caller:
    """Return the caller of a request without authentication: the submitter that the app has set, with these quotas."""
    return _caller_of(SUBMITTER.get(), quotas)


@lru_cache(maxsize=256)
def _caller_of(submitter: Submitter, quotas: Quotas) -> Caller:
    own = submitter.quotas if submitter.quotas is not None else quotas
    return Caller(submitter.name, submitter.own_jobs, None, **own.texts())


@lru_cache(maxsize=256)
def _submitter(name: str, own_jobs: bool, quota: str | None, identity_quota: str | None) -> Submitter:  # noqa: FBT001
    return Submitter(name, own_jobs, Quotas.parse(quota, identity_quota) or None)


def caller_dependency(function: Callable[..., Any], may: May | None, quotas: Quotas) -> Any:
    """Return the FastAPI dependency that sets the caller that `function` returns for a request.

    `function` may be async, and have dependencies of its own. Its only parameter, if it has no hint, is the request.
    """
    parameters = list(inspect.signature(function).parameters.values())
    takes_request = len(parameters) == 1 and parameters[0].annotation is inspect.Parameter.empty

    def call(request: Request) -> Any:
        return function(request)

    returned = Depends(call if takes_request else function)

    async def set_from(request: Request, result: Any = returned) -> None:
        if inspect.isawaitable(result):
            result = await result
        caller = Caller(result) if isinstance(result, str) else result
        if not isinstance(caller, Caller):
            msg = f"the function `caller` must return a name or an onejob.api.Caller, not {type(caller).__name__}"
            raise TypeError(msg)
        check_name("the name of a caller", caller.name)
        if caller.quota is None and caller.identity_quota is None:
            caller = Caller(caller.name, caller.own_jobs, caller.tasks, **quotas.texts())
        set_caller(request, caller, may)

    return Depends(set_from)
