"""The scenario that the demo runs in the terminal: a hundred clicks at once, a killed worker, the bill at the end."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from onejob.demo import LEASE, TASK

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

PROJECT = "founding-documents"
CLICKS = 100
RUN_SECONDS = 120.0
LIVE = {"queued", "running", "retrying"}


class DemoError(RuntimeError):
    """The demo failed; the message has the reason."""


class Workers(Protocol):
    """The part of the demo's processes that the scenario controls."""

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL, children and all."""

    def start_worker(self, name: str) -> None:
        """Start a Celery worker."""


class ApiClient:
    """A client of the job API behind the page, over HTTP as the browser uses it."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/"

    def get(self, path: str) -> Any:
        """Return the JSON of a path."""
        return self._open(urllib.request.Request(self.url + path))  # noqa: S310 - our own server

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Send JSON and return JSON."""
        data, headers = json.dumps(body).encode(), {"content-type": "application/json"}
        return self._open(urllib.request.Request(self.url + path, data=data, headers=headers))  # noqa: S310

    def submit(self, project: str) -> dict[str, Any]:
        """Submit the study plan of a project, and return the response."""
        response: dict[str, Any] = self.post("jobs", {"task": TASK, "kwargs": {"project": project}})
        return response

    def job(self, job_id: str) -> dict[str, Any]:
        """Return a job."""
        job: dict[str, Any] = self.get(f"jobs/{job_id}")
        return job

    def worker(self, job_id: str) -> str:
        """Return the name of the worker that ran a job last."""
        nodes = [str(entry["node"]) for entry in self.get(f"jobs/{job_id}/history") if entry["node"]]
        return nodes[-1].partition("@")[0]

    @staticmethod
    def _open(request: urllib.request.Request) -> Any:
        try:
            with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
                return json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                msg = f"{request.full_url} returned an error: {error.read().decode(errors='replace')}"
            raise DemoError(msg) from error
        except (urllib.error.URLError, TimeoutError) as error:
            msg = f"{request.full_url} cannot be reached: {error}"
            raise DemoError(msg) from error


def run_scenario(console: Console, workers: Workers, api: ApiClient) -> None:
    """Run the scenario. Raises `DemoError` if a promise does not hold."""
    console.print(f"The page is at [bold]{api.url}[/bold], the dashboard at [bold]{api.url}dashboard/[/bold]\n")
    outcomes, seconds, job_id = _send_clicks(api)
    console.print(f"[bold]{CLICKS} simultaneous clicks[/bold] on “Generate study plan”, answered in {seconds:.2f} s:")
    console.print(f"  {outcomes['admitted']} admitted, {outcomes['attached']} attached, all to job {job_id[:8]}\n")
    job, kept = _follow(console, workers, api, job_id)
    cards, meter = job["result"]["cards"], api.get("meter")
    console.print(f"\n[bold]{len(cards)} study cards[/bold], for example:")
    for card in cards[:3]:
        console.print(f"  Q  {card['question']}\n  A  {card['answer']}  [dim]({card['source']})[/dim]")
    _print_bill(console, meter, job, kept)
    _check_promises(outcomes, meter, job)


def _send_clicks(api: ApiClient) -> tuple[Counter[str], float, str]:
    """Send equal requests at the same moment. Returns the outcomes, the seconds and the one job's id."""
    gate = threading.Barrier(CLICKS)

    def submit(_: int) -> dict[str, Any]:
        gate.wait()
        return api.submit(PROJECT)

    began = time.monotonic()
    with ThreadPoolExecutor(CLICKS) as pool:
        try:
            responses = list(pool.map(submit, range(CLICKS)))
        except BaseException:
            gate.abort()  # an interrupted demo must not wait for clicks that will never be sent
            raise
    ids = {response["job"]["id"] for response in responses}
    if len(ids) != 1:
        msg = f"{CLICKS} equal requests made {len(ids)} jobs"
        raise DemoError(msg)
    return Counter(response["outcome"] for response in responses), time.monotonic() - began, ids.pop()


def _follow(console: Console, workers: Workers, api: ApiClient, job_id: str) -> tuple[dict[str, Any], int]:
    """Kill the job's worker when half of the calls are made. Returns the job at its end, and how many calls were kept.

    Raises `DemoError` if the job ends too early, or does not complete.
    """
    count = TextColumn("{task.completed:>3.0f}/{task.total:.0f}")
    with Progress(TextColumn("  {task.description:<22}"), BarColumn(40), count, console=console) as bar:
        bar.add_task("waiting", total=1)
        job = _await("half of its calls were made", _is_half_way, api, job_id, bar)
        killed, killed_at, kept = api.worker(job_id), time.monotonic(), _calls(job)[0]
        workers.kill(killed)
        bar.console.print(f"  [red]worker {killed} killed with SIGKILL[/red]: {kept} calls paid and kept")
        _await("another worker resumed it", lambda job: job["attempt"] > 1, api, job_id, bar)
        worker, after = api.worker(job_id), time.monotonic() - killed_at
        bar.console.print(f"  [green]resumed on worker {worker}[/green] after {after:.1f} s (the lease is {LEASE:g} s)")
        workers.start_worker(killed)
        return _await("it completed", lambda job: job["state"] == "completed", api, job_id, bar), kept


def _await(
    what: str, holds: Callable[[dict[str, Any]], bool], api: ApiClient, job_id: str, bar: Progress
) -> dict[str, Any]:
    """Show the progress of a job until a condition holds. Raises `DemoError` if it ends before, or takes too long."""
    deadline = time.monotonic() + RUN_SECONDS
    while True:
        job = api.job(job_id)
        stage = job["progress"]["stage"] if job["state"] == "running" and job["progress"] else job["state"]
        done, total = _calls(job)
        bar.update(bar.task_ids[0], description=f"{stage} (attempt {job['attempt']})", completed=done, total=total)
        if holds(job):
            return job
        if job["state"] not in LIVE or time.monotonic() > deadline:
            msg = f"the job is {job['state']} before {what}: {job['reason'] or 'give it more documents'}"
            raise DemoError(msg)
        time.sleep(0.1)


def _is_half_way(job: dict[str, Any]) -> bool:
    done, total = _calls(job)
    return job["state"] == "running" and done >= max(1, total // 2)


def _calls(job: dict[str, Any]) -> tuple[int, int]:
    """Return how many paid calls are made, and how many there will be."""
    progress = job["progress"] or {}
    return int(progress.get("done") or 0), int(progress.get("total") or 1)


def _print_bill(console: Console, meter: dict[str, int], job: dict[str, Any], kept: int) -> None:
    paid, without, requests = meter["provider_calls"], meter["provider_calls_without"], meter["requests"]
    rows = [
        ("requests", requests, requests),
        ("jobs run", 1, requests),
        ("provider calls paid", paid, without),
        ("paid again (the call under way at the kill)", paid - _calls(job)[1], kept),
        ("attempts", job["attempt"], "-"),
        ("cards", len(job["result"]["cards"]), len(job["result"]["cards"])),
    ]
    table = Table(title="\nWhat happened", title_justify="left")
    for heading in ("", "with onejob", "one run per click"):
        table.add_column(heading, justify="right" if heading else "left")
    for row in rows:
        table.add_row(*map(str, row))
    console.print(table)
    computed = f"{requests} requests x {without // requests} calls, were each click run"
    again = f"the killed run, begun anew, pays its first {kept} calls again"
    console.print(f"[dim]“One run per click” is computed: {computed}; {again}.[/dim]")


def _check_promises(outcomes: Counter[str], meter: dict[str, int], job: dict[str, Any]) -> None:
    """Raise `DemoError` for a broken promise: at most the one call that was interrupted is paid twice."""
    promises = {
        "one request was admitted": outcomes["admitted"] == 1,
        "all others were attached": outcomes["attached"] == CLICKS - 1,
        "the job resumed after the kill": job["attempt"] == 2,
        "stored steps were not paid again": meter["provider_calls"] - _calls(job)[1] <= 1,
        "there are cards": bool(job["result"]["cards"]),
    }
    broken = [promise for promise, holds in promises.items() if not holds]
    if broken:
        msg = f"not as promised: {'; '.join(broken)}"
        raise DemoError(msg)
