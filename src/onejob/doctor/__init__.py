"""The doctor: the catalogue of all checks, and the examination of an installation by them."""

from collections.abc import Iterator
from types import ModuleType

from onejob.doctor import app, ledger, schedules, webhooks, workers
from onejob.errors import ConfigurationError
from onejob.health import postgres, redis, sqlite
from onejob.health.finding import Check, Finding, Installation, Level

STORES: tuple[ModuleType, ...] = (redis, postgres, sqlite)
"""The subjects that can be examined although the ledger cannot be used: their findings may say why."""
SUBJECTS: tuple[ModuleType, ...] = (ledger, *STORES, app, workers, schedules, webhooks)
"""The modules of the subjects, in the order of their findings. Each has checks and `examine(installation)`."""


def checks_of(subject: ModuleType) -> list[Check]:
    """Return the checks of a subject, in the order of their definition."""
    return [each for each in vars(subject).values() if isinstance(each, Check)]


def catalogue() -> tuple[Check, ...]:
    """Return all checks, in the order of the subjects."""
    return tuple(check for module in SUBJECTS for check in checks_of(module))


def examine(installation: Installation) -> list[Finding]:
    """Examine an installation; nothing is changed.

    A subject that cannot be examined is a finding, too, not an error.
    """
    findings = [*_examine(ledger, installation)]
    if any(finding.check == ledger.UNUSABLE.name for finding in findings):
        return findings + [found for module in STORES for found in _examine(module, installation) if found.check]
    findings += [found for module in SUBJECTS[1:] for found in _examine(module, installation)]
    return list(dict.fromkeys(findings))  # several subjects may meet the same invalid option


def _examine(subject: ModuleType, installation: Installation) -> Iterator[Finding]:
    try:
        yield from subject.examine(installation)
    except ConfigurationError as error:
        yield app.CONFIGURATION.found(str(error))
    except Exception as error:  # noqa: BLE001 - one subject must not hide the others
        name, meaning = subject.__name__.rpartition(".")[2], "this subject was not examined to its end"
        remedy = "run the command again; if it repeats, report it with this message"
        yield Finding(Level.INFO, name, f"could not check: {error!r:.300}", meaning, remedy)
