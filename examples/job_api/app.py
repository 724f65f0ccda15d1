"""A service of four tasks, each with an end of its own: at once, part by part, never, and at the third attempt.

Everything that differs between two places where it runs is an environment variable; the README lists them.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Any

import celery
from pydantic import Field

import onejob

Parts = Annotated[int, Field(ge=1, le=100)]
Seconds = Annotated[float, Field(ge=0, le=60)]


class RateServiceDownError(Exception):
    """The service of exchange rates does not answer; it may the next time."""


def needed(name: str, example: str) -> str:
    """Return a setting, or the text of the file that NAME_FILE names. Raises `ConfigurationError` without both."""
    file = os.environ.get(f"{name}_FILE")
    value = Path(file).read_text(encoding="utf-8").strip() if file else os.environ.get(name)
    if not value:
        msg = f"the environment variable {name} is not set: give a URL, for example {example}"
        raise onejob.errors.ConfigurationError(msg)
    return value


def seconds(name: str, default: float) -> float:
    """Return a setting that is a number of seconds. Raises `ConfigurationError` when it is none."""
    value = os.environ.get(name) or str(default)
    try:
        return float(value)
    except ValueError:
        msg = f"the environment variable {name} is {value!r}: give a number of seconds, for example {default:g}"
        raise onejob.errors.ConfigurationError(msg) from None


app = celery.Celery("office", broker=needed("JOB_API_BROKER", "redis://localhost:6379/0"))
app.conf.update(
    onejob_store=needed("ONEJOB_STORE", "postgresql://localhost/office"),
    onejob_lease=seconds("JOB_API_LEASE", 10),
    onejob_shutdown_grace=seconds("JOB_API_SHUTDOWN_GRACE", 0),
    onejob_probe_file=os.environ.get("JOB_API_PROBE_FILE", ""),
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
)


@app.task(name="office.count_words", base=onejob.Task, expose=True)
def count_words(text: str) -> int:
    """Count the words of a text: quick, and it works."""
    return len(text.split())


@app.task(name="office.write_report", base=onejob.Task, expose=True, unique_on=["customer"])
def write_report(customer: str, parts: Parts = 5, seconds_per_part: Seconds = 1.0) -> dict[str, Any]:
    """Write the report of a customer: slow, part by part. A part that is written is not written again."""
    job = onejob.current_job()
    written = []
    for number in range(1, parts + 1):
        job.progress(number - 1, parts, f"part {number}")
        written.append(job.step(f"part {number}", write_part, number, job.attempt, seconds_per_part))
    job.progress(parts, parts, "written")
    return {"customer": customer, "parts": written}


def write_part(number: int, run: int, pause: float) -> dict[str, int]:
    """Write one part, and say which run of the job did it."""
    time.sleep(pause)
    return {"part": number, "run": run}


@app.task(name="office.send_letter", base=onejob.Task, expose=True)
def send_letter(address: str) -> str:
    """Send a letter: an address without a town will not have one tomorrow, so trying again would not help."""
    street, comma, town = address.partition(",")
    if not comma or not town.strip():
        msg = f"the address {street!r} has no town"
        raise onejob.PermanentError(msg)
    return f"sent to {town.strip()}"


@app.task(name="office.fetch_rate", base=onejob.Task, expose=True, bind=True, max_retries=2)
def fetch_rate(self: Any, currency: str, outages: int = 2, pause: Seconds = 1.0) -> str:
    """Fetch a rate from a service that is down for the first `outages` runs; after the third run it gives up."""
    if self.request.retries < outages:
        raise self.retry(exc=RateServiceDownError(f"no answer about {currency}"), countdown=pause)
    return f"1 {currency} = 1.00"
