"""`Singleton`: celery-singleton's task class as a `onejob.Task`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from celery import Celery

from onejob.celery.app_state import app_state_of
from onejob.celery.submission.call import Caller
from onejob.compat.celery_singleton import util
from onejob.compat.celery_singleton.backends import get_backend
from onejob.compat.celery_singleton.config import Config
from onejob.compat.celery_singleton.exceptions import DuplicateTaskError
from onejob.compat.shims import UNENDED, HeldByOldLibrary, LockSharingTask, notice_once
from onejob.errors import DuplicateJobError
from onejob.jobs.model import Outcome

CLEARED = (
    "clear_locks, release_lock and unlock remove locks that celery-singleton left; a job of the ledger keeps its "
    "identity until it ends. To stop one, cancel it: AsyncResult(id).revoke()"
)

KEPT = (
    "clear_locks removed nothing: with share_old_locks it would remove the locks of tasks and jobs that are "
    "live, and equal ones would run at the same time. Delete the call, here and in the version before this one"
)


class Lock(str):
    """The text of a lock, with its call, by which the ledger finds the job."""

    __slots__ = ("call",)
    call: tuple[Sequence[Any], Mapping[str, Any]]


def clear_locks(app: Celery) -> None:
    """Remove the locks that celery-singleton left in its backend. Jobs of the ledger keep their identity.

    With `share_old_locks`, of `Singleton` or of a task of the app, it removes nothing: those locks belong to tasks and
    jobs that may be live.
    """
    if Singleton.share_old_locks or any(getattr(task, "share_old_locks", False) for task in app.tasks.values()):
        notice_once(KEPT)
        return
    config = Config(app)
    if config.has_backend:
        get_backend(config).clear(config.key_prefix)
    notice_once(CLEARED)


class _OnDuplicate:
    """A descriptor: on a class the unset option `on_duplicate`, on a task celery-singleton's method, for `super()`."""

    def __get__(self, task: Any, _: Any = None) -> Any:
        return None if task is None else task._answer_by_default  # noqa: SLF001 - of the class below


class Singleton(LockSharingTask):
    """A task of which equal submissions run once, with the options and methods of celery-singleton's class.

    - `unique_on`: the names of arguments, as for `onejob.Task`, or a single name; empty: all arguments count, as in
    celery-singleton. - `raise_on_duplicate`: a duplicate raises `DuplicateTaskError`. Default:
    `singleton_raise_on_duplicate`, False. - `lock_expiry`: accepted, and used for shared locks only: see the guide on
    migrating.
    """

    abstract = True
    raise_on_duplicate: ClassVar[bool | None] = None
    lock_expiry: ClassVar[float | None] = None
    on_duplicate: ClassVar[Any] = _OnDuplicate()
    _unlocks_by = "unlock"
    _onejob_foreign_options = frozenset({"raise_on_duplicate", "lock_expiry"})
    _answer: ClassVar[Callable[[Any, str], Any] | None] = None
    """The `on_duplicate` method of a program's own class."""

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        """Translate the options, and bind the task.

        Raises `ConfigurationError` if shared locks have no place, and for a `generate_lock` of the program's own.
        """
        config = Config(app)
        cls._check_locks("singleton_backend_url", Singleton.generate_lock, has_place=config.has_backend)
        cls.unique_on = cls.unique_on or None
        if isinstance(cls.unique_on, str):
            cls.unique_on = [cls.unique_on]
        own: Any = cls.on_duplicate
        if callable(own):
            cls._answer, cls.on_duplicate = own, "attach"
        elif cls._answer is None and _either(cls.raise_on_duplicate, config.raise_on_duplicate):
            cls.on_duplicate = "raise"
        elif own is None:
            cls.on_duplicate = "attach"
        if _either(cls.lock_expiry, config.lock_expiry) is not None:
            notice_once(UNENDED.format(option="lock_expiry"))
        super().on_bound(app)

    # --- submitting -------------------------------------------------------------------------------------------------

    def apply_async(self, args: Any = None, kwargs: Any = None, *positional: Any, **options: Any) -> Any:
        """Submit a job as `onejob.Task.apply_async` does, with its options and errors.

        Raises `DuplicateTaskError` for a duplicate if `raise_on_duplicate` is set.
        """
        try:
            result = super().apply_async(args, kwargs, *positional, **options)
        except DuplicateJobError as error:
            raise _duplicate(error.job_id) from None
        except HeldByOldLibrary as held:
            return (self._answer or self._answer_by_default)(held.holder)
        if self._answer is not None and getattr(result, "outcome", None) is Outcome.ATTACHED:
            return self._answer(result.id)
        return result

    def _answer_by_default(self, existing_task_id: str) -> Any:
        if _either(self.raise_on_duplicate, self.singleton_config.raise_on_duplicate):
            raise _duplicate(existing_task_id)
        return self.AsyncResult(existing_task_id)

    def lock_and_run(self, lock: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:  # noqa: ARG002
        """Submit a job and return its result; None if it is a duplicate. The arguments decide, not `lock`."""
        try:
            result = super().apply_async(args, kwargs, **options)
        except (DuplicateJobError, HeldByOldLibrary):
            return None
        return None if getattr(result, "outcome", None) is Outcome.ATTACHED else result

    # --- the lock -------------------------------------------------------------------------------------------------

    @property
    def singleton_config(self) -> Config:
        """The settings of the app."""
        return Config(self.app)

    @property
    def singleton_backend(self) -> Any:
        """The backend of the locks of celery-singleton."""
        return get_backend(self.singleton_config)

    def generate_lock(self, task_name: str, task_args: Any = None, task_kwargs: Any = None) -> str:
        """Return the text of the lock of a call. Raises `TypeError` for arguments that are no JSON."""
        args, kwargs = task_args or [], task_kwargs or {}
        unique_on: Any = [self.unique_on] if isinstance(self.unique_on, str) else self.unique_on
        shown: tuple[Any, Any] = args, kwargs
        if callable(unique_on):
            shown = [], {"unique_on": self._onejob.identifier.identity(args, kwargs)}
        elif unique_on:
            bound = self._onejob.identifier.signature.bind(*args, **kwargs)
            bound.apply_defaults()
            shown = [], {name: bound.arguments[name] for name in unique_on}
        config = self.singleton_config
        encoder = {"json_encoder_class": found} if (found := config.json_encoder_class) else {}
        lock = Lock(util.generate_lock(task_name, *shown, key_prefix=config.key_prefix, **encoder))
        lock.call = args, kwargs
        return lock

    def get_existing_task_id(self, lock: str) -> str | None:
        """Return the id of the live job of a lock, from `generate_lock`, or of the task that holds an old lock."""
        if isinstance(lock, Lock):
            scope = Caller.of(self.app).submitter.scope
            identity = self._onejob.identifier.identity(*lock.call, scope)
            job = app_state_of(self.app).ledger.store.find_existing(identity, None)
            if job is not None and not job.state.final:
                return str(job.id)
        found: str | None = self.singleton_backend.get(lock) if self.singleton_config.has_backend else None
        return found

    def aquire_lock(self, lock: str, task_id: str) -> bool:
        """Take an old lock for a task; False if it is held. It counts here with `share_old_locks` only."""
        expiry = _either(self.lock_expiry, self.singleton_config.lock_expiry)
        return bool(self.singleton_backend.lock(lock, task_id, expiry=expiry))

    def release_lock(self, task_args: Any = None, task_kwargs: Any = None) -> None:
        """Remove the old lock of a call. A job of the ledger keeps its identity."""
        self.unlock(self.generate_lock(str(self.name), task_args, task_kwargs))

    def unlock(self, lock: str) -> None:
        """Remove an old lock. A job of the ledger keeps its identity."""
        if self.singleton_config.has_backend:
            self.singleton_backend.unlock(lock)
        notice_once(CLEARED)

    def _key_of(self, args: Any, kwargs: Any) -> str:
        return self.generate_lock(str(self.name), args, kwargs)

    def _take(self, key: str, job_id: str) -> bool:
        return self.aquire_lock(key, job_id)

    def _holder(self, key: str) -> str | None:
        holder: str | None = self.singleton_backend.get(key)
        return holder

    def _release(self, key: str) -> None:
        self.singleton_backend.unlock(key)


def _either(own: Any, default: Any) -> Any:
    return own if own is not None else default


def _duplicate(task_id: str) -> DuplicateTaskError:
    return DuplicateTaskError(f"Attempted to queue a duplicate of task ID {task_id}", task_id=task_id)
