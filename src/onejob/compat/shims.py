"""The parts that both shims share: imports by the name of the replaced library, notices, and that library's locks.

With `share_old_locks`, for as long as processes with either library run side by side, a submission takes the lock that
the old library would take, and the end of its job releases it: neither side admits what the other has admitted. The
ledger decides alone again when the option is gone, and without it nothing here costs a round trip.
"""

import pkgutil
import sys
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar

from onejob.celery.app_state import AppState, app_state_of
from onejob.celery.messages.payload import decode
from onejob.celery.submission.call import Prepared, is_promised, parse_item
from onejob.celery.task import Task
from onejob.errors import ConfigurationError, DuplicateJobError
from onejob.jobs.model import Admission, Outcome, Submission
from onejob.observability.logs import log_warning

ROUNDS = 10
"""How often a lock is tried that is released, each time, before its holder is read."""
HELD = (
    "a call of task {task} is a duplicate because of the lock {key!r} of the old library, which {holder} holds: no job "
    "of the ledger. If no process of the old version has that task any more, the lock was left behind: remove it by "
    "app.tasks[{task!r}].{unlock}({key!r})"
)

UNENDED = (
    "{option} does not end the uniqueness of a job that still waits or runs: it ends with the job, and a job whose "
    "worker died recovers when its lease expires, after `lease` seconds. Delete the option: there is no lock to expire"
)


def alias(package: ModuleType, name: str) -> None:
    """Make `import <name>`, and imports of its submodules, return `package` and its submodules in this process.

    A repeated call does nothing. Raises `ConfigurationError` if the library of that name has been imported already:
    then some modules use its classes and others would use ours.
    """
    loaded = sys.modules.get(name)
    if loaded is not None and loaded is not package:
        where = getattr(loaded, "__file__", None) or "an unknown place"
        raise ConfigurationError(
            f"{name} was imported from {where} before {package.__name__}.install() was called: call install() first, "
            "for example at the top of the module that creates the Celery app"
        )
    sys.modules[name] = package
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        sys.modules[name + module.name.removeprefix(package.__name__)] = import_module(module.name)


def import_class(path: object, name: str, package: str) -> Any:
    """Return the class at a dotted path; a path below the library `name` is read as a path below our `package`.

    A value that is no string is returned unchanged. Raises `ConfigurationError` for a path that cannot be imported.
    """
    if not isinstance(path, str):
        return path
    module, _, attribute = path.rpartition(".")
    if module == name or module.startswith(f"{name}."):
        module = package + module.removeprefix(name)
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        msg = f"the backend class {path!r} cannot be imported: {error}. Write the full path of a class"
        raise ConfigurationError(msg) from error


@lru_cache(1000)
def notice_once(text: str) -> None:
    """Log a warning; a repeated call with one of the last thousand texts does nothing.

    It is a log record and no `warnings.warn`, which a program that turns warnings into errors would not survive.
    """
    log_warning("%s", text)


# --- shared locks -----------------------------------------------------------------------------------------------------


class HeldByOldLibrary(Exception):  # noqa: N818 - never leaves this package
    """A process of the replaced library holds the lock of a submission."""

    def __init__(self, key: str, holder: str) -> None:
        super().__init__(key, holder)
        self.key = key
        self.holder = holder
        """The value of the lock; "" if it cannot be read."""


class LockSharingTask(Task[..., Any]):
    """A `onejob.Task` that can take, read and release a lock of the library that it was written for."""

    abstract = True
    share_old_locks: ClassVar[bool] = False
    """Whether the task respects and holds the locks of the library that it was written for, while both run."""
    _onejob_has_own_rule = True
    _unlocks_by: ClassVar[str]
    """The public method that removes a lock by its key."""

    @classmethod
    def _check_locks(cls, setting: str, method: Callable[..., str], *, has_place: bool) -> None:
        """Raise `ConfigurationError` if shared locks have no place, or if a replaced `method` decides what is equal."""
        if not isinstance(cls.share_old_locks, bool):
            msg = f"share_old_locks of task {cls.name} must be True or False, not {cls.share_old_locks!r:.100}"
            raise ConfigurationError(msg)
        if not has_place and cls.share_old_locks:
            raise ConfigurationError(
                f"task {cls.name} has share_old_locks, and no setting says where the old locks are: set {setting} as "
                "the old version has it, or remove share_old_locks"
            )
        name = method.__name__  # this method makes the text of shared locks beside a function that decides
        if getattr(cls, name) is not method and not callable(cls.unique_on):
            raise ConfigurationError(
                f"{name} of task {cls.name} does not decide which calls are equal: set unique_on to a function of the "
                "arguments that returns what counts, such as unique_on=lambda order_id, **_: order_id, and remove "
                f"{name}"
            )

    @abstractmethod
    def _key_of(self, args: Any, kwargs: Any) -> str:
        """Return the key of a call in the old library. Raises `TypeError` or `KeyError` for a call without one."""

    @abstractmethod
    def _take(self, key: str, job_id: str) -> bool:
        """Take the lock for a job; False if it is held."""

    @abstractmethod
    def _holder(self, key: str) -> str | None:
        """Return the value of a lock: our locks have the job's id; None if the lock is free, "" if it is unreadable."""

    @abstractmethod
    def _release(self, key: str) -> None:
        """Release the lock, whoever holds it."""

    def _belongs(self, holder: str, job_id: str) -> bool:
        """Return whether the value of a lock belongs to a job that has ended here."""
        return holder == job_id

    def _old_key(self, args: Any, kwargs: Any) -> str | None:
        with suppress(TypeError, KeyError):
            return self._key_of(args, kwargs)
        return None

    # --- submitting -------------------------------------------------------------------------------------------------

    def _onejob_admit(
        self, app_state: AppState, prepared: Prepared, *, session: Any, producer: Any
    ) -> Admission | Exception:
        call, submission = prepared.call, prepared.submission
        send = partial(super()._onejob_admit, app_state, prepared, session=session, producer=producer)
        admission: Admission | Exception | None = None
        shares = not is_promised(call, canvas=submission.canvas) and self.share_old_locks
        key = self._old_key(call.args, call.kwargs) if shares else None
        if key is None or not self._take_or_raise(key, submission):
            return send()
        try:
            admission = send()
        finally:  # a job that a rollback may withdraw cannot hold a lock that nothing would release
            holds = isinstance(admission, Admission) and admission.job.id == submission.id
            if not holds or session is not None:
                self._release(key)
        return admission

    def _take_or_raise(self, key: str, submission: Submission) -> bool:
        """Take the lock for a submission; False if a job in the ledger answers, or others take the lock each time."""
        ledger = app_state_of(self.app).ledger
        for _ in range(ROUNDS):
            if self._take(key, submission.id):
                return True
            if ledger.store.find_existing(submission.identity, submission.key) is not None:
                return False
            holder = self._holder(key)
            job = ledger.get_or_none(holder) if holder else None
            if job is not None and job.holds_identity:  # admitted since the look into the ledger
                return False
            if job is not None:
                self._release(key)  # the process of its job died before the release
            elif holder is not None:
                notice_once(HELD.format(task=self.name, key=key, holder=holder or "a task", unlock=self._unlocks_by))
                raise HeldByOldLibrary(key, holder)
        return False

    def submit_many(self, items: Any, *, session: Any = None, **options: Any) -> list[Any]:
        """Submit many jobs, as `onejob.Task` does, but one by one while the locks of the old library are shared.

        A call that a lock of the old library holds back is a duplicate, too; its result has the holder of the lock.
        """
        if app_state_of(self.app).is_eager or not self.share_old_locks:
            return super().submit_many(items, session=session, **options)
        calls = [parse_item(self, number, item) for number, item in enumerate(items)]
        return [self._submit_item(args, kwargs, session=session, **options) for args, kwargs in calls]

    def _submit_item(self, args: Any, kwargs: Any, **options: Any) -> Any:
        """Submit a job; a duplicate raises nothing, so that the other items are submitted."""
        try:
            return super().apply_async(args, kwargs, **options)
        except DuplicateJobError as error:
            existing, rejects = error.job_id, True
        except HeldByOldLibrary as held:
            existing, rejects = held.holder, self._onejob.conflict_policy.rejects
        result = self.AsyncResult(existing)
        result.outcome = Outcome.REJECTED if rejects else Outcome.ATTACHED
        return result

    # --- running ----------------------------------------------------------------------------------------------------

    def _onejob_enter(self, request: Any, body: Any, args: Any, kwargs: Any) -> Any:
        """Run the body, as `onejob.Task` does; the end of the job releases the lock of the old library."""
        if request.is_eager or not self.share_old_locks:
            return super()._onejob_enter(request, body, args, kwargs)
        if self.unlock_before_run():
            self._release_own(str(request.id), args, kwargs)
        try:
            return super()._onejob_enter(request, body, args, kwargs)
        finally:
            self._release_ended(str(request.id), args, kwargs)

    def unlock_before_run(self) -> bool:
        """Return whether equal jobs are admitted as soon as a run has begun."""
        return False

    def _release_ended(self, job_id: str, args: Any, kwargs: Any) -> None:
        """Release the lock of a job that no longer holds its identity; a failure is logged."""
        try:
            job = app_state_of(self.app).ledger.get_or_none(job_id)
            if job is None:
                self._release_own(job_id, args, kwargs)
            elif not job.holds_identity or job.state.final:
                submitted = decode(job.payload)  # the body may have changed the arguments that it got
                self._release_own(job_id, submitted.args, submitted.kwargs)
        except Exception as error:  # noqa: BLE001 - the job has ended, whatever the old library's server does
            log_warning("job %s: the old lock was not released: %s", job_id, error)

    def _release_own(self, job_id: str, args: Any, kwargs: Any) -> None:
        """Release the lock of a job, unless another job holds it by now."""
        key = self._old_key(args, kwargs)
        holder = None if key is None else self._holder(key)
        if key is not None and holder is not None and self._belongs(holder, job_id):
            with suppress(FileNotFoundError):
                self._release(key)
