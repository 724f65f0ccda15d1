"""The actions of the pages' forms, on one job or on many: a selection, its preview, and portions of limited time."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from starlette.datastructures import QueryParams

from onejob.api.api_keys import Role
from onejob.api.job_reads import COUNT_LIMIT
from onejob.api.problems import Problem
from onejob.api.request_models import check_arguments
from onejob.api.response_models import decode_cursor
from onejob.api.routes.jobs import is_valid_id
from onejob.client.jobs import parse_arguments
from onejob.client.operation import Operation
from onejob.client.operator import deadline
from onejob.errors import OneJobError, StoreError
from onejob.jobs.lifecycle import State
from onejob.jobs.model import JobRow
from onejob.jobs.query import Query
from onejob.ledger.bulk import NOT_REACHED, Selection
from onejob.ledger.cursor import Cursor
from onejob.ledger.dead_letters import group_key
from onejob.ledger.job_filters import query_of
from onejob.ledger.search import count_matching, search
from onejob.ledger.stuck import Snapshot, why_stuck
from onejob.pages.access import Form, User
from onejob.pages.blocks import end_block, make_block
from onejob.pages.context import Context
from onejob.pages.job import edit_page
from onejob.pages.job_filters import SEARCH_SECONDS, filter_text, only_stuck, read_filters
from onejob.pages.job_rows import job_rows
from onejob.pages.limits import clear_limit, set_limit
from onejob.pages.lists import SCHEDULES
from onejob.pages.page_request import PageRequest
from onejob.pages.rendering import Page, Redirect, job_path

IDS_LIMIT = 1000
PORTION = 1000
PORTION_SECONDS = 1.0
EXAMPLES = 10
"""The number of jobs that a preview lists."""
MESSAGES = 20
"""The number of refusals that a page shows."""


@dataclass(frozen=True, slots=True)
class BulkForm:
    """The fields of a form that selects jobs: by ids, by a filter, or by a group of dead letters."""

    operation: Operation
    ids: tuple[str, ...]
    filter: str
    """The filter, as the query of the URL of the list."""
    group: str
    """The signature of a group among the dead letters of the filter; "" for no group.

    A signature, because the error of the group may be redacted, and must be neither in forms nor in the audit log, and
    any job of the group may be redriven or purged meanwhile.
    """
    until: float
    """The latest `created_at` of selected jobs."""
    back: str

    @classmethod
    def parse(cls, form: Form, now: float) -> Self:
        """Read a form. Raises `Problem` if it selects nothing, or for an unknown operation or an invalid field."""
        operation, scope, ids = operation_of(form), form.text("scope"), tuple[str, ...]()
        try:
            until = float(form.text("until") or 0) or now
        except ValueError:
            until = math.nan
        if not math.isfinite(until):
            raise Problem("invalid-request", "the field until must be a time, in seconds")
        group = form.text("group") if scope == "group" else ""
        if scope == "group" and not group:
            raise Problem("invalid-request", "the field group must name a group of dead letters")
        if scope not in {"group", "matching"}:
            ids = tuple(dict.fromkeys(filter(is_valid_id, form.texts("id"))))
            if not 0 < len(ids) <= IDS_LIMIT:
                detail = f"select 1 to {IDS_LIMIT} jobs, or choose all that match: {len(ids)} are selected"
                raise Problem("invalid-request", detail)
        back = form.text("back")
        if not back.startswith("/") or back.startswith(("//", "/\\")) or not back.isprintable():
            back = "/jobs"  # a URL of another site is no page to go back to
        return cls(operation, ids, form.text("filter"), group, min(until, now), back)

    @property
    def scope(self) -> str:
        """How the jobs are selected."""
        return "group" if self.group else "ids" if self.ids else "matching"

    def selection(self, context: Context, cursor: str | None = None) -> Selection:
        """Return the jobs that the operation applies to. Raises `Problem` for an invalid filter."""
        if self.ids:
            return Selection(job_ids=self.ids)

        def is_in_group(job: JobRow) -> bool:
            return job.state is State.FAILED and context.tokens.sign(*group_key(job)) == self.group

        query, matches = self.query(context, cursor), is_in_group if self.group else None
        if self.is_stuck:
            ledger, snapshot = context.ledger, Snapshot.of(context.ledger)
            return Selection(
                query=replace(query, unsettled=True), matches=lambda job: bool(why_stuck(ledger, job, snapshot))
            )
        return Selection(query=query, matches=matches)

    @property
    def is_stuck(self) -> bool:
        """Whether the filter selects the stuck jobs alone. Raises `Problem` for an invalid value."""
        return only_stuck(self._request)

    @property
    def _request(self) -> PageRequest:
        return PageRequest(QueryParams(self.filter), self.until)

    def query(self, context: Context, cursor: str | None = None) -> Query:
        """Return the query for a portion. It has no states if the operation applies to no state of the filter.

        Durations in the filter end at the preview, so that each portion selects by the same times.
        """
        query = query_of(read_filters(self._request, context), limit=PORTION)
        states = (query.states or frozenset(State)) & self.operation.states
        until = self.until if query.until is None else min(query.until, self.until)
        return replace(query, states=states, until=until, light=True, **decode_cursor(cursor))

    def shown(self, step: str) -> dict[str, Any]:
        """Return the data of a step's page: the operation, the selection, and the hidden fields of its form."""
        which = "the dead letters with the same error" if self.group else "all jobs"
        matching, ids = f"{which}{filter_text(self._request)}", [("id", job_id) for job_id in self.ids]
        own = [("operation", self.operation.value), ("scope", self.scope), ("filter", self.filter), ("back", self.back)]
        return {
            "step": step, "operation": self.operation.value, "label": label(self.operation), "back": self.back,
            "participle": self.operation.done, "selection": "the selected jobs" if ids else matching,
            "fields": [*own, ("until", repr(self.until)), ("group", self.group), *ids],
        }  # fmt: skip

    def forced(self, context: Context, refused: Iterable[str]) -> list[tuple[str, str]]:
        """Return the fields of the form that deletes the refused jobs by force, because something still needs them."""
        ids = tuple(refused)
        if self.operation is not Operation.DELETE or not ids:
            return []
        forced = replace(self, operation=Operation.FORCE_DELETE, group="")
        found = context.operator().operate_many(forced.operation, Selection(job_ids=ids), dry_run=True)
        fields: list[tuple[str, str]] = replace(forced, ids=tuple(found.done)).shown("confirm")["fields"]
        return fields if found.done else []


def preview_bulk(context: Context, _user: User, form: Form, _path: Any) -> Page:
    """Show how many jobs an operation would change, and ask for a confirmation."""
    bulk = BulkForm.parse(form, context.ledger.read_clock())
    count, is_complete, jobs, refused = _preview(context, bulk)
    data = bulk.shown("confirm") | {
        "count": count, "is_complete": is_complete, "jobs": job_rows(context, jobs),
        "messages": [*refused.values()][:MESSAGES], "forced": bulk.forced(context, refused),
    }  # fmt: skip
    return Page(template="bulk.html", title=f"{label(bulk.operation)}?", data=data)


def _preview(context: Context, bulk: BulkForm) -> tuple[int, bool, list[JobRow], dict[str, str]]:
    """Return how many jobs an operation applies to, whether all were counted, examples, and the reasons of refusals."""
    if bulk.scope == "matching" and not bulk.is_stuck:
        query = bulk.query(context)
        if not query.states:
            return 0, True, [], {}
        is_over, some = deadline(SEARCH_SECONDS), replace(query, limit=EXAMPLES)
        counted = count_matching(context.ledger, query, limit=COUNT_LIMIT, is_over=is_over)
        examples = search(context.ledger, some, is_over=is_over).jobs if counted.count else []
        return counted.count, counted.is_complete, list(examples), {}
    selection = bulk.selection(context)
    if selection.query is not None:
        selection = replace(selection, query=replace(selection.query, limit=COUNT_LIMIT))
    in_time = None if bulk.ids else deadline(1.0)
    checked = context.operator().operate_many(bulk.operation, selection, dry_run=True, is_over=in_time)
    examples = context.ledger.get_each(checked.done[:EXAMPLES])
    return len(checked.done), checked.next is None, examples, checked.refused


def run_bulk(context: Context, user: User, form: Form, _path: Any) -> Page:
    """Carry out an operation on a portion of the selected jobs; the page goes on with the next portion."""
    bulk, cursor = BulkForm.parse(form, context.ledger.read_clock()), form.text("cursor") or None
    done, refused = form.number("done"), form.number("refused")
    selection = bulk.selection(context, cursor)
    if selection.query is not None and not selection.query.states:
        raise Problem("invalid-request", f"no job that matches can be {bulk.operation.done}")
    result = context.operator(user).operate_many(bulk.operation, selection, is_over=deadline(PORTION_SECONDS))
    left = tuple(job_id for job_id, why in result.refused.items() if why == NOT_REACHED)
    messages = [why for why in result.refused.values() if why != NOT_REACHED]
    data = replace(bulk, ids=left or bulk.ids).shown("running" if result.next or left else "finished") | {
        "done": done + len(result.done),
        "refused": refused + len(messages),
        "messages": messages[:MESSAGES],
        "forced": [] if left else bulk.forced(context, result.refused),
        "cursor": "" if result.next is None else Cursor(*result.next).encode(),
    }
    return Page(template="bulk.html", title=label(bulk.operation), data=data)


def label(operation: Operation) -> str:
    """Return an operation as the text of a button."""
    return operation.value.replace("_", " ").capitalize()


def operation_of(form: Form) -> Operation:
    """Return the operation of a form. Raises `Problem` for an unknown operation."""
    try:
        return Operation(form.text("operation"))
    except ValueError:
        raise Problem("invalid-request", f"the operation must be one of {', '.join(Operation)}") from None


class Action(NamedTuple):
    """The action of a form: its name in the audit log, its path, function and role, and whether it changes jobs."""

    name: str
    path: str
    run: Callable[[Context, User, Form, Mapping[str, str]], Redirect | Page]
    role: Role = Role.OPERATE
    changes: bool = True
    is_bulk: bool = False


def _operate(context: Context, user: User, form: Form, path: Mapping[str, str]) -> Redirect:
    operation, job = operation_of(form), context.job(path["job_id"])
    forget_steps = form.text("forget_steps") == "1"
    after = context.operator(user).operate(operation, job, forget_steps=forget_steps)
    if after is None:
        return Redirect("/jobs", f"Job {job.id} is {operation.done}.")
    return Redirect(job_path(job.id), f"{label(operation)}: the job is {after.state} now.")


def _edit(context: Context, user: User, form: Form, path: Mapping[str, str]) -> Redirect | Page:
    """Submit the job of a dead letter anew with other arguments."""
    context.check_values_shown("editing them")
    job, texts = context.job(path["job_id"]), (form.text("args"), form.text("kwargs"))
    try:
        args = parse_arguments(texts[0], "args", list)
        kwargs = parse_arguments(texts[1], "kwargs", dict)
        admission = context.operator(user).edit(job.id, args=args, kwargs=kwargs, check=check_arguments)
    except StoreError:
        raise
    except OneJobError as error:
        return edit_page(job, *texts, error=error)
    return Redirect(job_path(admission.job.id), f"Submitted with other arguments: {admission.outcome}.")


def _operate_schedule(context: Context, user: User, form: Form, path: Mapping[str, str]) -> Redirect:
    """Pause, resume or run an entry. Raises `Problem` for an unknown operation."""
    entry, operation, operator = path["entry"], form.text("operation"), context.operator(user)
    match operation:
        case "pause" | "resume":
            operator.set_paused(entry, paused=operation == "pause")
            return Redirect(SCHEDULES.path, f"{entry} is paused." if operation == "pause" else f"{entry} goes on.")
        case "run":
            return Redirect(SCHEDULES.path, f"{entry} is submitted: job {operator.run_entry(entry)}.")
    raise Problem("invalid-request", "the operation must be one of pause, resume, run")


ACTIONS = (
    Action("operate", "/operate/{job_id:path}", _operate),
    Action("edit", "/edit/{job_id:path}", _edit, Role.EDIT),
    Action("schedule", "/schedules/{entry:path}", _operate_schedule),
    Action("block", "/blocks", make_block),
    Action("end block", "/blocks/{block_id}", end_block),
    Action("set_limit", "/limits", set_limit),
    Action("clear_limit", "/limits/clear", clear_limit),
    Action("bulk preview", "/bulk/preview", preview_bulk, changes=False, is_bulk=True),
    Action("bulk", "/bulk/run", run_bulk, is_bulk=True),
)
