"""What the demo plays in the terminal: a hundred clicks at once, a worker killed half-way, the bill at the end."""

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


class StoryError(RuntimeError):
    """The demo could not do what it shows; the message says what happened."""


class Workers(Protocol):
    """The processes of the demo, as far as the story acts on them."""

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL, children and all."""

    def start_worker(self, name: str) -> None:
        """Start a Celery worker."""


class Page:
    """The job API behind the page, over HTTP as a browser would use it."""

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
        """Ask for the study plan of a project, and return what came of it."""
        answer: dict[str, Any] = self.post("jobs", {"task": TASK, "kwargs": {"project": project}})
        return answer

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
                msg = f"{request.full_url} answered: {error.read().decode(errors='replace')}"
            raise StoryError(msg) from error
        except (urllib.error.URLError, TimeoutError) as error:
            msg = f"{request.full_url} did not answer: {error}"
            raise StoryError(msg) from error


def tell(console: Console, workers: Workers, page: Page) -> None:
    """Play the story. Raises `StoryError` when anything is not as promised."""
    console.print(f"The page is at [bold]{page.url}[/bold] (open it while this runs)\n")
    outcomes, seconds, job_id = click(page, CLICKS)
    console.print(f"[bold]{CLICKS} simultaneous clicks[/bold] on “Generate study plan”, answered in {seconds:.2f} s:")
    console.print(f"  {outcomes['admitted']} admitted, {outcomes['attached']} attached, all to job {job_id[:8]}\n")
    watch = Watch(console, workers, page)
    job = watch.follow(job_id)
    cards = job["result"]["cards"]
    _show_cards(console, cards)
    _show_bill(console, page, job, watch.kept, len(cards))
    _check(outcomes, job, page.get("meter"), cards)


def click(page: Page, clicks: int) -> tuple[Counter[str], float, str]:
    """Send equal requests at the same moment. Returns the outcomes, the seconds and the one job's id."""
    gate = threading.Barrier(clicks)

    def one(_: int) -> dict[str, Any]:
        gate.wait()
        return page.submit(PROJECT)

    began = time.monotonic()
    with ThreadPoolExecutor(clicks) as crowd:
        try:
            answers = list(crowd.map(one, range(clicks)))
        except BaseException:
            gate.abort()  # an interrupted demo must not wait for clicks that will never come
            raise
    ids = {answer["job"]["id"] for answer in answers}
    if len(ids) != 1:
        msg = f"{clicks} equal requests came to {len(ids)} jobs"
        raise StoryError(msg)
    return Counter(answer["outcome"] for answer in answers), time.monotonic() - began, ids.pop()


class Watch:
    """Follows the job in a progress bar, and kills the worker that runs it when half of the calls are paid."""

    def __init__(self, console: Console, workers: Workers, page: Page) -> None:
        self._workers = workers
        self._page = page
        count = TextColumn("{task.completed:>3.0f}/{task.total:.0f}")
        self._bar = Progress(TextColumn("  {task.description:<22}"), BarColumn(40), count, console=console)
        self._killed_at = 0.0
        self._worker = ""
        self.kept = 0
        """How many paid calls were known to be kept when the worker was killed."""

    def follow(self, job_id: str) -> dict[str, Any]:
        """Return the job at its end. Raises `StoryError` when it does not complete, or nobody was killed."""
        deadline = time.monotonic() + RUN_SECONDS
        with self._bar:
            line = self._bar.add_task("waiting", total=1)
            while (job := self._page.job(job_id))["state"] in LIVE and time.monotonic() < deadline:
                progress = job["progress"] or {"done": 0, "total": None, "stage": "queued"}
                self._bar.update(line, description=_caption(job, progress))
                self._bar.update(line, completed=progress["done"], total=progress["total"] or 1)
                self._intervene(job, progress)
                time.sleep(0.1)
            self._bar.update(line, description=job["state"], completed=1, total=1)
        if job["state"] != "completed":
            msg = f"the job is {job['state']}: {job['reason']}"
            raise StoryError(msg)
        if not self._killed_at:
            msg = "the job ended before its worker could be killed: give it more documents"
            raise StoryError(msg)
        return job

    def _intervene(self, job: dict[str, Any], progress: dict[str, Any]) -> None:
        if job["state"] != "running" or not progress["total"]:
            return
        if not self._killed_at and progress["done"] >= max(1, progress["total"] // 2):
            self._kill(job)
        elif self._worker and job["attempt"] > 1:
            self._resumed(job)

    def _kill(self, job: dict[str, Any]) -> None:
        self._worker = self._page.worker(job["id"])
        self._workers.kill(self._worker)
        self._killed_at, self.kept = time.monotonic(), job["progress"]["done"]
        self._say(f"[red]worker {self._worker} killed with SIGKILL[/red]: {self.kept} calls paid and kept")

    def _resumed(self, job: dict[str, Any]) -> None:
        after = time.monotonic() - self._killed_at
        worker = self._page.worker(job["id"])
        self._say(f"[green]resumed on worker {worker}[/green] after {after:.1f} s (the lease is {LEASE:g} s)")
        self._workers.start_worker(self._worker)
        self._worker = ""

    def _say(self, text: str) -> None:
        self._bar.console.print(f"  {text}")


def _caption(job: dict[str, Any], progress: dict[str, Any]) -> str:
    return f"{progress['stage']} (attempt {job['attempt']})" if job["state"] == "running" else str(job["state"])


def _show_cards(console: Console, cards: list[dict[str, Any]]) -> None:
    console.print(f"\n[bold]{len(cards)} study cards[/bold], for example:")
    for card in cards[:3]:
        console.print(f"  Q  {card['question']}\n  A  {card['answer']}  [dim]({card['source']})[/dim]")


def _show_bill(console: Console, page: Page, job: dict[str, Any], kept: int, cards: int) -> None:
    meter = page.get("meter")
    table = Table(title="\nWhat happened", title_justify="left", show_header=True)
    table.add_column("")
    table.add_column("with onejob", justify="right")
    table.add_column("one run per click", justify="right")
    per_run = meter["provider_calls_without"] // meter["requests"]
    rows = [
        ("requests", meter["requests"], meter["requests"]),
        ("jobs run", 1, meter["requests"]),
        ("provider calls paid", meter["provider_calls"], meter["provider_calls_without"]),
        ("paid again (the call under way at the kill)", meter["provider_calls"] - _distinct(job), kept),
        ("attempts", job["attempt"], "-"),
        ("cards", cards, cards),
    ]
    for name, ours, theirs in rows:
        table.add_row(name, str(ours), str(theirs))
    console.print(table)
    computed = f"{meter['requests']} requests x {per_run} calls, were each click run"
    console.print(f"[dim]“One run per click” is computed: {computed}.[/dim]")


def _distinct(job: dict[str, Any]) -> int:
    """Return how many paid calls one undisturbed run makes."""
    return int(job["progress"]["total"])


def _check(outcomes: Counter[str], job: dict[str, Any], meter: dict[str, Any], cards: list[Any]) -> None:
    """Hold the story against its promise: at most the one call that was under way is paid twice."""
    promised = {
        "one request was admitted": outcomes["admitted"] == 1,
        "all others were attached": outcomes["attached"] == CLICKS - 1,
        "the job ran on after the kill": job["attempt"] == 2,
        "kept steps were not paid again": meter["provider_calls"] - _distinct(job) <= 1,
        "there are cards": bool(cards),
    }
    broken = [promise for promise, kept in promised.items() if not kept]
    if broken:
        msg = f"not as promised: {'; '.join(broken)}"
        raise StoryError(msg)
