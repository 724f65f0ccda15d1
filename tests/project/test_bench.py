"""The bench measures what it says, and runs from end to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.cloning import packed
from bench.contenders import PLAIN, Contender, FailedError
from bench.limits_peers import CONTENDERS, WORKS, most_at_once
from bench.peers.slots import Run
from bench.rounds import Cost, as_results, run_rounds
from bench.wire import postgres_requests, redis_requests
from checks.project import ROOT

OTHER = PLAIN.__class__("other", "other", "redis")
STAGES = ("submit", "clients", "run", "api", "counts", "memory", "growth", "recovery")


def test_a_ratio_compares_within_a_round() -> None:
    """A contender that takes half the time of the reference in each round has the ratio 2, however rounds differ."""
    seconds = {"other": iter([1.0, 10.0, 3.0]), PLAIN.name: iter([2.0, 20.0, 6.0])}

    def measure(contender: Contender, _kind: str) -> Cost:
        return Cost(next(seconds[contender.name]), 0.0)

    found = run_rounds([OTHER, PLAIN], ["submit"], 3, measure, {})
    assert [row["ratio"] for row in as_results(found, PLAIN, 1) if row["contender"] == "other"] == [[2.0, 2.0, 2.0]]


def test_a_contender_that_fails_is_reported() -> None:
    """A contender that fails in one round is left out of the next ones, and has its error in place of figures."""

    def measure(contender: Contender, _kind: str) -> Cost:
        if contender is OTHER:
            raise FailedError("no such server")
        return Cost(1.0, 0.0)

    rows = as_results(run_rounds([PLAIN, OTHER], ["submit"], 2, measure, {}), PLAIN, 1)
    assert [row.get("failure") for row in rows] == [None, "no such server"]
    assert "median" not in rows[1]


def test_requests_are_counted_in_any_parts() -> None:
    """Redis' commands, and PostgreSQL's messages that execute something, count once each, however they are cut."""

    def message(kind: bytes, body: bytes) -> bytes:
        return kind + (4 + len(body)).to_bytes(4, "big") + body

    commands = packed([b"SET", b"a", b"*1\r\n$4\r\n"]) + packed([b"GET", b"a"])
    statements = message(b"", b"\0\3\0\0user\0me\0\0") + message(b"Q", b"begin\0") + message(b"B", b"")
    statements += message(b"E", b"\0" * 5)
    for count, sent in ((redis_requests, commands), (postgres_requests, statements)):
        for cut in range(len(sent)):
            first, rest = count(sent[:cut])
            assert first + count(rest + sent[cut:])[0] == 2


def test_the_most_bodies_at_once_are_counted() -> None:
    """Bodies that overlap count together, and one that begins as another ends does not."""
    times = [(0.0, 2.0), (1.0, 3.0), (2.0, 4.0), (2.5, 2.6), (5.0, 6.0)]
    assert most_at_once([Run(number, 0, *each) for number, each in enumerate(times)]) == 3


def run(*arguments: str) -> str:
    """Run a module of the bench, and return what it prints."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


EXPECTED = ("no setting", "ended too soon to measure them")
"""What a contender cannot do, and what happens to a few jobs beside other work."""


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_the_bench_runs(tmp_path: Path) -> None:
    """Every stage of the bench has figures for a store, with a few operations of each kind."""
    output = tmp_path / "results.json"
    run("bench", "--quick", "--stores", "postgresql", "--peers", "", "--output", str(output))
    found: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    failures = [row["failure"] for stage in STAGES for row in found[stage] if "failure" in row]
    assert [failure for failure in failures if not any(each in failure for each in EXPECTED)] == []
    assert all("onejob on postgresql" in str(found[stage]) or stage == "growth" for stage in STAGES)


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_the_bench_of_the_dashboard_runs() -> None:
    """Every page of the dashboard has figures on every store, and pages that are open are measured."""
    tables = run("bench.dashboard", "--quick").strip().split("\n\n")
    assert sorted(table.partition(",")[0] for table in tables) == ["postgresql", "redis", "sqlite"]
    assert all("dead letters" in table and "open pages" in table for table in tables)


@pytest.mark.deep
@pytest.mark.timeout(300)
@pytest.mark.parametrize("broker", ["redis", "ledger"])
def test_the_bench_of_rate_limits_runs(broker: str) -> None:
    """The rates of Celery's tasks, of onejob's, and of plain ones beside them are measured."""
    table = run("bench.rate", "--jobs", "20", "--limit", "20/s", "--tasks", "2", "--broker", broker, "--beside")
    rows = [line.split() for line in table.splitlines()]
    names = [row[0] for row in rows]
    assert names == ["task", *(f"{name}-{n}" for name in ("celery", "onejob", "plain-beside") for n in range(2))]
    assert [row[1] for row in rows if row[0].startswith("onejob")] == ["20", "20"]


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_the_bench_of_limits_beside_peers_runs() -> None:
    """The same work is run with limits of onejob and of each peer that is installed, and no limit is exceeded."""
    table = run("bench.limits", "peers", "--rounds", "1", "--jobs", "20").splitlines()
    rows = [line for line in table if any(line.startswith(work.name) for work in WORKS)]
    assert len(rows) == len(WORKS) * len(CONTENDERS)
    measured = [row for row in rows if "not installed" not in row]
    assert len(measured) >= len(WORKS) * sum(one.module == "limited" for one in CONTENDERS)
    assert all(int(row.split()[-1]) <= 3 for row in measured)
