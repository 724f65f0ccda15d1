"""For type checkers only: the members of Celery's classes that onejob's classes inherit.

Nothing imports this at run time. Celery itself has no types, and the published ones (celery-types) may be absent or
present in a user's project: with these declarations a checker reports the same in both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

Untyped: Any = object
"""A base class about which a checker knows nothing, so that what is not declared here is permitted."""


class Request(Protocol):
    """`self.request`: the message that runs, as Celery describes it."""

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
    """What `onejob.Task` inherits from `celery.Task`."""

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


class CeleryResult(Untyped):  # type: ignore[misc]
    """What `onejob.AsyncResult` inherits from `celery.result.AsyncResult`."""

    id: str
    task_id: str
    app: Any
    parent: Any

    state: str
    status: str
    info: Any
    traceback: str | None
    date_done: datetime | None
    name: str | None
    retries: int | None
    ignored: bool
    TimeoutError: type[Exception]
    successful: Callable[[], bool]
    failed: Callable[[], bool]
    then: Callable[..., Any]
    collect: Callable[..., Any]
    as_tuple: Callable[[], Any]

    @property
    def children(self) -> Sequence[Any] | None:
        """The results of what the task has submitted."""
        raise NotImplementedError
