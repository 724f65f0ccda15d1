"""The scenario that the demo runs in the terminal: a hundred clicks at once, a limit, a killed worker, the bill."""

import io
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from onejob.demo import LEASE
from onejob.demo.supervisor import ApiClient, DemoError, Stack, make_folder
from onejob.jobs.public_view import short_id

PROJECT = "founding-documents"
CLICKS = 100
CUSTOMER = "school"
COPIES = 6
RUN_SECONDS = 120.0
LIVE = {"queued", "running", "retrying"}


def run_demo(*, documents: str | None = None, stay: bool = False, port: int = 0, in_memory: bool = False) -> int:
    """Start the stack, run the scenario, stop everything. Returns the exit code.

    `in_memory` uses no broker process, as on platforms without its wheel: the sweeper of each worker publishes the jobs
    from the ledger to the worker's own in-memory broker.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # so that a pipe gets each line at once
    console = Console(highlight=False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    stack = Stack(make_folder(), documents, port, in_memory=in_memory)
    try:
        with console.status("starting broker, two workers and the API ..."):
            api = stack.start()
        _run_scenario(console, stack, api)
        if stay:
            console.print(f"\nThe page stays at [bold]{api.url}[/bold]; Ctrl-C ends the demo.")
            signal.pause()
        console.print("\nIts page ends with the demo; `make demo ARGS=--stay` keeps it.")
    except DemoError as error:
        console.print(f"[red]The demo failed:[/red] {escape(str(error))}")
        console.print(stack.end_of_log("server"), markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("\nended")
        return 0 if stay else 130
    finally:
        stack.children.close()
    return 0


def _run_scenario(console: Console, stack: Stack, api: ApiClient) -> None:
    """Run the scenario. Raises `DemoError` if a promise does not hold."""
    console.print(f"The page is at [bold]{api.url}[/bold], the dashboard at [bold]{api.url}dashboard/[/bold]\n")
    outcomes, seconds, job_id = _send_clicks(api)
    console.print(f"[bold]{CLICKS} simultaneous clicks[/bold] on “Generate study plan”, answered in {seconds:.2f} s:")
    console.print(
        f"  {outcomes['admitted']} admitted, {outcomes['attached']} attached, all to job {short_id(job_id)}\n"
    )
    waiting = _print_copies(console, api)
    job, kept = _follow(console, stack, api, job_id)
    cards, meter = job["result"]["cards"], api.get("meter")
    print_cards(console, cards)
    _print_bill(console, meter, job, kept)
    _check_promises(outcomes, waiting, meter, job)


def _send_clicks(api: ApiClient) -> tuple[Counter[str], float, str]:
    """Send equal requests at the same moment. Returns the outcomes, the seconds and the one job's id."""
    gate = threading.Barrier(CLICKS)

    def submit(_: int) -> Any:
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
        raise DemoError(f"{CLICKS} equal requests made {len(ids)} jobs")
    return Counter(response["outcome"] for response in responses), time.monotonic() - began, ids.pop()


def _print_copies(console: Console, api: ApiClient) -> int:
    """Submit copies to print for one customer, one at a time; return how many wait. The plan runs beside them."""
    for number in range(1, COPIES + 1):
        api.print_copy(CUSTOMER, number)
    waiting: dict[str, int] = api.get("meter")["waiting"]
    console.print(f"[bold]{COPIES} copies to print[/bold] for one customer, whose limit is one at a time:")
    console.print(f"  {'; '.join(f'{count} of them “{reason}”' for reason, count in waiting.items())}\n")
    return sum(waiting.values())


def _follow(console: Console, stack: Stack, api: ApiClient, job_id: str) -> tuple[dict[str, Any], int]:
    """Kill the worker of a job when half of its calls are made; return the ended job, and how many calls were kept."""
    count = TextColumn("{task.completed:>3.0f}/{task.total:.0f}")
    with Progress(TextColumn("  {task.description:<22}"), BarColumn(40), count, console=console) as bar:
        bar.add_task("waiting", total=1)
        job = _await("half of its calls were made", _is_half_way, api, job_id, bar)
        killed, killed_at, kept = api.worker(job_id), time.monotonic(), _calls(job)[0]
        stack.kill(killed)
        bar.console.print(f"  [red]worker {killed} killed with SIGKILL[/red]: {kept} calls paid and kept")
        _await("another worker resumed it", lambda job: job["attempt"] > 1, api, job_id, bar)
        worker, after = api.worker(job_id), time.monotonic() - killed_at
        bar.console.print(f"  [green]resumed on worker {worker}[/green] after {after:.1f} s (the lease is {LEASE:g} s)")
        stack.start_worker(killed)
        return _await("it completed", lambda job: job["state"] == "completed", api, job_id, bar), kept


def _await(
    what: str, holds: Callable[[dict[str, Any]], bool], api: ApiClient, job_id: str, bar: Progress
) -> dict[str, Any]:
    """Show the progress of a job until a condition holds. Raises `DemoError` if it ends before, or takes too long."""
    deadline = time.monotonic() + RUN_SECONDS
    while True:
        job: dict[str, Any] = api.job(job_id)
        stage = job["progress"]["stage"] if job["state"] == "running" and job["progress"] else job["state"]
        done, total = _calls(job)
        bar.update(bar.task_ids[0], description=f"{stage} (attempt {job['attempt']})", completed=done, total=total)
        if holds(job):
            return job
        if job["state"] not in LIVE or time.monotonic() > deadline:
            raise DemoError(f"the job is {job['state']} before {what}: {job['reason'] or 'give it more documents'}")
        time.sleep(0.1)


def _is_half_way(job: dict[str, Any]) -> bool:
    done, total = _calls(job)
    return job["state"] == "running" and done >= max(1, total // 2)


def _calls(job: dict[str, Any]) -> tuple[int, int]:
    """Return how many paid calls are made, and how many there will be."""
    progress = job["progress"] or {}
    return int(progress.get("done") or 0), int(progress.get("total") or 1)


def print_cards(console: Console, cards: Sequence[Mapping[str, str]]) -> None:
    """Print the first cards; their texts, which may be of documents of the user, are no markup."""
    console.print(f"\n[bold]{len(cards)} study cards[/bold], for example:")
    for card in cards[:3]:
        question, answer, source = (escape(card[name]) for name in ("question", "answer", "source"))
        console.print(f"  Q  {question}\n  A  {answer}  [dim]({source})[/dim]")


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


def _check_promises(outcomes: Counter[str], waiting: int, meter: dict[str, int], job: dict[str, Any]) -> None:
    """Raise `DemoError` for a broken promise: at most the interrupted call is paid twice."""
    promises = {
        "one request was admitted": outcomes["admitted"] == 1,
        "all others were attached": outcomes["attached"] == CLICKS - 1,
        "copies waited for the one before": 0 < waiting < COPIES,
        "the job resumed after the kill": job["attempt"] == 2,
        "stored steps were not paid again": meter["provider_calls"] - _calls(job)[1] <= 1,
        "there are cards": bool(job["result"]["cards"]),
    }
    broken = [promise for promise, holds in promises.items() if not holds]
    if broken:
        raise DemoError(f"not as promised: {'; '.join(broken)}")
