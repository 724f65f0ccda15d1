"""The jobs in Django's admin: the pages of the dashboard in the admin's clothes, with Django's permissions.

`onejob.pages` makes the pages and carries out the actions, so the admin and the dashboard agree. No job is copied into
Django's database; Django's log of actions (`LogEntry`) gets an entry beside the entry in the ledger's audit log.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any
from urllib.parse import unquote as unquote_url

from django.conf import settings
from django.contrib import messages
from django.contrib.admin import ModelAdmin
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.admin.utils import quote, unquote
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.http import HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, path, reverse
from django.utils import timezone
from django.views.generic import RedirectView
from starlette.datastructures import QueryParams

from onejob.api.api_keys import Role
from onejob.api.audit import DONE, REFUSALS, Refusals
from onejob.api.fetch_metadata import check_site
from onejob.api.problems import PROBLEM_TYPES, Problem, problem_from
from onejob.client.operation import Operation
from onejob.django.conf import DASHBOARD_SETTING, celery_app, redact_hook
from onejob.django.dashboard import user_of, without_transaction
from onejob.errors import OneJobError
from onejob.jobs.audit_entries import AuditEntry
from onejob.ledger.job_filters import audit_text
from onejob.observability.logs import record_audit
from onejob.pages.access import Form, User
from onejob.pages.actions import ACTIONS, Action, label
from onejob.pages.context import Context
from onejob.pages.job import JOB
from onejob.pages.job_list import FIND, JOBS
from onejob.pages.rendering import Page, Redirect, View

SOURCE = "admin"
ACTION = {action.name: action for action in ACTIONS}
CSRF_FIELD = "csrfmiddlewaretoken"
TEMPLATES = "admin/onejob/job"

_context_of = lru_cache(maxsize=8)(partial(Context, place="in the admin"))


def page_context() -> Context:
    """Return the context of the pages: the project's app and its `redact`.

    Raises `ConfigurationError`, `ImportError`.
    """
    return _context_of(celery_app(), redact_hook())


class JobAdmin(ModelAdmin):  # type: ignore[misc] # Django ships no types
    """The admin of jobs: a list with filters, a page of each job, and operations on one job or on many."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._refusals = Refusals()

    def get_urls(self) -> list[Any]:
        """Return the URLs; the list and the page of a job have the names that Django gives them for every model."""

        def view(method: Any) -> Any:
            return without_transaction(self.admin_site.admin_view(method))

        return [
            path("", view(self.changelist_view), name="onejob_job_changelist"),
            path("bulk/preview/", view(partial(self._act, ACTION["bulk preview"])), name="onejob_job_bulk_preview"),
            path("bulk/run/", view(partial(self._act, ACTION["bulk"])), name="onejob_job_bulk_run"),
            path("<path:object_id>/operate/", view(partial(self._act, ACTION["operate"])), name="onejob_job_operate"),
            path("<path:object_id>/change/", view(self.change_view), name="onejob_job_change"),
            path("<path:object_id>/", RedirectView.as_view(pattern_name=f"{self.admin_site.name}:onejob_job_change")),
        ]

    def has_add_permission(self, *_: Any) -> bool:
        """Return False: jobs are submitted by code."""
        return False

    has_delete_permission = has_change_permission = has_add_permission

    def has_view_permission(self, request: Any, _obj: Any = None) -> bool:
        """Return whether a user has any permission for jobs."""
        return user_of(request.user) is not None

    has_module_permission = has_view_permission  # the app has nothing but jobs in the admin

    # --- pages --------------------------------------------------------------------------------------------------------

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        """Respond with the list; its parameters are the dashboard's, and `q` looks for a job by its id."""
        view = FIND if request.GET.get("q") else JOBS
        return self._show(request, view, "change_list.html", {}, extra_context)

    def change_view(self, request: Any, object_id: str, _form_url: str = "", extra_context: Any = None) -> Any:
        """Respond with the page of a job."""
        return self._show(request, JOB, "change_form.html", {"job_id": unquote(object_id)}, extra_context)

    def _show(self, request: Any, view: View, template: str, names: Mapping[str, str], extra_context: Any) -> Any:
        user = self._user(request)
        query = QueryParams(request.META.get("QUERY_STRING", ""))
        headers = [(name.lower().encode(), value.encode()) for name, value in request.headers.items()]
        try:
            check_site(request.method, headers)
            page = view.show(page_context(), query, names, timezone.get_current_timezone())
        except (Problem, OneJobError) as error:
            problem = problem_from(error)
            title, status = PROBLEM_TYPES[problem.slug].title, problem.status_code
            return self._respond(request, "problem.html", title, status, {"detail": problem.detail})
        if isinstance(page, Redirect):
            return HttpResponseRedirect(self._url_of(page.path))
        return self._render(request, template, user, page, extra_context)

    def _render(self, request: Any, template: str, user: User, page: Page, extra_context: Any = None) -> Any:
        given = getattr(settings, DASHBOARD_SETTING, None)
        context: dict[str, Any] = {"data": page.data, "can_operate": user.role.includes(Role.OPERATE), "dashboard": ""}
        with suppress(NoReverseMatch):
            context["dashboard"] = str(given or reverse("onejob-dashboard", args=[""])).rstrip("/")
        return self._respond(request, template, page.title, page.status, context | (extra_context or {}))

    def _respond(self, request: Any, template: str, title: str, status: int, context: dict[str, Any]) -> Any:
        common = {
            **self.admin_site.each_context(request), "opts": self.opts, "title": title,
            "query": request.META.get("QUERY_STRING", ""), "list_url": self._url("changelist"),
        }  # fmt: skip
        return TemplateResponse(request, f"{TEMPLATES}/{template}", common | context, status=status)

    # --- actions ------------------------------------------------------------------------------------------------------

    def _act(self, action: Action, request: Any, object_id: str | None = None) -> Any:
        """Carry out the action of a dashboard form, on one job or on many; respond with the page that follows."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        names = {} if object_id is None else {"job_id": unquote(object_id)}
        user, form = self._user(request), Form([])
        try:
            user.check(Role.OPERATE)
            form = Form([(name, text) for name, texts in request.POST.lists() for text in texts])
            context = page_context()
            try:
                result = action.run(context, user, form, names)
            finally:
                context.stats.clear()
        except (Problem, OneJobError) as error:
            problem = problem_from(error)
            self._record(request, user, action, names, form, problem.slug)
            if problem.slug in REFUSALS:
                raise PermissionDenied(problem.detail) from error
            messages.error(request, problem.detail)
            return HttpResponseRedirect(self._back(form, names))
        self._record(request, user, action, names, form, "done")
        if isinstance(result, Redirect):
            messages.success(request, result.notice)
            return HttpResponseRedirect(self._url_of(result.path))
        return self._render(request, "bulk.html", user, result)

    def _record(
        self, request: Any, user: User, action: Action, names: Mapping[str, str], form: Form, outcome: str
    ) -> None:
        """Record an action in the ledger's audit log, and a successful action in Django's log, too."""
        target, detail = names.get("job_id", ""), audit_text(form.described(without=CSRF_FIELD))
        asked = f"{action.name} {target} {detail}"
        kind, count = self._refusals.classify(user.name, outcome, is_action=action.changes, asked=asked)
        if not count:
            return
        entry = AuditEntry(
            actor=user.name, source=SOURCE, address=request.META.get("REMOTE_ADDR", ""), action=action.name,
            target=target, outcome=outcome, detail=detail, count=count, kind=kind,
        )  # fmt: skip
        record_audit(lambda each: page_context().ledger.append_audit(each), entry)  # noqa: PLW0108 - it may raise
        if outcome != DONE:
            return
        operation = Operation(form.text("operation"))
        LogEntry.objects.create(
            user_id=request.user.pk, content_type=ContentType.objects.get_for_model(self.model),
            object_id=target or None, object_repr=(target or f"jobs: {detail}")[:200], change_message=label(operation),
            action_flag=DELETION if operation.permission == Operation.DELETE else CHANGE,
        )  # fmt: skip

    # --- users and URLs -----------------------------------------------------------------------------------------------

    def _user(self, request: Any) -> User:
        """Return the user of a request. Raises `PermissionDenied`, which the admin shows as a page."""
        user = user_of(request.user)
        if user is None:
            raise PermissionDenied
        return user

    def _url(self, name: str, *args: str) -> str:
        return str(reverse(f"admin:onejob_job_{name}", args=args, current_app=self.admin_site.name))

    def _url_of(self, page: str) -> str:
        """Return the URL in the admin of a dashboard page that an action names."""
        path, mark, query = page.partition("?")
        job_id = unquote_url(path.removeprefix("/jobs").lstrip("/"))
        return self._url("change", quote(job_id)) if job_id else self._url("changelist") + mark + query

    def _back(self, form: Form, names: Mapping[str, str]) -> str:
        if "job_id" in names:
            return self._url("change", quote(names["job_id"]))
        query = form.text("filter")
        return self._url("changelist") + (f"?{query}" if query else "")
