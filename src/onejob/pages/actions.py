"""What the forms of the pages do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from onejob.api.api_keys import Role
from onejob.api.problems import Problem
from onejob.celery.control import resubmit
from onejob.celery.operations import Operation, operate
from onejob.errors import OneJobError
from onejob.jobs.public_view import job_to_dict
from onejob.pages.bulk import label, origin_of, preview_bulk, run_bulk
from onejob.pages.rendering import Page, Redirect

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from onejob.pages.access import User
    from onejob.pages.form import Form
    from onejob.pages.site import Site


class Action(NamedTuple):
    """A form: its name in the audit log, its path, what it does, the role it needs, and whether it changes jobs."""

    name: str
    path: str
    run: Callable[[Site, User, Form, Mapping[str, str]], Redirect | Page]
    role: Role = Role.OPERATE
    changes: bool = True


def _operate(site: Site, user: User, form: Form, path: Mapping[str, str]) -> Redirect:
    """Do an operation on one job."""
    try:
        operation = Operation(form.text("operation"))
    except ValueError:
        raise Problem("invalid-request", f"the operation must be one of {', '.join(Operation)}") from None
    job = site.ledger.get(path["job_id"])
    forget_steps = form.text("forget_steps") == "1"
    after = operate(site.app, site.ledger, operation, job, origin=origin_of(user), forget_steps=forget_steps)
    if after is None:
        return Redirect("/jobs", f"Job {job.id} is {operation.done}.")
    return Redirect(f"/jobs/{job.id}", f"{label(operation)}: the job is {after.state} now.")


def _edit(site: Site, user: User, form: Form, path: Mapping[str, str]) -> Redirect | Page:
    """Submit the job of a dead letter anew with other arguments."""
    job = site.ledger.get(path["job_id"])
    try:
        args, kwargs = _parse(form.text("args"), "args", list), _parse(form.text("kwargs"), "kwargs", dict)
        admission = resubmit(site.app, site.ledger, job, args=args, kwargs=kwargs, actor=user.name)
    except (ValueError, OneJobError) as error:
        fields = {
            "job": job_to_dict(job),
            "args": form.text("args"),
            "kwargs": form.text("kwargs"),
            "error": str(error),
        }
        return Page(template="edit.html", title="Redrive with other arguments", data=fields, status=422)
    return Redirect(f"/jobs/{admission.job.id}", f"Submitted with other arguments: {admission.outcome}.")


def _parse(text: str, name: str, kind: type) -> Any:
    """Return a JSON text as a value. Raises `ValueError` with what was expected."""
    expected = "array, such as [1, 2]" if kind is list else 'object, such as {"order_id": 42}'
    try:
        value = json.loads(text)
    except ValueError as error:
        msg = f"{name} is not valid JSON ({error}): write a JSON {expected}"
        raise ValueError(msg) from error
    if not isinstance(value, kind):
        msg = f"{name} must be a JSON {expected}"
        raise ValueError(msg)  # noqa: TRY004 - the value of a form, no type of a program
    return value


ACTIONS = (
    Action("operate", "/jobs/{job_id}/operate", _operate),
    Action("edit", "/jobs/{job_id}/edit", _edit, Role.EDIT),
    Action("bulk preview", "/bulk/preview", preview_bulk, changes=False),
    Action("bulk", "/bulk/run", run_bulk),
)
