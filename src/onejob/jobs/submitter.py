"""The submitter: who submits, by which its submissions are recorded, counted and, with `own_jobs`, separated."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onejob.errors import InvalidArgumentsError
from onejob.jobs.quota import Quotas

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME_LIMIT = 255
"""Maximum characters of the name of a submitter, a step or an effect, and of an idempotency key."""


@dataclass(frozen=True, slots=True)
class Submitter:
    """Who submits: its name ("" if unknown), and what applies to its submissions."""

    name: str = ""
    own_jobs: bool = False
    """Whether its submissions are equal only to its own: its name is a part of their identities."""
    quotas: Quotas | None = None
    """Its quotas; None: those of the app's settings."""

    @property
    def scope(self) -> str | None:
        """The name that is a part of the identities; None if there is none."""
        return self.name if self.own_jobs else None

    def scoped_key(self, key: object) -> str:
        """Return an idempotency key in the scope of this submitter, as the ledger stores it.

        Raises `InvalidArgumentsError` unless the key is printable.
        """
        check_name("an idempotency key", key)
        kind = "own:" if self.own_jobs else ""  # a name may have been used without own jobs before
        return f"{kind}{len(self.name)}:{self.name}:{key}"


NOBODY = Submitter()
SUBMITTER: ContextVar[Submitter] = ContextVar("onejob_submitter", default=NOBODY)
"""The submitter of this context; outside of `submitter` one without a name."""


@contextmanager
def submitter(
    name: str, *, own_jobs: bool = False, quota: str | None = None, identity_quota: str | None = None
) -> Iterator[None]:
    """Set the submitter of all submissions within a block, e.g. "user:42".

    Each submitter has its own idempotency keys. With `own_jobs` its submissions are equal only to its own, so that they
    never attach to, replace or return a job of another submitter. `quota`, `identity_quota`: limits on its new jobs
    ("1000/day"), in total and with the same identity; without both those of `onejob_quota` and `onejob_identity_quota`.

    Raises `InvalidArgumentsError` unless the name is printable, `ConfigurationError` for an invalid quota.
    """
    check_name("a submitter", name)
    with submitting_as(Submitter(name, own_jobs, Quotas.parse(quota, identity_quota) or None)):
        yield


@contextmanager
def submitting_as(value: Submitter) -> Iterator[None]:
    """Set the submitter of all submissions within a block."""
    reset_token = SUBMITTER.set(value)
    try:
        yield
    finally:
        SUBMITTER.reset(reset_token)


def current_submitter() -> Submitter:
    """Return the submitter of this context; outside of `submitter` one without a name."""
    return SUBMITTER.get()


def check_name(kind: str, name: object) -> None:
    """Raise `InvalidArgumentsError` unless `name` is a printable string of up to `NAME_LIMIT` characters."""
    if not isinstance(name, str) or not 0 < len(name) <= NAME_LIMIT or not name.isprintable():
        msg = f"{kind} must be a printable string of at most {NAME_LIMIT} characters, not {name!r:.300}"
        raise InvalidArgumentsError(msg)
