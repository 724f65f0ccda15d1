"""The limits of a ledger as people read them: values and uses of keys, and what a parked job waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onejob.errors import InvalidLimitError
from onejob.jobs.limits import LimitUse, LimitValue, name_of, parked_on_key
from onejob.jobs.model import JobRow
from onejob.jobs.timestamps import duration_text
from onejob.ledger.reader import JobReader
from onejob.stores.protocol import LISTED_HOLDERS

LISTED_KEYS = 1_000
"""How many keys are listed."""
NAMED_HOLDERS = 5
"""How many of the jobs that have a slot are named in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitState:
    """A limit or one of its keys: the value that is valid now, and the use."""

    key: str
    value: LimitValue | None
    """None: nothing limits the key."""
    default: LimitValue | None
    """The value of the definition; None: no task defines the limit any more."""
    use: LimitUse
    holders: Sequence[str]
    """The holders of `use` that the reader sees."""

    @property
    def used_text(self) -> str:
        """The use of the slots or of the bucket, as text: "3 of 3 run"; "" for a name that no job has as its key."""
        if self.value is None:
            return "not limited"
        count = len(self.use.holders)
        found = f"{count} or more" if count >= LISTED_HOLDERS else str(count)
        if self.value.running == 0:
            return f"stopped, {found} still run" if count else "stopped"
        if self.value.running is None:
            return self.value.rate
        is_name = name_of(self.key) == self.key  # its keys have the slots, if the limit is by an argument
        return "" if is_name and not count and not self.use.waiting else f"{found} of {self.value.running} run"

    @property
    def is_known(self) -> bool:
        """Whether a task defines the limit, an operator has set it, or jobs have it."""
        return self.value is not None or self.default is not None or bool(self.use.holders or self.use.waiting)


def valid_value(values: Sequence[LimitValue], key: str, now: float) -> LimitValue | None:
    """Return the value of a key that is valid now, of all values: its own, its name's, or the definition's."""
    name = name_of(key)
    for wanted, is_default in ((key, False), (name, False), (name, True)):
        for value in values:
            if value.key == wanted and value.is_default is is_default and not value.is_over(now):
                return value
    return None


def definition_of(values: Sequence[LimitValue], key: str) -> LimitValue | None:
    """Return the value by the definition of a name, or of a key's name, of all values; None: no task defines it."""
    name = name_of(key)
    return next((value for value in values if value.is_default and value.key == name), None)


def unknown_limit(key: str) -> InvalidLimitError:
    """Return the error for a name, or the key of a name, that is not known."""
    return InvalidLimitError(f"no task defines a limit {name_of(key)!r}: a worker with the task must have started")


def list_limits(ledger: JobReader) -> list[LimitState]:
    """Return the limits that are defined, the exceptions, and the keys that jobs wait for, sorted by key.

    These are at most `LISTED_KEYS`, of the waited for keys those with the most waiting jobs.
    """
    store, now = ledger.store, ledger.read_clock()
    values, waiting = store.limit_values(), {use.key: use for use in store.limit_uses(limit=LISTED_KEYS)}
    valued = sorted((value for value in values if not value.is_over(now)), key=lambda value: not value.is_default)
    keys = [*dict.fromkeys([*(value.key for value in valued), *waiting])][:LISTED_KEYS]
    return [_state_of(ledger, key, values, waiting.get(key) or store.limit_use(key), now) for key in sorted(keys)]


def count_waiting(ledger: JobReader) -> dict[str, int]:
    """Return how many jobs wait for room on all keys of each limit, by its name: of the `LISTED_KEYS` with the most."""
    counts = dict.fromkeys(sorted({name_of(value.key) for value in ledger.store.limit_values()}), 0)
    for use in ledger.store.limit_uses(limit=LISTED_KEYS) if counts else ():
        counts[name_of(use.key)] = counts.get(name_of(use.key), 0) + use.waiting
    return counts


def find_limit(ledger: JobReader, key: str) -> LimitState:
    """Return the state of a key, also of one that is not used."""
    store = ledger.store
    return _state_of(ledger, key, store.limit_values(), store.limit_use(key), ledger.read_clock())


def _state_of(
    ledger: JobReader, key: str, values: Sequence[LimitValue], use: LimitUse, now: float
) -> LimitState:  # fmt: skip
    holders = use.holders
    if ledger.visibility.limited:
        holders = [job.id for job in ledger.get_each(holders)]
    return LimitState(
        key=key, value=valid_value(values, key, now), default=definition_of(values, key), use=use, holders=holders
    )


def describe_wait(
    ledger: JobReader, job: JobRow, now: float, *, redact: Callable[[str], str] = str
) -> str | None:  # fmt: skip
    """Return the sentence about a job that waits for room on a key, as `redact` shows it; None for any other job."""
    key = parked_on_key(job.parked_on)
    if key is None:
        return None
    state, before = find_limit(ledger, key), ledger.store.parked_before(job)
    since = duration_text(max(0.0, now - (job.published_at or job.created_at)))
    sentence = f"It waits for {redact(key)}: {state.used_text}, for {since}; {before} before it"
    holders = state.holders
    if holders and state.value is not None and state.value.running is not None:
        more = f" and {len(holders) - NAMED_HOLDERS} more" if len(holders) > NAMED_HOLDERS else ""
        sentence += f". Its slots have {', '.join(holders[:NAMED_HOLDERS])}{more}"
    return f"{sentence}."
