"""The endpoints of the dashboard: they identify users, build pages and carry out actions in threads, report errors."""

from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from itertools import chain
from math import inf
from threading import Event
from typing import TypeAlias
from urllib.parse import quote, unquote

from fastapi.sse import EventSourceResponse
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Match, Route

from onejob.api.api_keys import Role
from onejob.api.audit import DONE, REFUSALS, RequestAudit
from onejob.api.checked_request import check_cookies
from onejob.api.fair_threads import BULK, PAGES
from onejob.api.fetch_metadata import check_site
from onejob.api.job_reads import JobWatcher
from onejob.api.problems import PROBLEM_TYPES, Problem, problem_from, wrong_method
from onejob.concurrency.batching import KeyedCache, PerEventLoop
from onejob.errors import JobNotFoundError, StoreError
from onejob.pages import live
from onejob.pages.access import (
    COOKIE,
    CSRF_FIELD,
    Access,
    Form,
    User,
    delete_cookie,
    read_cookie,
    read_cookies,
    read_form,
    remember_cookie,
    set_cookie,
)
from onejob.pages.actions import Action
from onejob.pages.context import Context
from onejob.pages.rendering import Page, Redirect, View, render_csv, render_html, render_json, zone_of
from onejob.pages.sessions import SESSION_SECONDS, Sessions

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
Handler: TypeAlias = Callable[[Request, User], Awaitable[Response]]
SOURCE = "dashboard"
FORMATS = ("html", "json", "csv")
FRESH_SECONDS = 0.5
"""Seconds for which a built page is shared with other viewers who update it."""
READ = ("GET", "HEAD")
"""The methods of a mount, which has no attribute for them."""
STREAMS_PER_USER = 100
"""The maximum number of pages of one user that get events in a process, so that nobody takes all connections."""
DELETED = "deleted"
"""The version of a job that was deleted after a page has shown it."""
NOTICE_COOKIE = "onejob_notice"
NOTICE_SECONDS = 30
"""Seconds for which the notice of an action waits for the page that shows it."""
NOTICE_LIMIT = 300


class Endpoints:
    """The endpoints, on one app."""

    def __init__(self, context: Context, access: Access, closing: Event) -> None:
        self._context = context
        self._access = access
        self._closing = closing
        self._audit = RequestAudit(context.ledger, source=SOURCE)
        self._pages: KeyedCache[Page | Redirect] = KeyedCache(FRESH_SECONDS, cost_factor=2.0)
        self._versions: KeyedCache[str] = KeyedCache(live.POLL_SECONDS, cost_factor=2.0)
        self._feeds = PerEventLoop(lambda: live.ChangeFeed(context.ledger, closing))
        self._watchers = PerEventLoop(lambda: JobWatcher(context.ledger, live.POLL_SECONDS, closing, STREAMS_PER_USER))

    def show(self, view: View) -> Endpoint:
        """Return the endpoint of a page."""

        async def show_page(request: Request, user: User) -> Response:
            user.check(view.role)
            if request.query_params.get("format", "html") not in FORMATS:
                raise Problem("invalid-request", f"the parameter format must be one of {', '.join(FORMATS)}")
            zone = zone_of(request)
            build = partial(view.show, self._context, request.query_params, request.path_params, zone)
            if "hx-request" in request.headers and not request.path_params:
                # Open pages with the same content update together after a change. Few show the same job, which may be
                # large.
                build = partial(self._pages.get, (view.name, request.url.query, str(zone)), build)
            page = await PAGES.current().run(request, inf, lambda _: build())
            return await self._respond(page, request, user)

        return self.guarded(show_page, view.name, view.role)

    async def _respond(self, page: Page | Redirect, request: Request, user: User | None) -> Response:
        if isinstance(page, Redirect):
            return _redirect(request, page.path, page.notice)
        match request.query_params.get("format"):
            case "json":
                return render_json(page)
            case "csv" if page.rows:
                return render_csv(page)
            case "csv" if page.status == HTTPStatus.OK:
                raise Problem("invalid-request", "the parameter format cannot be csv: this page is no list")
        notice = unquote(next(iter(read_cookies(request, NOTICE_COOKIE)), ""))[:NOTICE_LIMIT]
        response = await run_in_threadpool(self._render, page, request, user, notice)
        if notice:
            delete_cookie(response, request, NOTICE_COOKIE)
        remember_cookie(request, response)
        return response

    def _render(self, page: Page, request: Request, user: User | None, notice: str) -> Response:
        token = self._context.tokens.token_of(request, user.name if user else "")
        return render_html(page, request, user, token=token, notice=notice, has_login=self._access.sessions is not None)

    def act(self, action: Action) -> Endpoint:
        """Return the endpoint of a form."""

        async def do_action(request: Request, user: User) -> Response:
            user.check(action.role)
            request.state.form = form = await self._read_form(request, user)
            try:
                run = partial(action.run, self._context, user, form, request.path_params)
                threads = (BULK if action.is_bulk else PAGES).current()
                result = await threads.run(request, inf, lambda _: run())
            finally:
                self._pages.clear()
                self._context.stats.clear()
            request.state.outcome = result.outcome if isinstance(result, Page) else DONE
            return await self._respond(result, request, user)

        return self.guarded(do_action, action.name, action.role if action.changes else Role.READ)

    async def _read_form(self, request: Request, user: User | None) -> Form:
        """Return the form that this user has sent from a page. Raises `Problem` for a forged form."""
        form = await read_form(request)
        await run_in_threadpool(self._context.tokens.check, request, form.text(CSRF_FIELD), user.name if user else "")
        return form

    async def live(self, request: Request, user: User) -> Response:
        """Stream an event after each change of the ledger, or of the job that the parameter `job` names."""

        async def is_open() -> bool:
            return not self._closing.is_set() and await self._access.is_valid(request)

        job_id = request.query_params.get("job")
        if "wsgi_environ" in request.scope:
            return await run_in_threadpool(self._poll, job_id, request.headers.get("last-event-id"))
        job = None if job_id is None else await run_in_threadpool(self._context.job, job_id)
        watcher = self._watchers.current()
        watcher.check_waits(user.name)
        if job is None:
            events = live.stream_changes(self._feeds.current(), is_open, watcher.counted(user.name))
        else:
            events = live.stream_job(watcher, job, user.name, is_open)
        return EventSourceResponse(events, headers={"x-accel-buffering": "no"})

    def _poll(self, job_id: str | None, seen: str | None) -> Response:
        """Respond to a poll: whether anything has changed since the version that a page has seen."""
        try:
            content = live.format_poll(self._read_version(job_id, seen), seen)
        except StoreError:  # the page says that it is not connected, and asks again
            content = live.ASK_AGAIN
        return Response(content, headers={"content-type": "text/event-stream; charset=utf-8"})

    def _read_version(self, job_id: str | None, seen: str | None) -> str:
        """Return the version of the ledger or of a job; `DELETED` once for a deleted job. Raises `JobNotFoundError`."""
        if job_id is None:
            return self._versions.get("ledger", lambda: live.version_name(live.read_version(self._context.ledger)))
        try:
            return live.version_name_of(self._context.job(job_id))
        except JobNotFoundError:
            if seen in {None, DELETED}:
                raise
            return DELETED

    async def login(self, sessions: Sessions, request: Request) -> Response:
        """Show the form for an API key, or start the session of the key in it."""
        detail, status = "", 200
        if request.method == "POST":
            try:
                form = await self._read_form(request, None)
                key, session = await run_in_threadpool(sessions.begin, form.text("key").strip())
                request.state.caller = User(key.name, key.role)
            except (Problem, StoreError, ClientDisconnect) as error:
                problem = problem_from(error)
                detail, status = str(problem.detail), problem.status_code
                if problem.slug in REFUSALS:
                    await self._audit.record_login(request, problem.slug)
            else:
                await self._audit.record_login(request, DONE)
                response = _redirect(request, "/", f"You are logged in as {key.name}.")
                set_cookie(response, request, COOKIE, session, seconds=SESSION_SECONDS)
                return response
        page = Page(template="login.html", title="Log in", data={"detail": detail}, status=status)
        return await self._respond(page, request, None)

    async def logout(self, sessions: Sessions, request: Request, user: User) -> Response:
        """End the session, in all processes."""
        await self._read_form(request, user)
        await run_in_threadpool(sessions.end, read_cookie(request, COOKIE))
        response = _redirect(request, "/login", "You are logged out.")
        delete_cookie(response, request, COOKIE)
        return response

    async def wrong_method(self, request: Request, _error: Exception) -> Response:
        """Refuse a method that no route of the path has; Starlette's error names only one route's methods."""
        routes: list[Route] = request.app.routes
        matching = [
            getattr(route, "methods", READ) for route in routes if route.matches(request.scope)[0] is not Match.NONE
        ]
        return await self.report(request, wrong_method({*chain(*matching)}))

    def guarded(self, handler: Handler, name: str, role: Role = Role.READ) -> Endpoint:
        """Return an endpoint that identifies the user, reports errors as pages, and records in the audit log."""

        async def respond(request: Request) -> Response:
            user: User | None = None
            try:
                check_cookies([value for name, value in request.headers.raw if name == b"cookie"])  # before a hook
                check_site(request.method, request.headers.raw)
                identified = await self._access.identify(request)
                if isinstance(identified, Response):
                    return identified
                request.state.caller = user = identified
                response = await handler(request, user)
            except Exception as error:  # noqa: BLE001 - every error becomes a page
                outcome = problem_from(error)
                await self._record(request, name, role, outcome.slug)
                return await self.report(request, outcome, user)
            await self._record(request, name, role, getattr(request.state, "outcome", DONE))
            return response

        return respond

    async def _record(self, request: Request, name: str, role: Role, outcome: str) -> None:
        form: Form | None = getattr(request.state, "form", None)
        fields = [] if form is None else form.described(without=CSRF_FIELD)
        await self._audit.record(request, name, role, outcome=outcome, fields=fields)

    async def report(self, request: Request, error: Exception, user: User | None = None) -> Response:
        """Respond with the page of a problem."""
        problem = problem_from(error)
        if request.query_params.get("format") == "json":
            return problem.response()
        if problem.slug == "unauthorized" and self._access.sessions is not None:
            response = _redirect(request, "/login", "")
            delete_cookie(response, request, COOKIE)
            return response
        title = PROBLEM_TYPES[problem.slug].title
        data = {"problem": problem.slug, "detail": str(problem.detail), **problem.members}
        page = Page(
            template="error.html", title=title, data={"data": data}, status=problem.status_code,
            has_scripts=request.method == "GET",
        )  # fmt: skip
        response = await self._respond(page, request, user)
        response.headers.update(problem.headers or {})
        return response


def _redirect(request: Request, path: str, notice: str) -> Response:
    """Redirect to a page of this dashboard, which shows a notice."""
    response = RedirectResponse(request.scope.get("root_path", "") + path, 303)
    if notice:
        set_cookie(response, request, NOTICE_COOKIE, quote(notice[:NOTICE_LIMIT], safe=""), seconds=NOTICE_SECONDS)
    return response
