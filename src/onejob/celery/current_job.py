"""The handle of the running job: `onejob.current_job()` inside a task's body."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from decimal import Decimal
from functools import partial
from inspect import isawaitable, iscoroutine
from math import inf
from typing import Any, ParamSpec, TypeVar, cast, overload
from uuid import UUID, uuid5

from onejob.celery.async_calls import run_async
from onejob.celery.async_sessions import (
    AsyncSession,
    AsyncTransaction,
    Engine,
    checked_transaction_of,
    opened,
)
from onejob.celery.messages.payload import loads
from onejob.celery.messages.typed import Codec, convert_result, result_codec
from onejob.celery.run import Run, current_run
from onejob.celery.run_log import format_line
from onejob.errors import InvalidArgumentsError
from onejob.jobs.costs import checked_amounts
from onejob.jobs.public_view import Job, public_job
from onejob.jobs.submitter import check_name
from onejob.observability import tracing

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")
Own = TypeVar("Own", bound=AsyncSession)
EFFECTS = UUID("6f1f2d0c-6c5b-4c55-9f0e-0d2f1a3c7e55")
"""The UUID namespace of effect keys. It must never change."""
STAGE_LIMIT = 500
"""The maximum number of characters in the stage of a progress."""


def current_job() -> RunningJob:
    """Return the job whose body is running in this context. Raises `OneJobError` if there is none."""
    return RunningJob(current_run())


class RunningJob:
    """The running job, as its body sees it.

    A method whose name begins with an `a` is for the coroutine of an `async def` body, and for the tasks and task
    groups in it: it does the same as the method without the `a`, and the event loop goes on meanwhile.

    Safe to use from the body's thread, and from the threads that a coroutine of the body awaits.
    """

    __slots__ = ("_run",)

    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    def id(self) -> str:
        """The job's id, the same in every attempt."""
        return self._run.id

    @property
    def attempt(self) -> int:
        """The number of this run, from 1."""
        return self._run.job.attempt

    @property
    def token(self) -> int:
        """The fencing token, larger than in every earlier run. Pass it to systems that can refuse older tokens."""
        return self._run.job.token

    @property
    def job(self) -> Job:
        """The job as it was when this run started."""
        return public_job(self._run.job)

    @property
    def canceled(self) -> bool:
        """Whether this run was canceled, or is no longer the job's run. Reads the ledger."""
        return self._run.is_canceled

    def progress(self, done: float, total: float | None = None, stage: str = "") -> None:
        """Report the progress of the job: `done` of `total` units, in `stage`.

        Raises `InvalidArgumentsError` unless 0 <= done <= total, or for a stage of more than `STAGE_LIMIT` characters;
        `JobCanceled`, `LeaseLost` or `JobReleased` when this run has to stop: do not catch them.
        """
        if not _is_amount(done) or not (total is None or (_is_amount(total) and done <= total)):
            msg = f"progress takes numbers with 0 <= done <= total, not done={done!r:.100}, total={total!r:.100}"
            raise InvalidArgumentsError(msg)
        if not isinstance(stage, str) or len(stage) > STAGE_LIMIT:
            size = f"{len(stage)} characters" if isinstance(stage, str) else type(stage).__name__
            msg = f"the stage of a progress is a text of at most {STAGE_LIMIT} characters, not {size}"
            raise InvalidArgumentsError(msg)
        self._run.report({"done": done, "total": total, "stage": stage})

    def cost(self, /, **amounts: int | str | Decimal) -> None:
        """Add amounts, by unit, to the costs of the job: `job.cost(usd="0.031", tokens=812)`.

        Amounts are exact, with at most 9 decimal places; a negative one corrects what this attempt has added before.
        They are kept when the call returns, also if the run fails or its worker dies later. Raises
        `InvalidArgumentsError` for a float, any other value that is no amount, or a unit that is no identifier;
        `LeaseLost` if this run is no longer the job's: do not catch it.
        """
        self._run.add_cost(checked_amounts(amounts))

    def spent(self, limit: str, /, **amount: float) -> None:
        """Correct the weight of the job for the rate of one of its limits: `job.spent("model", tokens=812)`.

        The amount is the weight that the job has really had; the rate is corrected by the difference, for the jobs
        after it. The name of the amount is for the reader. Call it once in a run. Raises `InvalidArgumentsError` for a
        limit that the task does not have, and unless there is one amount, a number of at least 0.
        """
        values = [*amount.values()]
        if len(values) != 1 or not _is_amount(values[0]) or values[0] < 0:
            raise InvalidArgumentsError(
                f"spent takes one number of at least 0, such as tokens=812, not {amount!r:.100}"
            )
        self._run.spend(limit, values[0])

    def log(self, message: str, **fields: object) -> None:
        """Add a line to the log of this attempt, with the time and `name=value` of each field.

        The ledger has the line within a second. The last 65,536 characters of an attempt are kept, and of a line the
        first 8,192. They are shown to operators: on the page of the job, over HTTP, and by `onejob jobs logs`. Raises
        `InvalidArgumentsError` for a message that is no text.
        """
        if not isinstance(message, str):
            raise InvalidArgumentsError(f"a message of a log is a text, not {message!r:.100}")
        self._run.log.add(format_line(message, fields))

    def step(self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return `fn(*args, **kwargs)`, computed once per job: a later attempt gets the stored value.

        `name` must be unique in the body; the value must be JSON-serializable, and is returned as decoded from JSON,
        also the first time. A dataclass or a pydantic model that `fn` says to return is stored as JSON, and comes back
        as an object. Raises what `fn` raises, `InvalidPayloadError` for a value that cannot be stored, and the signals
        of `progress`.
        """
        step = _Step(self._run, name, fn)
        step.find()
        with step.traced():
            if not step.is_kept:
                self._run.raise_if_interrupted()
                step.keep(fn(*args, **kwargs))
        return cast("T", step.value)

    def effect_key(self, name: str) -> str:
        """Return an idempotency key for an effect on a third party: the same in every attempt of this job.

        The key belongs to the job, not to its identity: an equal job that is submitted after the end of this job has
        other keys. `name` identifies an effect within the job ("charge", "mail"). The key has 43 ASCII characters:
        "onejob-" and a UUID.
        """
        check_name("the name of an effect", name)
        return f"onejob-{uuid5(EFFECTS, f'{len(self.id)}:{self.id}:{name}')}"

    # --- the same for coroutines --------------------------------------------------------------------------------------

    async def acanceled(self) -> bool:
        """Return whether this run was canceled, or is no longer the job's run, like `canceled`."""
        return await self._call(lambda: self.canceled)

    async def aprogress(self, done: float, total: float | None = None, stage: str = "") -> None:
        """Report the progress of the job like `progress`."""
        await self._call(partial(self.progress, done, total, stage))

    async def acost(self, /, **amounts: int | str | Decimal) -> None:
        """Add amounts to the costs of the job like `cost`."""
        async with self._run.cost_lock:
            await self._call(partial(self.cost, **amounts))

    async def aspent(self, limit: str, /, **amount: float) -> None:
        """Correct the weight of the job for the rate of one of its limits like `spent`."""
        await self._call(partial(self.spent, limit, **amount))

    @overload
    async def astep(self, name: str, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def astep(self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def astep(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Return the awaited `fn(*args, **kwargs)`, computed once per job, like `step`.

        `fn` is a coroutine function, or returns an awaitable. A function that returns a value runs in the event loop:
        `astep("name", asyncio.to_thread, fn)` calls one that blocks. Steps of distinct names may be computed at once,
        by `asyncio.gather` or in a `TaskGroup`. Raises as `step`, and `InvalidArgumentsError` while another coroutine
        of the body computes a step of this name.
        """
        step = _Step(self._run, name, fn)
        with self._run.computing(name):
            await self._call(step.find)
            with step.traced():
                if not step.is_kept:
                    await self._call(self._run.raise_if_interrupted)
                    value = fn(*args, **kwargs)
                    await self._call(partial(step.keep, await value if isawaitable(value) else value))
        return step.value

    async def _call(self, operation: Callable[[], T]) -> T:
        """Return the result of an operation that waits for the store."""
        return await run_async(operation)

    # --- completing in a transaction of the user --------------------------------------------------------------------

    def complete_in(self, session: object, result: object = None) -> None:
        """Complete the job in the transaction of a session, which the caller commits.

        The session (of SQLAlchemy, Django, psycopg) must be on the database of the ledger. Its effects, the result and
        the state are one commit; the return value of the body is ignored. The job's row is locked from this call to
        the commit, so call it last.

        Raises `LeaseLost` if this run is no longer the job's: do not catch it, and roll back. Raises
        `InvalidPayloadError` for a result that cannot be stored, and `ConfigurationError` if the ledger is in another
        database or the connection is in autocommit mode.
        """
        self._run.complete_in(session, result)

    @contextmanager
    def transaction(self, session_factory: Callable[[], S]) -> Iterator[S]:
        """Open a session, and complete the job in it: effects in the block, result and state are one commit.

        The job completes with None unless the block calls `complete_in(session, result)`. An exception rolls back.
        `session_factory` returns a new session or connection, e.g. a `sessionmaker`. Raises as `complete_in` does, and
        what the commit raises; if the reply to a commit is lost, the ledger is read when the body ends. A connection
        that is lost before the commit raises the driver's error: list it in `autoretry_for`, or the job fails.
        """
        session: Any = session_factory()
        sessions = self._run.sessions
        before = len(sessions)
        try:
            yield session
            if len(sessions) == before:
                self.complete_in(session)
        except BaseException:
            del sessions[before:]  # it was certainly not committed
            with suppress(Exception):
                session.rollback()
            raise
        else:
            session.commit()
        finally:
            with suppress(Exception):
                session.close()

    async def acomplete_in(self, session: object, result: object = None) -> None:
        """Complete the job in the transaction of an asynchronous session, which the caller commits.

        As `complete_in`, for an `AsyncSession` or `AsyncConnection` of SQLAlchemy, a `psycopg.AsyncConnection`, or a
        connection of asyncpg in a transaction. Raises as `complete_in`, and `ConfigurationError` for another session.
        """
        await self._complete_in(checked_transaction_of(session), result)

    @overload
    def atransaction(self, source: Engine[S], /) -> AbstractAsyncContextManager[S]: ...
    @overload
    def atransaction(self, source: Own, /) -> AbstractAsyncContextManager[Own]: ...
    @overload
    def atransaction(self, source: Callable[[], Awaitable[S]], /) -> AbstractAsyncContextManager[S]: ...
    @overload
    def atransaction(
        self, source: Callable[[], AbstractAsyncContextManager[S]], /
    ) -> AbstractAsyncContextManager[S]: ...
    @overload
    def atransaction(self, source: Callable[[], S], /) -> AbstractAsyncContextManager[S]: ...
    def atransaction(self, source: Any, /) -> AbstractAsyncContextManager[Any]:
        """Open an asynchronous session, and complete the job in it, like `transaction`.

        `source`: an `async_sessionmaker` or an `AsyncEngine` of SQLAlchemy, a function that returns a connection of
        psycopg or asyncpg, an awaitable of one, or a context manager (`pool.connection`, `pool.acquire`). An open
        session is committed or rolled back as well, and stays open. Raises as `transaction`, and `ConfigurationError`
        for a session that is not asynchronous, and for Django's connection, whose transactions need a thread.
        """
        return self._transaction(source)

    @asynccontextmanager
    async def _transaction(self, source: Any) -> AsyncIterator[Any]:
        async with opened(source) as transaction:
            try:
                yield transaction.session
                if not self._completions(transaction):
                    await self._complete_in(transaction, None)
            except BaseException:
                for each in self._completions(transaction):
                    self._run.sessions.remove(each)  # it was certainly not committed
                with suppress(Exception):
                    await transaction.rollback()
                raise
            await transaction.commit()

    async def _complete_in(self, transaction: AsyncTransaction, result: object) -> None:
        await transaction.call(lambda session: self._run.complete_in(session, result, owner=transaction))

    def _completions(self, transaction: AsyncTransaction) -> list[Any]:
        """Return the sessions in which the body has completed the job that are the session of a transaction."""
        found = [each for each in self._run.sessions if isinstance(each, AsyncTransaction)]
        return [each for each in found if each.session is transaction.session]


class _Step:
    """A step of a body. Raises `InvalidArgumentsError` for a name that no step can have."""

    def __init__(self, run: Run, name: str, fn: Callable[..., object]) -> None:
        check_name("the name of a step", name)
        self._run = run
        self._name = name
        self._codec = result_codec(fn)
        self._what = f"the value of step {name!r}"
        self._stored: str | None = None

    @property
    def is_kept(self) -> bool:
        """Whether the value is in the ledger."""
        return self._stored is not None

    @property
    def value(self) -> Any:
        """The kept value."""
        return convert_result(Codec.build, self._codec, loads(self._stored or "null"), self._what)

    def find(self) -> None:
        """Look for a value that an earlier attempt has kept."""
        self._stored = self._run.find_step(self._name)

    def traced(self) -> Any:
        """Return the span of the step as a context manager."""
        return tracing.tracer.step(self._name, memoised=self.is_kept)

    def keep(self, value: object) -> None:
        """Keep the value. Raises `InvalidPayloadError`, and as `report`."""
        if iscoroutine(value):
            value.close()
            raise InvalidArgumentsError(f"step {self._name!r} computes a coroutine: await job.astep(...) instead")
        self._stored = self._run.keep_step(self._name, convert_result(Codec.dump, self._codec, value, self._what))


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < inf
