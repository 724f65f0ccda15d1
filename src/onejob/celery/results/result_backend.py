"""The result backend `onejob://`: Celery reads the results of jobs from the ledger, which has them already.

The results of other tasks are kept in the ledger's store (`onejob://`), or by another backend of Celery
(`onejob+redis://localhost/1`).
"""

from __future__ import annotations

import math
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from celery import Celery, current_app, maybe_signature, states
from celery.app import backends
from celery.backends.base import DisabledBackend, SyncBackendMixin
from celery.exceptions import ChordError, ImproperlyConfigured, TimeoutError  # noqa: A004 - the name that Celery's users catch
from celery.result import ResultSet, allow_join_result
from kombu.utils.encoding import bytes_to_str

from onejob.celery.app_state import app_state_of
from onejob.celery.messages.broker import SCHEME
from onejob.celery.messages.payload import REPLACED, read_message
from onejob.celery.results.result import CELERY_STATES, EndWait, meta_of
from onejob.errors import ConfigurationError, JobPurgedError, StoreError, StoreUnavailableError
from onejob.jobs.model import JobRow
from onejob.ledger.ledger import Ledger
from onejob.stores.urls import redacted

if TYPE_CHECKING:
    Mixin: Any = object
    KeyValueStore: Any = object
else:
    from celery.backends.base import KeyValueStoreBackend as KeyValueStore

    Mixin = object

Meta = dict[str, Any]
"""A state and a result as Celery's result backends return them."""
HAS_JOB = "onejob_has_job"
"""The attribute of a worker's request with the id of its job, once the ledger has the job and so stores its end."""
FOR_EVER = 100 * 366 * 86_400.0
"""Seconds for which results are kept where `result_expires` is off."""
CHUNK = 100
"""How many members of a chord's header are read together."""
BINARY = "base64:"
"""The beginning of a stored text that stands for bytes: no result begins so, since each is a mapping."""


def open_backend(app: Celery, url: str | None = None, **options: Any) -> Any:
    """Return the backend of an app for a URL; Celery calls it like a backend's class. Raises `ConfigurationError`.

    `url` is `onejob://`, or the part after `onejob+`: the URL of the backend for the tasks that are no jobs.
    """
    if url is None or url.partition("://")[0] == SCHEME:
        return LedgerBackend(app, url=url, **options)
    from celery.backends.rpc import RPCBackend  # an import of onejob imports no backend

    by_url: Any = backends.by_url
    kind, kind_url = by_url(url, app.loader)
    if kind is open_backend or issubclass(kind, (DisabledBackend, RPCBackend)):
        raise ConfigurationError(
            f"result_backend = 'onejob+{redacted(url):.100}' names a backend whose results no other process can read: "
            f"use onejob:// alone, which keeps the results of all tasks, or the URL of another backend after onejob+"
        )
    backend = _joined(kind)(app=app, url=kind_url, **options)
    backend.opened_by = url
    return backend


@cache
def _joined(kind: type[Any]) -> type[Any]:
    """Return a class of backends that read the results of jobs from the ledger, and other results like `kind`."""
    from celery.backends.asynchronous import AsyncBackendMixin

    bases = (PushedResults, kind) if issubclass(kind, AsyncBackendMixin) else (LedgerResults, kind)
    return type(f"Ledger{kind.__name__}", bases, {})


def _reopen(url: str | None) -> Any:
    return open_backend(current_app._get_current_object(), url)  # type: ignore[attr-defined] # noqa: SLF001 - a proxy's


class LedgerResults(Mixin):  # type: ignore[misc]
    """The mixin for a backend of Celery, by which it stores only the results of tasks that are no jobs."""

    app: Celery
    opened_by: str | None = None
    """The URL that the backend was opened with."""
    supports_native_join = False
    """The flag by which a group reads its members one by one: each waits for its own signal."""

    @property
    def _ledger(self) -> Ledger:
        return app_state_of(self.app).ledger

    # --- reading ----------------------------------------------------------------------------------------------------

    def get_task_meta(self, task_id: str, cache: bool = True) -> Meta:  # noqa: FBT001, FBT002 - Celery's signature
        """Return the state and the result of a job, or of another task. Raises `StoreError`."""
        return self._meta_with_children(self._ledger.get_or_none(task_id)) or self.get_other_meta(task_id, cache)

    def get_other_meta(self, task_id: str, cache: bool = True) -> Meta:  # noqa: FBT001, FBT002 - as above
        """Return the state and the result that are stored for an id, of a task that is no job."""
        meta: Meta = super().get_task_meta(task_id, cache)
        return meta

    def get_metas(self, task_ids: Sequence[str]) -> dict[str, Meta]:
        """Return the states and results by id, reading all jobs in one round trip, without their children."""
        jobs = self._ledger.get_many(task_ids)
        metas = {each: meta for each in task_ids if (meta := self._meta_of(jobs.get(each))) is not None}
        return metas | self.get_other_metas([each for each in task_ids if each not in metas])

    def get_other_metas(self, task_ids: Sequence[str]) -> dict[str, Meta]:
        """Return the stored states and results by id, of tasks that are no jobs."""
        return {each: self.get_other_meta(each) for each in task_ids}

    def _meta_of(self, job: JobRow | None) -> Meta | None:
        """Return the result of a job; None without a job, and for a job that ends as the task that replaced it."""
        if job is None or job.reason == REPLACED:
            return None
        meta = meta_of(job, self.app)
        if self.app.conf.result_extended:
            meta |= _extended(job)
        return meta

    def _meta_with_children(self, job: JobRow | None) -> Meta | None:
        """Return the result of a job, and if it has ended the tasks that its run has submitted."""
        meta = self._meta_of(job)
        if meta is not None and job is not None and job.state.final:
            meta["children"] = self.get_other_meta(job.id, cache=False).get("children") or []
        return meta

    def task_result_exists(self, task_id: str) -> bool:
        """Return whether the ledger has a job with this id, or a result is stored for another task."""
        return self._ledger.get_or_none(task_id) is not None or bool(super().task_result_exists(task_id))

    # --- waiting ----------------------------------------------------------------------------------------------------

    def add_pending_result(self, result: Any, weak: bool | None = None, **options: Any) -> Any:  # noqa: FBT001 - Celery's
        """Call the callbacks of `result.then` now if its job has ended, or at the end of a task that is no job."""
        if weak is None:  # by `AsyncResult.get`, which waits next
            return result
        meta = self._meta_with_children(self._ledger.get_or_none(result.id))
        if meta is None:
            return super().add_pending_result(result, weak=weak, **options)
        result._maybe_set_cache(meta)  # noqa: SLF001 - Celery's
        return result

    def wait_for_pending(
        self, result: Any, timeout: float | None = None, propagate: bool = True,  # noqa: FBT001, FBT002 - Celery's
        callback: Callable[..., object] | None = None, **options: Any,
    ) -> Any:  # fmt: skip
        """Wait for the end of a job or another task, and return its result or raise its failure.

        Raises Celery's `TimeoutError`, `JobPurgedError` for a job that was purged, and `StoreError`.
        """
        if result._cache is None:  # noqa: SLF001 - Celery's
            self._wait(result, timeout, **options)
        return result.maybe_throw(propagate=propagate, callback=callback)

    def _wait(
        self, result: Any, timeout: float | None, *, on_interval: Callable[[], object] | None = None,
        on_message: object = None, **_: Any,
    ) -> None:  # fmt: skip
        """Wait until a result has ended, and set it. The end of a job, or of a job before it in a chain, wakes."""
        if on_message is not None:
            raise ImproperlyConfigured(f"{SCHEME}:// does not support on_message, which is called for stored states")
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        earlier = [parent.id for parent in result._parents() if parent.id]  # noqa: SLF001 - Celery's
        with EndWait(self._ledger.store, result.id, earlier) as wait:
            while (meta := self._read(result.id, wait))["status"] not in states.READY_STATES:
                if (left := deadline - time.monotonic()) <= 0:
                    raise TimeoutError(f"{result.id} is {meta['status']} after {timeout} s")
                if on_interval is not None:
                    on_interval()
                wait.wait(left)
        result._maybe_set_cache(meta)  # noqa: SLF001 - Celery's

    def _read(self, task_id: str, wait: EndWait) -> Meta:
        job = wait.read()
        meta = self._meta_with_children(job) or self.get_other_meta(task_id, cache=False)
        if job is None and meta["status"] not in states.READY_STATES:
            self._raise_if_purged(task_id)
        return meta

    def _raise_if_purged(self, job_id: str) -> None:
        """Raise `JobPurgedError` for a job that has ended, and whose result is gone: a wait for it would never end."""
        if isinstance(error := self._ledger.why_missing(job_id), JobPurgedError):
            raise error

    iter_native = SyncBackendMixin.iter_native

    def get_many(
        self, task_ids: Iterable[str], timeout: float | None = None, on_interval: Callable[[], object] | None = None,
        max_iterations: int | None = None, **_: Any,
    ) -> Iterator[tuple[str, Meta]]:  # fmt: skip
        """Yield ids and results of the ended tasks; then, unless `max_iterations` is given, wait for the other tasks.

        Raises as `wait_for_pending` does.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        metas = self.get_metas(list(task_ids))
        ended = {each: meta for each, meta in metas.items() if meta["status"] in states.READY_STATES}
        yield from ended.items()
        for task_id in () if max_iterations else metas.keys() - ended.keys():
            result: Any = self.app.AsyncResult(task_id, backend=self)
            self._wait(result, None if timeout is None else deadline - time.monotonic(), on_interval=on_interval)
            yield task_id, result._get_task_meta()  # noqa: SLF001 - Celery's

    # --- storing ----------------------------------------------------------------------------------------------------

    def store_result(
        self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None, **options: Any
    ) -> Any:  # fmt: skip
        """Store a result, unless the ledger has it as the result of a job; store the children of a job's run."""
        if not self._is_in_ledger(task_id, state, request):
            return super().store_result(task_id, result, state, traceback, request=request, **options)
        if state in states.READY_STATES and getattr(request, "children", None):
            super().store_result(task_id, None, states.PENDING, request=request)
        return self.encode_result(result, state)

    def _is_in_ledger(self, task_id: str, state: str, request: Any) -> bool:
        """Return whether the ledger has a task's state. For the results of a run itself no read is needed."""
        if getattr(request, HAS_JOB, None) == task_id:
            return True
        task = None if request is None else self.app.tasks.get(getattr(request, "task", ""))
        if task is not None and not hasattr(task, "_onejob"):
            return False
        if task is not None and state not in states.READY_STATES:
            return True
        job = self._ledger.get_or_none(task_id)  # a call that ends before it is submitted has none
        return job is not None and job.reason != REPLACED

    # --- the backend as an object -----------------------------------------------------------------------------------

    def as_uri(self, include_password: bool = False) -> str:  # noqa: FBT001, FBT002 - Celery's signature
        """Return the URL of the backend for other tasks after `onejob+`, without its password."""
        return f"{SCHEME}+{super().as_uri(include_password)}"

    def __reduce__(self, *_: Any) -> Any:
        return _reopen, (self.opened_by,)


class _HasJobError(Exception):
    """The awaited id has become the id of a job."""


class PushedResults(LedgerResults):
    """The mixin for a backend that gets notifications of the ends of its tasks, such as Redis."""

    def _wait(self, result: Any, timeout: float | None, **options: Any) -> None:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        meta = self._meta_with_children(self._ledger.get_or_none(result.id))
        if meta is None:
            meta = self.get_other_meta(result.id, cache=False)
            if meta["status"] not in states.READY_STATES and self._wait_elsewhere(result, timeout, **options):
                return
        result._maybe_set_cache(meta)  # noqa: SLF001 - Celery's
        if meta["status"] not in states.READY_STATES:
            super()._wait(result, None if timeout is None else deadline - time.monotonic(), **options)

    def _wait_elsewhere(
        self, result: Any, timeout: float | None, *, on_interval: Callable[[], object] | None = None, **options: Any
    ) -> bool:
        """Wait for the end of a task that is no job; return False once it is a job, as the next in a chain becomes."""
        self._raise_if_purged(result.id)

        def look() -> None:
            if on_interval is not None:
                on_interval()
            if self._meta_of(self._ledger.get_or_none(result.id)) is not None:
                raise _HasJobError

        wait: Any = super(LedgerResults, self)
        wait.add_pending_result(result)
        try:
            wait.wait_for_pending(result, timeout=timeout, on_interval=look, propagate=False, **options)
        except _HasJobError:
            return False
        return True


def _extended(job: JobRow) -> Meta:
    """Return the fields that `result_extended` adds to the result of a job."""
    message = read_message(job)
    given = {} if message is None else {"args": message.args, "kwargs": message.kwargs}
    return given | {"worker": job.node or None, "queue": job.queue or None}


# --- the results of other tasks, in the ledger's store ----------------------------------------------------------------


class LedgerBackend(LedgerResults, KeyValueStore):  # type: ignore[misc]
    """The backend `onejob://`: the results of tasks that are no jobs are in the ledger's store, too.

    At the end of each member of a chord its worker looks whether all members have ended, and then calls the body.
    Nothing is counted, so that a member whose end is reported twice calls no body early.
    """

    supports_autoexpire = True
    connection_errors = (StoreUnavailableError,)

    def __init__(self, app: Celery, **options: Any) -> None:
        super().__init__(app, **options)
        self.thread_safe = True

    def as_uri(self, include_password: bool = False) -> str:  # noqa: ARG002, FBT001, FBT002 - Celery's signature
        """Return the URL, which has no secrets."""
        return f"{SCHEME}://"

    def exception_safe_to_retry(self, error: Exception) -> bool:
        """Return True: `result_backend_always_retry` may repeat every operation."""
        return isinstance(error, StoreUnavailableError)

    def get(self, key: bytes) -> str | bytes | None:
        """Return the value that is stored under a key, or None."""
        return self.mget([key])[0]

    def mget(self, keys: Sequence[bytes]) -> list[str | bytes | None]:
        """Return the values that are stored under keys, in one round trip; None for a key without a value."""
        names = [bytes_to_str(key) for key in keys]
        found = self._ledger.store.results(names)
        return [_decoded(found.get(name)) for name in names]

    def set(self, key: bytes, value: str | bytes) -> None:
        """Store a value for `result_expires`."""
        text = value if isinstance(value, str) else BINARY + b64encode(value).decode()
        self._ledger.store.put_result(bytes_to_str(key), text, keep_for=float(self.expires or FOR_EVER))

    def delete(self, key: bytes) -> None:
        """Delete the value under a key."""
        self._ledger.store.delete_result(bytes_to_str(key))

    def get_other_metas(self, task_ids: Sequence[str]) -> dict[str, Meta]:
        """Return the stored states and results by id, of tasks that are no jobs, in one round trip."""
        values = self.mget([self.get_key_for_task(each) for each in task_ids]) if task_ids else []
        pending = {"status": states.PENDING, "result": None}
        stored = [dict(pending) if value is None else self.decode_result(value) for value in values]
        return dict(zip(task_ids, stored, strict=True))

    # --- chords -----------------------------------------------------------------------------------------------------

    def apply_chord(self, header_result_args: Sequence[Any], body: Any, **_: Any) -> None:  # noqa: ARG002 - Celery's
        """Store the ids of a chord's header, before its members are sent."""
        self.app.GroupResult(*header_result_args).save(backend=self)

    def on_chord_part_return(self, request: Any, state: str, result: Any, **_: Any) -> None:
        """Call the body of a chord when its last member has ended. Raises `StoreError`."""
        group_id, is_job = request.group, getattr(request, HAS_JOB, None) == request.id
        if not group_id:
            return
        if not is_job and self.get_task_meta(request.id)["status"] not in states.READY_STATES:
            self.store_result(request.id, result, state, request=request)  # the chord needs it, though it is ignored
        body = maybe_signature(request.chord, app=self.app)
        header = self.restore_group(group_id)
        if header is None:
            self.chord_error_from_stack(body, ChordError(f"the ids of group {group_id} are no longer stored"))
            return
        members = list(_members(header))
        metas = self._find_ends([member.id for member in members])
        if metas is None or not self._may_call(group_id, request.id):
            return
        for member in members:
            member._maybe_set_cache(metas[member.id])  # noqa: SLF001 - Celery's
        self._call_body(body, header, members)

    def _find_ends(self, task_ids: Sequence[str]) -> dict[str, Meta] | None:
        """Return the results of tasks if all have ended; the last tasks are read first, since they end last."""
        metas: dict[str, Meta] = {}
        for end in range(len(task_ids), 0, -CHUNK):
            found = self.get_metas(task_ids[max(0, end - CHUNK) : end])
            if any(meta["status"] not in states.READY_STATES for meta in found.values()):
                return None
            metas |= found
        return metas

    def _may_call(self, group_id: str, task_id: str) -> bool:
        """Return whether a member calls its chord's body: only the first member that can, again if its worker died."""
        kept = self._ledger.keep_event(f"chord:{group_id}", task_id, keep_for=float(self.expires or FOR_EVER))
        return kept == task_id

    def _call_body(self, body: Any, header: Any, members: Sequence[Any]) -> None:
        try:
            with allow_join_result():
                values = header.join(propagate=True)
        except Exception as error:  # noqa: BLE001 - that of a member
            failed = next(each for each in members if each.state in states.PROPAGATE_STATES)
            self._fail_body(body, f"Dependency {failed.id} raised {error!r}", error)
            return
        try:
            body.delay(values)
        except StoreError:
            raise  # a sweep has the end of the member reported again
        except Exception as error:  # noqa: BLE001 - that of a broker or of a task, which Celery reports so
            self._fail_body(body, f"Callback error: {error!r}", error)

    def _fail_body(self, body: Any, reason: str, cause: Exception) -> None:
        error = ChordError(reason)
        error.__cause__ = cause
        self.chord_error_from_stack(body, error)


def _decoded(text: str | None) -> str | bytes | None:
    is_binary = text is not None and text.startswith(BINARY)
    return b64decode(text.removeprefix(BINARY)) if is_binary and text is not None else text


def _members(results: Any) -> Iterator[Any]:
    """Yield the results of tasks in a group, and in its inner groups."""
    for each in results.results:
        if isinstance(each, ResultSet):
            yield from _members(each)
        else:
            yield each


def confirm_end(backend: Any, request: Any, job: JobRow) -> None:
    """Check the chord of a member whose end Celery has reported before the ledger had it, as for a revocation."""
    if isinstance(backend, LedgerBackend) and request.chord:
        backend.on_chord_part_return(request, CELERY_STATES[job.state], None)


def install() -> None:
    """Register the backend with Celery, also where the package is not installed. Repeating the call changes nothing."""
    backends.BACKEND_ALIASES[SCHEME] = f"{__name__}:open_backend"
