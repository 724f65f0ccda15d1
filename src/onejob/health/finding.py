"""An examined installation, and its findings: each has a problem, its meaning for the promise, and a remedy."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from celery import Celery

from onejob.config import Settings
from onejob.ledger.ledger import Ledger


class Level(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    """All is well: nothing to do."""
    INFO = "info"
    """Good to know, or a thing that could not be checked."""
    WARNING = "warning"
    """The promise holds in ordinary operation, and not in every failure; or jobs wait."""
    ERROR = "error"
    """The promise is broken, or no job runs."""

    @property
    def rank(self) -> int:
        """The rank of the level, from 0 for `ok`."""
        return [*Level].index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of an examination."""

    level: Level
    subject: str
    """The subject of the check: `redis`, `settings`, `workers`, ..."""
    problem: str
    """The observed problem, with its value."""
    meaning: str = ""
    """The meaning for the promise; "" if all is well."""
    remedy: str = ""
    """The remedy: the exact setting or command; "" if there is nothing to do."""
    check: str = ""
    """The name of the check in the catalogue."""

    def __str__(self) -> str:
        """The problem, its meaning, and the remedy, in one line."""
        meaning = self.meaning and f". {self.meaning[0].upper()}{self.meaning[1:]}"
        return f"{self.subject}: {self.problem}{meaning}{self.remedy and f'. To do: {self.remedy}'}"


@dataclass(frozen=True, slots=True)
class Check:
    """A check of the catalogue: the parts that all its findings share."""

    name: str
    subject: str
    level: Level
    when: str
    """The condition under which there is a finding."""
    meaning: str
    remedy: str

    def found(self, problem: str) -> Finding:
        """Return a finding. `problem`: the observed problem, with its value."""
        return Finding(self.level, self.subject, problem, self.meaning, self.remedy, self.name)


def or_ok(findings: Iterable[Finding], subject: str, found: str) -> Iterator[Finding]:
    """Yield findings, and a finding of level ok, `found`, if none of them is above level info."""
    is_ok = True
    for finding in findings:
        is_ok = is_ok and finding.level.rank <= Level.INFO.rank
        yield finding
    if is_ok:
        yield Finding(Level.OK, subject, found)


def with_address(findings: Iterable[Finding], placeholder: str, address: str) -> Iterator[Finding]:
    """Yield findings with an address in their commands, where the catalogue has a placeholder."""
    for finding in findings:
        texts = {name: getattr(finding, name).replace(placeholder, address) for name in ("problem", "remedy")}
        yield replace(finding, **texts)


def count_text(count: int, noun: str) -> str:
    """Return a number with its noun, which takes an `s` unless there is exactly one."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def names_text(names: Sequence[str], most: int = 3) -> str:
    """Return the first names as text, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


@dataclass(frozen=True, kw_only=True)
class Installation:
    """An installation of onejob, which an examination does not change."""

    settings: Settings
    ledger: Ledger
    app: Celery | None = None
    app_name: str = ""
    """The `-A` of the command line, if the ledger is the app's; "" otherwise."""
    keys: Path | None = None
