"""`QueueOnce`: celery-once's task class as a `onejob.Task`."""

from collections.abc import Mapping
from typing import Any, ClassVar

from celery import Celery, states
from celery.result import EagerResult

from onejob.celery.app_state import app_state_of
from onejob.celery.run import current_run_or_none
from onejob.compat.celery_once.helpers import AlreadyQueued, import_backend, queue_once_key
from onejob.compat.shims import UNENDED, HeldByOldLibrary, LockSharingTask, notice_once
from onejob.errors import ConfigurationError, DuplicateJobError

HOUR = 3600.0
OPTIONS = frozenset({"keys", "graceful", "timeout", "unlock_before_run"})
BLOCKING = (
    "the setting ONCE has `blocking`, which is for shared locks only: a duplicate of a job in the ledger raises "
    "AlreadyQueued at once. task.delay(...).get(timeout=...) of a onejob.Task waits for the existing job"
)


class QueueOnce(LockSharingTask):
    """A task of which equal submissions run once, with the option `once` of celery-once.

    `once` is a dict of:

    - `keys`: the names of the arguments that count. Default: all. - `graceful`: whether a duplicate gets an empty
    result instead of `AlreadyQueued`. Default: False. - `unlock_before_run`: whether equal jobs are admitted as soon as
    a run has begun. Default: False. - `timeout`: accepted. `AlreadyQueued.countdown` is its remaining time, and shared
    locks expire after it.

    `apply_async(once={...})` takes `graceful` and `timeout`; a shared lock expires after the `timeout` of the task.
    """

    abstract = True
    once: ClassVar[Mapping[str, Any]] = {"graceful": False, "unlock_before_run": False}
    _unlocks_by = "once_backend.clear_lock"
    _onejob_foreign_options = frozenset({"once"})
    _of_once: ClassVar[Mapping[str, Any]] = {}
    """The options that `once` has set when this class, or a base class of it, was bound."""

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        """Translate the options, and bind the task.

        Raises `ConfigurationError` for an unknown key of `once`, for a `get_key` of the program's own, and for locks
        that are shared without `ONCE`.
        """
        unknown = sorted(map(str, cls.once.keys() - OPTIONS))
        if unknown:
            msg = f"once of task {cls.name} has {', '.join(unknown)}; its keys are {', '.join(sorted(OPTIONS))}"
            raise ConfigurationError(msg)
        setting = app.conf.get("ONCE") or {}
        if setting.get("settings", {}).get("blocking") and not cls.share_old_locks:
            notice_once(BLOCKING)
        for option, value in cls._of_once.items():
            if getattr(cls, option) is value:
                setattr(cls, option, getattr(LockSharingTask, option))
        cls._of_once = {"unique_until": "started"} if cls.once.get("unlock_before_run") else {}
        if (keys := cls.once.get("keys")) is not None:
            if cls.unique_on not in (None, [*keys]):
                msg = f"task {cls.name} has unique_on and the keys of once: keep unique_on, and remove the keys"
                raise ConfigurationError(msg)
            cls._of_once |= {"unique_on": [*keys]}
        for option, value in cls._of_once.items():
            setattr(cls, option, value)
        cls._check_locks("ONCE", QueueOnce.get_key, has_place={"backend", "settings"} <= setting.keys())
        if "timeout" in cls.once:
            notice_once(UNENDED.format(option="once={'timeout': ...}"))
        if cls.on_duplicate is None:
            cls.on_duplicate = "raise"
        super().on_bound(app)

    # --- submitting -------------------------------------------------------------------------------------------------

    def apply_async(self, args: Any = None, kwargs: Any = None, *positional: Any, **options: Any) -> Any:
        """Submit a job as `onejob.Task.apply_async` does, with its options and errors, and `once`.

        Raises `AlreadyQueued` for a duplicate; with `graceful` it returns a result whose value is None.
        """
        once = {**self.once, **(options.pop("once", None) or {})}
        timeout = once.get("timeout", self.default_timeout)
        hint = HOUR if timeout is None else timeout  # such a lock does not expire
        try:
            if app_state_of(self.app).is_eager and self.share_old_locks:
                return self._apply_locked(args, kwargs, positional, options, timeout)
            return super().apply_async(args, kwargs, *positional, **options)
        except DuplicateJobError as error:
            ledger = app_state_of(self.app).ledger
            job = ledger.get_or_none(error.job_id)
            left = hint if job is None else job.created_at + hint - ledger.read_clock()
            queued = AlreadyQueued(max(1.0, left))  # the job may run on
        except HeldByOldLibrary as held:
            client = getattr(self.once_backend, "redis", None)
            left = client.pttl(held.key) / 1000.0 if client is not None else 0.0
            queued = AlreadyQueued(left if left > 0 else hint)
        except AlreadyQueued as error:
            queued = error
        if once.get("graceful"):
            return EagerResult(None, None, states.REJECTED)  # type: ignore[arg-type] # no task has it
        raise queued from None

    def _apply_locked(self, args: Any, kwargs: Any, positional: Any, options: Any, timeout: float) -> Any:
        if options.get("retries"):
            return super().apply_async(args, kwargs, *positional, **options)
        key = self.get_key(args, kwargs)
        self.once_backend.raise_or_lock(key, timeout=timeout)
        try:
            return super().apply_async(args, kwargs, *positional, **options)
        finally:
            if not self.unlock_before_run():
                self.once_backend.clear_lock(key)

    # --- what celery-once's class has -------------------------------------------------------------------------------

    @property
    def config(self) -> Any:
        """The app's configuration."""
        return self.app.conf

    @property
    def once_config(self) -> Any:
        """The setting `ONCE`. Raises `AttributeError` if it is not set."""
        return self.config.ONCE

    @property
    def once_backend(self) -> Any:
        """The backend that `ONCE` describes."""
        return import_backend(self.once_config)

    @property
    def default_timeout(self) -> float:
        """The `default_timeout` of `ONCE` in seconds; an hour if it is not set."""
        settings = (self.config.get("ONCE") or {}).get("settings", {})
        timeout: float = settings.get("default_timeout", HOUR)
        return timeout

    def unlock_before_run(self) -> bool:
        """Return whether equal jobs are admitted as soon as a run has begun."""
        return bool(self.once.get("unlock_before_run", False))

    def get_key(self, args: Any = None, kwargs: Any = None) -> str:
        """Return the text of the lock of a call. Raises `KeyError` if one of the `keys` is not passed."""
        bound = self._onejob.identifier.signature.bind(*(args or ()), **(kwargs or {}))
        return queue_once_key(str(self.name), bound.arguments, self.once.get("keys"))

    # --- the lock ---------------------------------------------------------------------------------------------------

    def _onejob_enter(self, request: Any, body: Any, args: Any, kwargs: Any) -> Any:
        """Run the body, as `onejob.Task` does."""
        if request.is_eager and self.unlock_before_run() and self.share_old_locks and current_run_or_none() is None:
            self.once_backend.clear_lock(self.get_key(args, kwargs))
        return super()._onejob_enter(request, body, args, kwargs)

    def _key_of(self, args: Any, kwargs: Any) -> str:
        return self.get_key(args, kwargs)

    def _take(self, key: str, job_id: str) -> bool:
        backend, timeout = self.once_backend, self.once.get("timeout", self.default_timeout)
        token = {"token": job_id} if hasattr(backend, "holder") else {}
        try:
            backend.raise_or_lock(key, timeout=timeout, **token)
        except AlreadyQueued:
            return False
        return True

    def _holder(self, key: str) -> str | None:
        backend = self.once_backend
        holder: str | None = backend.holder(key) if hasattr(backend, "holder") else ""
        return holder

    def _release(self, key: str) -> None:
        self.once_backend.clear_lock(key)

    def _belongs(self, holder: str, job_id: str) -> bool:
        """Return True also for a token of celery-once, which names no job: the end of any equal job releases it."""
        return holder in {"", job_id} or app_state_of(self.app).ledger.get_or_none(holder) is None


__all__ = ["AlreadyQueued", "QueueOnce"]
