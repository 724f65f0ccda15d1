"""The types of the options of tasks and of calls, and of the members inherited from Celery, for type checkers only.

Nothing imports this at run time. Celery itself has no types, and the published types (celery-types) may be absent or
present in a user's project: with these declarations a checker reports the same in both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypedDict

from typing_extensions import TypeVar, Unpack  # no dependency: every type checker has it built in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from onejob.celery.results.result import AsyncResult
    from onejob.uniqueness.identity import UniqueOn
    from onejob.uniqueness.window import UniqueFor

R_co = TypeVar("R_co", covariant=True, default=Any)
Link: TypeAlias = "Signature[Any] | Sequence[Signature[Any]] | Mapping[str, Any]"
Item: TypeAlias = "tuple[Any, ...] | list[Any] | dict[str, Any] | Signature[Any]"
"""The arguments of one job in `submit_many`; the arguments of a signature of the task are checked."""
Hook: TypeAlias = "Callable[..., object]"
Untyped: Any = object
"""A base class about which a checker knows nothing, so that undeclared members are permitted."""


class Request(Protocol):
    """The type of `self.request`: the message that runs, as Celery describes it."""

    id: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    retries: int
    hostname: str | None
    headers: dict[str, Any] | None
    delivery_info: Mapping[str, Any] | None
    called_directly: bool
    is_eager: bool
    root_id: str | None
    parent_id: str | None
    correlation_id: str | None
    group: str | None
    eta: str | None
    expires: str | None
    timelimit: Sequence[float | None] | None
    ignore_result: bool

    def get(self, key: str, default: Any = None) -> Any:
        """Return a member by its name."""


class CeleryTask(Untyped):  # type: ignore[misc]
    """The members that `onejob.Task` inherits from `celery.Task`."""

    name: str
    app: Any
    backend: Any
    max_retries: int | None
    default_retry_delay: float
    ignore_result: bool
    serializer: str
    expires: Any
    priority: int | None
    time_limit: float | None
    soft_time_limit: float | None
    MaxRetriesExceededError: type[Exception]
    run: Callable[..., Any]
    apply: Callable[..., Any]
    chunks: Callable[[Iterable[Any], int], Any]
    map: Callable[[Iterable[Any]], Any]
    starmap: Callable[[Iterable[Any]], Any]
    replace: Callable[[Any], Any]
    add_to_chord: Callable[..., Any]

    @property
    def request(self) -> Request:
        """The message that runs."""
        raise NotImplementedError


class CallOptions(TypedDict, total=False):
    """The options of `apply_async` that are not parameters of their own."""

    countdown: float | None
    eta: datetime | str | None
    expires: float | datetime | str | None
    queue: Any
    exchange: Any
    routing_key: str | None
    priority: int | None
    serializer: str | None
    compression: str | None
    delivery_mode: int | str | None
    headers: Mapping[str, Any] | None
    retry: bool | None
    retry_policy: Mapping[str, Any] | None
    ignore_result: bool
    time_limit: float | None
    soft_time_limit: float | None
    add_to_parent: bool
    root_id: str | None
    parent_id: str | None
    group_id: str | None
    chain: Any
    chord: Any
    retries: int
    replaced_task_nesting: int
    stamped_headers: Sequence[str] | None
    reply_to: str | None
    argsrepr: str | None
    kwargsrepr: str | None
    publisher: Any
    mandatory: bool
    tags: Sequence[str] | None


class SubmissionOptions(CallOptions, total=False):
    """All options of `apply_async`."""

    task_id: str | None
    producer: Any
    link: Link | None
    link_error: Link | None
    shadow: str | None
    session: Any
    idempotency_key: str | None
    webhook_url: str | None
    on_duplicate: Literal["attach", "raise"] | None


class TaskKeywords(TypedDict, total=False):
    """The options of a task's definition: of `onejob.Task`, and of Celery."""

    unique_on: UniqueOn
    unique_until: str
    unique_for: UniqueFor
    on_duplicate: str | None
    max_wait: float | None
    lease: float | None
    permanent_for: tuple[type[Exception], ...]
    webhook_url: str | None
    expose: bool
    requires_key: bool
    typed: bool
    tags: Sequence[str]
    schedule: Any
    base: type[CeleryTask] | None
    name: str | None
    shared: bool
    lazy: bool
    typing: bool
    pydantic: bool
    pydantic_strict: bool
    pydantic_context: dict[str, Any] | None
    pydantic_dump_kwargs: dict[str, Any] | None
    max_retries: int | None
    default_retry_delay: float
    autoretry_for: Sequence[type[BaseException]]
    dont_autoretry_for: Sequence[type[BaseException]]
    retry_kwargs: dict[str, Any]
    retry_backoff: bool | float
    retry_backoff_max: float
    retry_jitter: bool
    rate_limit: str | float | None
    time_limit: float | None
    soft_time_limit: float | None
    ignore_result: bool | None
    store_eager_result: bool
    store_errors_even_if_ignored: bool | None
    trail: bool
    track_started: bool | None
    send_events: bool
    acks_late: bool | None
    acks_on_failure_or_timeout: bool | None
    reject_on_worker_lost: bool | None
    throws: tuple[type[BaseException], ...]
    serializer: str | None
    compression: str | None
    expires: float | datetime | None
    priority: int | None
    queue: str | None
    exchange: str | None
    routing_key: str | None
    delivery_mode: int | str | None
    resultrepr_maxsize: int
    before_start: Hook
    after_return: Hook
    on_success: Hook
    on_failure: Hook
    on_retry: Hook
    shadow_name: Hook


class Signature(Untyped, Generic[R_co]):  # type: ignore[misc]
    """A call that is not submitted yet: Celery's `Signature`, which `s` and `si` return."""

    task: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: dict[str, Any]
    immutable: bool

    def delay(self, *args: Any, **kwargs: Any) -> AsyncResult[R_co]:
        """Submit the call."""
        raise NotImplementedError

    def apply_async(
        self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None,
        route_name: str | None = None, **options: Unpack[SubmissionOptions],
    ) -> AsyncResult[R_co]:  # fmt: skip
        """Submit the call with options."""
        raise NotImplementedError

    def set(self, immutable: bool | None = None, **options: Unpack[SubmissionOptions]) -> Signature[R_co]:  # noqa: FBT001
        """Add options, and return the signature itself."""
        raise NotImplementedError

    def clone(self, *args: Any, **kwargs: Any) -> Signature[R_co]:
        """Return a copy."""
        raise NotImplementedError

    def __or__(self, other: Any) -> Any:
        """Return the chain of this signature and another."""
