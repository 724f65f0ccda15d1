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
    outcomes, seconds, job_id = send_clicks(api, CLICKS)
    console.print(f"[bold]{CLICKS} simultaneous clicks[/bold] on “Generate study plan”, answered in {seconds:.2f} s:")
    console.print(f"  {outcomes['admitted']} admitted, {outcomes['attached']} attached, all to job {job_id[:8]}\n")
    watcher = ProgressWatcher(console, workers, api)
    job = watcher.follow(job_id)
    cards = job["result"]["cards"]
    _print_cards(console, cards)
    _print_bill(console, api, job, watcher.kept, len(cards))
    _check_promises(outcomes, job, api.get("meter"), cards)


def send_clicks(api: ApiClient, clicks: int) -> tuple[Counter[str], float, str]:
    """Send equal requests at the same moment. Returns the outcomes, the seconds and the one job's id."""
    gate = threading.Barrier(clicks)

    def submit(_: int) -> dict[str, Any]:
        gate.wait()
        return api.submit(PROJECT)

    began = time.monotonic()
    with ThreadPoolExecutor(clicks) as pool:
        try:
            responses = list(pool.map(submit, range(clicks)))
        except BaseException:
            gate.abort()  # an interrupted demo must not wait for clicks that will never be sent
            raise
    ids = {response["job"]["id"] for response in responses}
    if len(ids) != 1:
        msg = f"{clicks} equal requests made {len(ids)} jobs"
        raise DemoError(msg)
    return Counter(response["outcome"] for response in responses), time.monotonic() - began, ids.pop()


class ProgressWatcher:
    """Follows the job in a progress bar, and kills the worker that runs it when half of the calls are made."""

    def __init__(self, console: Console, workers: Workers, api: ApiClient) -> None:
        self._workers = workers
        self._api = api
        count = TextColumn("{task.completed:>3.0f}/{task.total:.0f}")
        self._bar = Progress(TextColumn("  {task.description:<22}"), BarColumn(40), count, console=console)
        self._killed_at = 0.0
        self._worker = ""
        self.kept = 0
        """How many calls were stored when the worker was killed."""

    def follow(self, job_id: str) -> dict[str, Any]:
        """Return the job at its end. Raises `DemoError` if it does not complete, or its worker was not killed."""
        deadline = time.monotonic() + RUN_SECONDS
        with self._bar:
            line = self._bar.add_task("waiting", total=1)
            while (job := self._api.job(job_id))["state"] in LIVE and time.monotonic() < deadline:
                progress = job["progress"] or {"done": 0, "total": None, "stage": "queued"}
                self._bar.update(line, description=_caption(job, progress))
                self._bar.update(line, completed=progress["done"], total=progress["total"] or 1)
                self._intervene(job, progress)
                time.sleep(0.1)
            self._bar.update(line, description=job["state"], completed=1, total=1)
        if job["state"] != "completed":
            msg = f"the job is {job['state']}: {job['reason']}"
            raise DemoError(msg)
        if not self._killed_at:
            msg = "the job ended before its worker could be killed: give it more documents"
            raise DemoError(msg)
        return job

    def _intervene(self, job: dict[str, Any], progress: dict[str, Any]) -> None:
        if job["state"] != "running" or not progress["total"]:
            return
        if not self._killed_at and progress["done"] >= max(1, progress["total"] // 2):
            self._kill_worker(job)
        elif self._worker and job["attempt"] > 1:
            self._report_resumed(job)

    def _kill_worker(self, job: dict[str, Any]) -> None:
        self._worker = self._api.worker(job["id"])
        self._workers.kill(self._worker)
        self._killed_at, self.kept = time.monotonic(), job["progress"]["done"]
        self._print(f"[red]worker {self._worker} killed with SIGKILL[/red]: {self.kept} calls paid and kept")

    def _report_resumed(self, job: dict[str, Any]) -> None:
        after = time.monotonic() - self._killed_at
        worker = self._api.worker(job["id"])
        self._print(f"[green]resumed on worker {worker}[/green] after {after:.1f} s (the lease is {LEASE:g} s)")
        self._workers.start_worker(self._worker)
        self._worker = ""

    def _print(self, text: str) -> None:
        self._bar.console.print(f"  {text}")


def _caption(job: dict[str, Any], progress: dict[str, Any]) -> str:
    return f"{progress['stage']} (attempt {job['attempt']})" if job["state"] == "running" else str(job["state"])


def _print_cards(console: Console, cards: list[dict[str, Any]]) -> None:
    console.print(f"\n[bold]{len(cards)} study cards[/bold], for example:")
    for card in cards[:3]:
        console.print(f"  Q  {card['question']}\n  A  {card['answer']}  [dim]({card['source']})[/dim]")


def _print_bill(console: Console, api: ApiClient, job: dict[str, Any], kept: int, cards: int) -> None:
    meter = api.get("meter")
    table = Table(title="\nWhat happened", title_justify="left", show_header=True)
    table.add_column("")
    table.add_column("with onejob", justify="right")
    table.add_column("one run per click", justify="right")
    per_run = meter["provider_calls_without"] // meter["requests"]
    rows = [
        ("requests", meter["requests"], meter["requests"]),
        ("jobs run", 1, meter["requests"]),
        ("provider calls paid", meter["provider_calls"], meter["provider_calls_without"]),
        ("paid again (the call under way at the kill)", meter["provider_calls"] - _calls_per_run(job), kept),
        ("attempts", job["attempt"], "-"),
        ("cards", cards, cards),
    ]
    for name, with_onejob, without in rows:
        table.add_row(name, str(with_onejob), str(without))
    console.print(table)
    computed = f"{meter['requests']} requests x {per_run} calls, were each click run"
    again = f"the killed run, begun anew, pays its first {kept} calls again"
    console.print(f"[dim]“One run per click” is computed: {computed}; {again}.[/dim]")


def _calls_per_run(job: dict[str, Any]) -> int:
    """Return how many calls one undisturbed run makes."""
    return int(job["progress"]["total"])


def _check_promises(outcomes: Counter[str], job: dict[str, Any], meter: dict[str, Any], cards: list[Any]) -> None:
    """Raise `DemoError` for a broken promise: at most the one call that was interrupted is paid twice."""
    promises = {
        "one request was admitted": outcomes["admitted"] == 1,
        "all others were attached": outcomes["attached"] == CLICKS - 1,
        "the job resumed after the kill": job["attempt"] == 2,
        "stored steps were not paid again": meter["provider_calls"] - _calls_per_run(job) <= 1,
        "there are cards": bool(cards),
    }
    broken = [promise for promise, holds in promises.items() if not holds]
    if broken:
        msg = f"not as promised: {'; '.join(broken)}"
        raise DemoError(msg)
