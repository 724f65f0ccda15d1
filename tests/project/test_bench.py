"""The bench measures what it says, and runs from end to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from bench.chart import svg
from bench.cloning import copy, job_id, packed
from bench.contenders import PLAIN, FailedError
from bench.rounds import Cost, as_results, orders, run_rounds
from bench.wire import postgres_requests, redis_requests
from checks.project import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from bench.contenders import Contender

OTHER = PLAIN.__class__("other", "other", "redis")
STAGES = ("submit", "clients", "run", "api", "counts", "memory", "growth", "recovery")


def test_a_ratio_compares_within_a_round() -> None:
    """A contender that takes half the time of the reference in each round has the ratio 2, however rounds differ."""
    seconds = {"other": iter([1.0, 10.0, 3.0]), PLAIN.name: iter([2.0, 20.0, 6.0])}

    def measure(contender: Contender, _kind: str) -> Cost:
        return Cost(next(seconds[contender.name]), 0.0)

    found = run_rounds([OTHER, PLAIN], ["submit"], 3, measure, {})
    assert [row["ratio"] for row in as_results(found, PLAIN, 1) if row["contender"] == "other"] == [[2.0, 2.0, 2.0]]


def test_every_contender_has_every_place_in_the_order() -> None:
    """In as many rounds as there are contenders, each is first once."""
    contenders = [PLAIN, OTHER, PLAIN.__class__("third", "third", "redis")]
    assert sorted(order[0].name for order in orders(contenders, 6)) == sorted(2 * [one.name for one in contenders])


def test_a_contender_that_fails_is_reported() -> None:
    """A contender that fails in one round is left out of the next ones, and has its error in place of figures."""

    def measure(contender: Contender, _kind: str) -> Cost:
        if contender is OTHER:
            raise FailedError("no such server")
        return Cost(1.0, 0.0)

    rows = as_results(run_rounds([PLAIN, OTHER], ["submit"], 2, measure, {}), PLAIN, 1)
    assert [row.get("failure") for row in rows] == [None, "no such server"]
    assert "median" not in rows[1]


def test_commands_are_counted_in_any_parts() -> None:
    """Commands in Redis' protocol are counted once each, however they are cut into packets."""
    sent = packed([b"SET", b"a", b"*1\r\n$4\r\n"]) + packed([b"GET", b"a"])
    for cut in range(len(sent)):
        first, rest = redis_requests(sent[:cut])
        assert first + redis_requests(rest + sent[cut:])[0] == 2


def test_statements_are_counted_in_any_parts() -> None:
    """Of PostgreSQL's messages those that execute a statement are counted, however they are cut into packets."""

    def message(kind: bytes, body: bytes) -> bytes:
        return kind + (4 + len(body)).to_bytes(4, "big") + body

    sent = (
        message(b"", b"\0\3\0\0user\0me\0\0")
        + message(b"Q", b"begin\0")
        + message(b"B", b"")
        + message(b"E", b"\0" * 5)
    )
    for cut in range(len(sent)):
        first, rest = postgres_requests(sent[:cut])
        assert first + postgres_requests(rest + sent[cut:])[0] == 2


def test_a_copy_is_another_job_of_the_same_length() -> None:
    """The commands that write a job become those of another one by its name, in each form, and stay as long."""
    commands = packed([b"HSET", b"job:" + job_id(1).encode(), b"hex", job_id(1).replace("-", "").encode()])
    other = copy(commands, 1, 2)
    assert len(other) == len(commands)
    assert job_id(1).encode() not in other
    assert copy(other, 2, 1) == commands


def test_the_chart_can_be_read_without_seeing_it() -> None:
    """The chart is well-formed, and has a title and a description with every figure."""
    rows = [{"contender": "Celery & <co>", "kind": "submit", "ratio": [1.0, 1.0, 1.0]}]
    text = svg({"about": {"options": {"rounds": 9}, "system": "Linux"}, "submit": rows})
    chart = ET.fromstring(text)  # noqa: S314 - our own
    assert [part.text for part in chart if part.tag.endswith(("title", "desc"))] == [
        "Operations per second, compared with plain Celery", "Submit a new job: Celery & <co> 1.00.",
    ]  # fmt: skip


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_the_bench_runs(tmp_path: Path) -> None:
    """Every stage of the bench has figures for every store, with a few operations of each kind."""
    output = tmp_path / "results.json"
    command = [sys.executable, "-m", "bench", "--quick", "--peers", "", "--output", str(output)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    failures = [
        row for stage in STAGES for row in found[stage] if "failure" in row and "no setting" not in row["failure"]
    ]
    assert failures == []
    assert all("onejob on postgresql" in str(found[stage]) or stage == "growth" for stage in STAGES)


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_the_bench_of_the_dashboard_runs() -> None:
    """Every page of the dashboard has figures on every store, and pages that are open are measured."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, "-m", "bench.dashboard", "--quick"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    tables = done.stdout.strip().split("\n\n")
    assert sorted(table.partition(",")[0] for table in tables) == ["postgresql", "redis", "sqlite"]
    assert all("dead letters" in table and "open pages" in table for table in tables)
