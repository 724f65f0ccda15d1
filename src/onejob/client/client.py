"""The client: jobs are found, explained and operated on from Python, with an app or with the URL of a ledger."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import date, datetime, timedelta
from functools import partial
from typing import Any, Literal, Self, TypeAlias, Unpack, cast

from celery import Celery

from onejob.celery.app_state import app_state_of
from onejob.client.audit import Attempt, recorded, user_name
from onejob.client.blocks import shown_text
from onejob.client.coroutines import in_thread
from onejob.client.filters import (
    Filters,
    OperationName,
    filters_text,
    later_time,
    read_filters,
    select_matching,
)
from onejob.client.limits import row_of, shown_exception
from onejob.client.operation import Operation
from onejob.client.operator import Operator
from onejob.client.values import (
    Block,
    BulkPage,
    Cost,
    Duplicate,
    Edit,
    Explanation,
    JobCount,
    JobPage,
    LimitState,
    QueueLoad,
    Schedule,
    Worker,
    explanation_of,
    value_of,
)
from onejob.config import Settings, build_ledger
from onejob.errors import ConfigurationError
from onejob.jobs.blocks import BlockKind, text_of
from onejob.jobs.costs import CostsBy
from onejob.jobs.model import JobRow
from onejob.jobs.public_view import Job, public_job
from onejob.jobs.query import Query
from onejob.jobs.run_log import RunLog
from onejob.ledger.bulk import NO_LIMIT, Selection
from onejob.ledger.costs import read_costs
from onejob.ledger.cursor import Cursor, decode_cursor
from onejob.ledger.explain import explain
from onejob.ledger.job_filters import has_condition, query_of
from onejob.ledger.ledger import Ledger
from onejob.ledger.search import count_states, search
from onejob.ledger.stats import read_queues
from onejob.stores import kind_of, missing_file
from onejob.stores.migrate import migrate

CostsByName: TypeAlias = Literal["task", "submitter", "tag", "day"]
"""The groups by which costs are added up."""
SOURCE = "python"
"""Where an operation comes from, in the audit log."""
OPENED = "_opened"
"""The attribute of a client with the ledger that it has opened."""
PAGE = 50
PAGE_LIMIT = 1000
"""How many jobs a page has at most."""


class Client:
    """Finds jobs, explains them, and operates on them, as the command line, the HTTP API and the dashboard do.

    `app_or_store`: a Celery app, or the URL of its ledger alone, which `namespace` belongs to. With a URL the process
    needs none of the app's code; what only the app knows raises `ConfigurationError` then: `edit`, and `schedules`.
    `actor`: who operates, in the history of jobs and in the audit log; by default the user of the process.

    A client of a URL opens the ledger at its first use, and `close`, or the end of a `with` block, closes it. The
    ledger of an app stays open. A client may be shared by threads, and used after a fork. Each method has a coroutine
    that does the same in a thread, whose name begins with an `a`: `await client.aget(job_id)`.

    Raises `ConfigurationError` for a URL of no store.
    """

    def __init__(
        self, app_or_store: Celery | str, *, namespace: str | None = None, actor: str | None = None
    ) -> None:  # fmt: skip
        self._app = None if isinstance(app_or_store, str) else app_or_store
        if isinstance(app_or_store, str):
            kind_of(app_or_store)
            settings = Settings(store=app_or_store)
            self._settings = settings if namespace is None else replace(settings, namespace=namespace)
        elif not isinstance(app_or_store, Celery):
            kind = type(app_or_store).__name__
            raise TypeError(f"onejob.Client takes a Celery app, or the URL of a ledger as a text, not a {kind}")
        elif namespace is not None:
            msg = f"namespace={namespace!r} belongs to a URL; an app has its setting onejob_namespace: leave it out"
            raise ConfigurationError(msg)
        self._actor = actor or user_name()
        self.schedules = Schedules(self._operator, self._recorded)
        """The entries of the schedule that the workers run, see `onejob.client.Schedules`."""

    # --- reading ------------------------------------------------------------------------------------------------------

    def get(self, job_id: str) -> Job:
        """Return a job. Raises `JobNotFoundError`, or its subclass `JobPurgedError` for one that existed."""
        return public_job(self._ledger.get(job_id))

    def find(self, *, limit: int = PAGE, cursor: str | None = None, **filters: Unpack[Filters]) -> JobPage:
        """Return a page of the jobs that match all filters, newest first; `cursor`: the `next` of the page before.

        Without an index that has the jobs of the filters, the search reads others until the page is full.
        Raises `TypeError` and `ValueError` for a filter, a limit or a cursor that is invalid.
        """
        return self._find(self._query(filters), _checked_limit(limit), cursor)

    def find_all(self, **filters: Unpack[Filters]) -> Iterator[Job]:
        """Yield all jobs that match, newest first, a page at a time; a job that is submitted meanwhile is left out."""
        query, cursor = self._query(filters), None
        while True:
            page = self._find(query, PAGE, cursor)
            yield from page.jobs
            if (cursor := page.next) is None:
                return

    def count(self, *, limit: int | None = None, **filters: Unpack[Filters]) -> JobCount:
        """Return how many jobs match, in total and by state; with `limit` it stops at so many of the newest ones."""
        query = self._query(filters)
        if limit is None:
            by_state, is_complete = self._ledger.counts(query), True
        else:
            checked = _checked_limit(limit, NO_LIMIT)
            by_state, is_complete = count_states(self._ledger, query, limit=checked, is_over=_never)
        return JobCount(total=sum(by_state.values()), by_state=by_state, is_complete=is_complete)

    def why(self, job_id: str) -> Explanation:
        """Explain a job: its history, what it waits for, and what happens next. Raises as `get`."""
        return explanation_of(explain(self._ledger, job_id))

    def logs(self, job_id: str) -> list[RunLog]:
        """Return the logs of the newest ten attempts of a job, the oldest attempt first. Raises as `get`."""
        return self._ledger.run_logs(self._ledger.get(job_id))

    def duplicates(self, job_id: str) -> list[Duplicate]:
        """Return the newest duplicates of a job, oldest first. Raises as `get`."""
        job = self._ledger.get(job_id)
        return [value_of(Duplicate, each) for each in self._ledger.duplicates(job.id)]

    def costs(
        self, by: CostsByName = "task", *, since: date | None = None, until: date | None = None,
        task: str | None = None,
    ) -> list[Cost]:  # fmt: skip
        """Return the amounts that jobs have spent and duplicates have saved, by `task`, `submitter`, `tag` or `day`.

        From one day (UTC) to another, with both; without `since` in the last 30 days. Days are kept for 400 days.
        Sorted by unit, and in it the largest first; days the newest first. Raises `ValueError` for another `by`.
        """
        if by not in {*CostsBy}:
            raise ValueError(f"{by!r} is no group of costs: write one of {', '.join(CostsBy)}")
        return read_costs(self._ledger, CostsBy(by), since=since, until=until, task=task)

    def queues(self) -> list[QueueLoad]:
        """Return the load of each queue that has workers, or jobs that wait or run, by name."""
        return read_queues(self._ledger)

    def workers(self) -> list[Worker]:
        """Return the live workers, by name."""
        return [value_of(Worker, each) for each in self._ledger.workers()]

    # --- operations ---------------------------------------------------------------------------------------------------

    def cancel(self, job_id: str, *, force: bool = False) -> Job:
        """Cancel a job: at once if it waits; a run ends at its next step or progress call, with `force` at once.

        Raises `JobEndedError`, and as `get`.
        """
        return self._operate(Operation.FORCE_CANCEL if force else Operation.CANCEL, job_id)

    def run_now(self, job_id: str) -> Job:
        """Make a delayed or retrying job due at once. Raises `NotWaitingError`, and as `get`."""
        return self._operate(Operation.RUN_NOW, job_id)

    def redrive(self, job_id: str, *, forget_steps: bool = False) -> Job:
        """Queue a dead letter again, with its completed steps unless `forget_steps`.

        Raises `NoDeadLetterError`; `IdentityHeldError` if an equal job is live; `SupersededError` if newer arguments
        have run, or will; and as `get`.
        """
        return self._operate(Operation.REDRIVE, job_id, forget_steps=forget_steps)

    def edit(
        self, job_id: str, *, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> Edit:  # fmt: skip
        """Redrive a dead letter with other arguments, as a new job with everything else of the dead letter.

        What is None stays as it is. The dead letter is deleted; an equal job that exists may answer. Raises
        `ConfigurationError` without an app, `NoDeadLetterError`, `NotResubmittableError`, as `get`, and as
        `apply_async`; the dead letter stays then.
        """
        if args is None and kwargs is None:
            raise ValueError("nothing to change: give args, kwargs or both")
        operator = self._operator()
        operator.app_for("the signature of its tasks")
        with self._recorded("edit", job_id, "args kwargs"):
            admission = operator.edit(job_id, args=args, kwargs=kwargs)
        return Edit(outcome=admission.outcome, job=public_job(admission.job))

    def delete(self, job_id: str, *, force: bool = False) -> None:
        """Delete a job that has ended; with `force` also one that an idempotency key names, or whose end is awaited.

        Raises `JobNotEndedError`; `UniquenessWindowError` for a job that still answers duplicates with its result;
        `JobNeededError`; and as `get`.
        """
        self._operate_on(Operation.FORCE_DELETE if force else Operation.DELETE, job_id)

    def bulk(
        self, operation: OperationName, *, job_ids: Sequence[str] = (), everything: bool = False,
        limit: int | None = None, cursor: str | None = None, dry_run: bool = False, forget_steps: bool = False,
        **filters: Unpack[Filters],
    ) -> BulkPage:  # fmt: skip
        """Carry out an operation on many jobs: those with some ids, those that match filters, or `everything`.

        Without a state these are the jobs in all states that the operation applies to, of those that were submitted
        before the call, newest first. A job that is refused does not stop the others. After `limit` jobs the call
        ends, and `next` of its result is the `cursor` of the call that continues. `dry_run` changes nothing.
        Raises `ValueError` for an unknown operation, and unless there are either ids or a filter; and as `find`.
        """
        chosen, operator = _operation(operation), self._operator()
        now = operator.ledger.read_clock()
        given = read_filters(filters, now)
        selection = _select(chosen, given, job_ids, everything=everything, now=now, limit=limit, cursor=cursor)
        act = partial(operator.operate_many, chosen, selection, forget_steps=forget_steps)
        if dry_run:
            result = act(dry_run=True)
        else:
            text = filters_text(given, limit or NO_LIMIT, everything=everything)
            detail = " ".join(filter(None, ("forced" if chosen.is_forced else "", text)))
            with self._recorded(chosen.permission, " ".join(job_ids), detail) as attempt:
                result = act()
                attempt.outcome = f"{len(result.done)} done, {len(result.refused)} refused"
        following = None if result.next is None else Cursor(*result.next).encode()
        return BulkPage(done=result.done, refused=result.refused, next=following)

    # --- the ledger ---------------------------------------------------------------------------------------------------

    def migrate(self) -> list[str]:
        """Create the ledger in PostgreSQL or SQLite, or upgrade it; in Redis, add what its indexes lack.

        Return what was changed, as `onejob migrate up` prints it; repeating the call changes nothing. Raises
        `ConfigurationError`, and `StoreError` for a role without the rights.
        """
        settings = self._settings if self._app is None else app_state_of(self._app).settings
        return migrate(settings.store, settings.namespace)

    # --- pauses and strikes -------------------------------------------------------------------------------------------

    def pause(
        self, *, task: str = "", queue: str = "", where: Mapping[str, object] | None = None,
        until: datetime | timedelta | None = None, note: str = "",
    ) -> Block:  # fmt: skip
        """Pause the jobs that match all that is named: none of them starts before the pause ends.

        `where`: values of arguments by path, as in `unique_on`: `{"order.customer": 42}`. `until`: when the pause ends
        by itself. `note`: why, for people; it is a part of the reason of each job. Running jobs are left alone. Raises
        `InvalidBlockError`.
        """
        return self._block(BlockKind.PAUSE, task=task, queue=queue, where=where, until=until, note=note)

    def resume(self, pause_id: str) -> Block:
        """End a pause: its jobs are due at once. Raises `BlockNotFoundError`."""
        return self._end_block(pause_id, BlockKind.PAUSE, "resume")

    def pauses(self) -> list[Block]:
        """Return the pauses that are not over, oldest first."""
        return [value_of(Block, each) for each in self._ledger.list_blocks(BlockKind.PAUSE)]

    def strike(
        self, task: str, *, queue: str = "", where: Mapping[str, object] | None = None,
        until: datetime | timedelta | None = None, note: str = "",
    ) -> Block:  # fmt: skip
        """Strike the jobs of a task that match all that is named: they become dead letters without a run.

        The parameters and errors are those of `pause`.
        """
        return self._block(BlockKind.STRIKE, task=task, queue=queue, where=where, until=until, note=note)

    def lift(self, strike_id: str) -> Block:
        """End a strike; a redrive sends its dead letters again. Raises `BlockNotFoundError`."""
        return self._end_block(strike_id, BlockKind.STRIKE, "lift")

    def strikes(self) -> list[Block]:
        """Return the strikes that are not over, oldest first."""
        return [value_of(Block, each) for each in self._ledger.list_blocks(BlockKind.STRIKE)]

    # --- limits -------------------------------------------------------------------------------------------------------

    def limits(self) -> list[LimitState]:
        """Return the limits that tasks define, the exceptions, and the keys that jobs wait for, by key."""
        return [value_of(LimitState, row_of(each)) for each in self._operator().list_limits()]

    def limit(self, key: str) -> LimitState:
        """Return a limit by name (`customer`), or one of its keys (`customer=42`). Raises `InvalidLimitError`."""
        return value_of(LimitState, row_of(self._operator().find_limit(key)))

    def set_limit(self, key: str, value: int | str, *, until: datetime | timedelta | None = None) -> LimitState:
        """Set an exception for a limit by name, or for one of its keys: all workers obey it at once.

        `value`: how many jobs may run at once, 0 to stop them, or a rate such as `"90/minute"`. `until`: when the
        exception ends by itself. Running jobs are left alone. Raises `InvalidLimitError`, and nothing is written, for
        another kind of value than that of the definition, and if no worker with such a limit has started.
        """
        operator, text = self._operator(), str(value)
        ends_at = None if until is None else later_time("until", until, operator.ledger.read_clock())
        with self._recorded("set_limit", key, shown_exception(text, ends_at)):
            return value_of(LimitState, row_of(operator.set_limit(key, text, until=ends_at)))

    def clear_limit(self, key: str) -> LimitState:
        """End the exception of a limit or a key, if it has one, and return what is valid then.

        Raises `InvalidLimitError`.
        """
        operator = self._operator()
        with self._recorded("clear_limit", key):
            return value_of(LimitState, row_of(operator.clear_limit(key)))

    def close(self) -> None:
        """Close the ledger that the client has opened; the ledger of an app stays open. Its next use opens it again."""
        ledger: Ledger | None = self.__dict__.pop(OPENED, None)
        if ledger is not None:
            ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- how it is done -----------------------------------------------------------------------------------------------

    @property
    def _ledger(self) -> Ledger:
        """The ledger, which is opened at its first use. Raises `ConfigurationError` for a file that does not exist."""
        if self._app is not None:
            return app_state_of(self._app).ledger
        ledger: Ledger | None = self.__dict__.get(OPENED)
        if ledger is None:
            if (path := missing_file(self._settings.store)) is not None:
                msg = f"there is no ledger at {path}: correct the path, or create the ledger with Client.migrate()"
                raise ConfigurationError(msg)
            made = build_ledger(self._settings)
            ledger = self.__dict__.setdefault(OPENED, made)  # another thread may have opened it, too
            if ledger is not made:
                made.close()
        return ledger

    def _operator(self) -> Operator:
        return Operator(app=self._app, ledger=self._ledger, origin=f"in Python by {self._actor}")

    def _recorded(self, action: str, target: str, detail: str = "") -> AbstractContextManager[Attempt]:
        return recorded(self._ledger, action, target, detail, source=SOURCE, actor=self._actor)

    def _block(
        self, kind: BlockKind, *, where: Mapping[str, object] | None, until: datetime | timedelta | None,
        **selected: str,
    ) -> Block:  # fmt: skip
        operator = self._operator()
        values = {path: text_of(value) for path, value in (where or {}).items()}
        ends_at = None if until is None else later_time("until", until, operator.ledger.read_clock())
        with self._recorded(kind, selected["task"], shown_text(values, **selected)):
            return value_of(Block, operator.block(kind, where=values, until=ends_at, **selected))

    def _end_block(self, block_id: str, kind: BlockKind, action: str) -> Block:
        operator = self._operator()
        with self._recorded(action, block_id):
            return value_of(Block, operator.end_block(block_id, kind))

    def _query(self, filters: Mapping[str, Any]) -> Query:
        return query_of(read_filters(filters, self._ledger.read_clock()))

    def _find(self, query: Query, limit: int, cursor: str | None) -> JobPage:
        # One job more than the page has tells whether there is a next page.
        asked = replace(query, limit=limit + 1, **decode_cursor(cursor))
        found = search(self._ledger, asked, is_over=_never)
        following = found.next_cursor(limit)
        jobs = [public_job(each) for each in found.jobs[:limit]]
        return JobPage(jobs=jobs, next=None if following is None else following.encode())

    def _operate(self, operation: Operation, job_id: str, *, forget_steps: bool = False) -> Job:
        after = self._operate_on(operation, job_id, forget_steps=forget_steps)
        return public_job(cast("JobRow", after))  # only a deletion leaves none

    def _operate_on(self, operation: Operation, job_id: str, *, forget_steps: bool = False) -> JobRow | None:
        operator = self._operator()
        with self._recorded(operation.permission, job_id, "forced" if operation.is_forced else ""):
            return operator.operate(operation, operator.ledger.get(job_id), forget_steps=forget_steps)

    # --- the same in coroutines ---------------------------------------------------------------------------------------

    aget = in_thread(get)
    afind = in_thread(find)
    acount = in_thread(count)
    awhy = in_thread(why)
    alogs = in_thread(logs)
    aduplicates = in_thread(duplicates)
    acosts = in_thread(costs)
    aqueues = in_thread(queues)
    aworkers = in_thread(workers)
    acancel = in_thread(cancel)
    arun_now = in_thread(run_now)
    aredrive = in_thread(redrive)
    aedit = in_thread(edit)
    adelete = in_thread(delete)
    abulk = in_thread(bulk)
    apause = in_thread(pause)
    aresume = in_thread(resume)
    apauses = in_thread(pauses)
    astrike = in_thread(strike)
    alift = in_thread(lift)
    astrikes = in_thread(strikes)
    alimits = in_thread(limits)
    alimit = in_thread(limit)
    aset_limit = in_thread(set_limit)
    aclear_limit = in_thread(clear_limit)
    amigrate = in_thread(migrate)
    aclose = in_thread(close)

    async def afind_all(self, **filters: Unpack[Filters]) -> AsyncIterator[Job]:
        """Yield the jobs of `find_all`, each page of which is read in a thread."""
        query, cursor = await asyncio.to_thread(self._query, filters), None
        while True:
            page = await asyncio.to_thread(self._find, query, PAGE, cursor)
            for job in page.jobs:
                yield job
            if (cursor := page.next) is None:
                return

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Schedules:
    """The entries of the schedule that the workers run. Each method has a coroutine whose name begins with an `a`.

    Raises `ConfigurationError` for a client without an app, which alone knows its schedule.
    """

    def __init__(
        self, operator: Callable[[], Operator], record: Callable[[str, str], AbstractContextManager[Attempt]]
    ) -> None:
        self._operator = operator
        self._record = record

    def list(self) -> Sequence[Schedule]:
        """Return the entries with their last and next ticks, by name."""
        return [value_of(Schedule, each) for each in self._operator().list_schedules()]

    def pause(self, entry: str) -> Schedule:
        """Pause an entry: it has no ticks until it is resumed. Raises `ScheduleEntryNotFoundError`."""
        return self._set_paused(entry, paused=True)

    def resume(self, entry: str) -> Schedule:
        """Resume an entry; the ticks of the pause are not made up for. Raises `ScheduleEntryNotFoundError`."""
        return self._set_paused(entry, paused=False)

    def run(self, entry: str) -> str:
        """Submit the call of an entry now, besides its ticks, and return the id of the job that answers.

        An equal job that is live answers, as for any call. Raises `ScheduleEntryNotFoundError`, and as `apply_async`.
        """
        operator = self._operator()
        operator.app_for("its schedule")
        with self._record("beat run", entry):
            return operator.run_entry(entry)

    def _set_paused(self, entry: str, *, paused: bool) -> Schedule:
        operator = self._operator()
        operator.app_for("its schedule")
        with self._record("beat pause" if paused else "beat resume", entry):
            return value_of(Schedule, operator.set_paused(entry, paused=paused))

    alist = in_thread(list)  # noqa: A003 - the method above
    apause = in_thread(pause)
    aresume = in_thread(resume)
    arun = in_thread(run)


def _select(
    operation: Operation, given: Mapping[str, Any], job_ids: Sequence[str], *, everything: bool, now: float,
    limit: int | None, cursor: str | None,
) -> Selection:  # fmt: skip
    """Return the jobs of a bulk operation. Raises `ValueError` unless there are either ids or a filter."""
    if isinstance(job_ids, str):
        raise TypeError(f"job_ids is a list of ids, not the text {job_ids!r}")
    if not job_ids and not everything and not has_condition(given.items()):
        raise ValueError("nothing is selected: give job_ids, a filter, or everything=True")
    if not job_ids:
        return select_matching(operation, given, now=now, limit=_checked_limit(limit, NO_LIMIT), cursor=cursor)
    if given or everything or cursor is not None or limit is not None:
        raise ValueError("job_ids select the jobs alone: leave out filters, everything, limit and cursor")
    return Selection(job_ids=job_ids)


def _operation(name: str) -> Operation:
    try:
        return Operation(name)
    except ValueError:
        raise ValueError(f"{name!r} is no operation: write one of {', '.join(Operation)}") from None


def _checked_limit(limit: int | None, most: int = PAGE_LIMIT) -> int:
    if limit is None:
        return most
    if not isinstance(limit, int) or not 1 <= limit <= most:
        raise ValueError(f"limit={limit!r} is a number of jobs from 1" + (f" to {most}" if most < NO_LIMIT else ""))
    return limit


def _never() -> bool:
    """Return False: a search in Python takes as long as it takes."""
    return False
