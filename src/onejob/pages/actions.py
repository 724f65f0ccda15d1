"""What the forms of the pages do."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from onejob.api.api_keys import Role
from onejob.api.problems import problem_from
from onejob.api.request_models import check_arguments
from onejob.celery.operations import edit, operate, parse_arguments
from onejob.errors import OneJobError
from onejob.pages.bulk import label, operation_of, preview_bulk, run_bulk
from onejob.pages.rendering import Redirect, job_path
from onejob.pages.views.edit import edit_page

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from onejob.pages.access import User
    from onejob.pages.form import Form
    from onejob.pages.rendering import Page
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
    operation, job = operation_of(form), site.job(path["job_id"])
    forget_steps = form.text("forget_steps") == "1"
    after = operate(site.app, site.ledger, operation, job, origin=site.origin_of(user), forget_steps=forget_steps)
    if after is None:
        return Redirect("/jobs", f"Job {job.id} is {operation.done}.")
    return Redirect(job_path(job.id), f"{label(operation)}: the job is {after.state} now.")


def _edit(site: Site, _user: User, form: Form, path: Mapping[str, str]) -> Redirect | Page:
    """Submit the job of a dead letter anew with other arguments."""
    site.check_values_shown("editing them")
    job, texts = site.job(path["job_id"]), (form.text("args"), form.text("kwargs"))
    try:
        args = parse_arguments(texts[0], "args", list)
        kwargs = parse_arguments(texts[1], "kwargs", dict)
        admission = edit(site.app, site.ledger, job.id, args=args, kwargs=kwargs, check=check_arguments)
    except OneJobError as error:
        return edit_page(job, *texts, error=str(error), outcome=problem_from(error).slug)
    return Redirect(job_path(admission.job.id), f"Submitted with other arguments: {admission.outcome}.")


ACTIONS = (
    Action("operate", "/operate/{job_id:path}", _operate),
    Action("edit", "/edit/{job_id:path}", _edit, Role.EDIT),
    Action("bulk preview", "/bulk/preview", preview_bulk, changes=False),
    Action("bulk", "/bulk/run", run_bulk),
)
