"""Checks of the ledger: whether it answers, and whether its clock agrees with this machine's."""

import time
from collections.abc import Iterator
from shlex import quote

from onejob.config import Settings
from onejob.errors import OneJobError
from onejob.health.finding import Check, Finding, Installation, Level, with_address
from onejob.jobs.query import Query
from onejob.jobs.timestamps import duration_text
from onejob.stores import display_url

MAX_SKEW = 5.0
"""The seconds by which a machine's clock may differ from the store's without a warning."""

# fmt: off
UNUSABLE = Check("ledger-unusable", "ledger", Level.ERROR,
    when="the store does not answer, refuses the role, or has another schema than this onejob",
    meaning="no job can be submitted, claimed or ended",
    remedy="correct onejob_store, start the store, or run `onejob --store URL migrate up`, as the message says")
CLOCK_SKEW = Check("clock-skew", "ledger", Level.WARNING,
    when=f"the clock of this machine and that of the store differ by more than {MAX_SKEW:g} s",
    meaning="leases and ETAs are safe, since they use the store's clock alone; a countdown or an expiry that a process "
    "here computes as a date is early or late by the difference, and times in logs do not match those in the ledger",
    remedy="synchronise both clocks: `timedatectl set-ntp true`, or chrony, on both machines")
# fmt: on


def examine(installation: Installation) -> Iterator[Finding]:
    """Read the ledger as a worker does at its start, and its clock."""
    try:
        installation.ledger.find(Query(limit=1))
        before, now, after = time.time(), installation.ledger.read_clock(), time.time()
    except OneJobError as error:
        yield from with_address([UNUSABLE.found(str(error))], "--store URL", _options(installation))
        return
    found = f"{installation.settings.address}: it answers"
    yield check_clock(now, before, after) or Finding(Level.OK, "ledger", found)


def _options(installation: Installation) -> str:
    """Return the options of the command line that name the ledger: the app, or the store without its password."""
    settings = installation.settings
    if installation.app_name:
        return f"-A {quote(installation.app_name)}"
    namespace = "" if settings.namespace == Settings().namespace else f" --namespace {quote(settings.namespace)}"
    return f"--store {quote(display_url(settings.store, with_user=True))}{namespace}"


def check_clock(now: float, before: float, after: float) -> Finding | None:
    """Compare the store's time with the times here before and after it was read."""
    skew = max(before - now, now - after, 0.0)
    if skew <= MAX_SKEW:
        return None
    direction = "behind" if now < before else "ahead of"
    return CLOCK_SKEW.found(f"the store's clock is {duration_text(skew)} {direction} this machine's")
