"""Every statement on PostgreSQL uses an index: no job becomes slower with the number of earlier jobs."""

from __future__ import annotations

import secrets
import sqlite3
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.rows import dict_row

from bench.filling import fill
from bench.plans import MODES, Plan, explained, names
from onejob.jobs.records import Query
from onejob.stores.sqlite.transaction import SQL as SQLITE
from tests.conftest import make_ledger
from tests.contract.support import StoreAddress

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.services import PostgresServer

JOBS = 20_000
"""So many that PostgreSQL reads a whole table only when it must."""
LISTS = frozenset({"find", "find_light", "count_jobs", "count_newest", "list_stats"})
"""Statements that list or count. Their generic plan is the dearest, so that PostgreSQL never comes to it."""


@pytest.fixture(scope="module")
def plans(postgres_server: PostgresServer) -> Iterator[list[Plan]]:
    schema = f"test_{secrets.token_hex(4)}"
    make_ledger(postgres_server.url, schema)
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        fill(connection, schema, JOBS)
        with psycopg.connect(postgres_server.url, row_factory=dict_row) as trial:
            found = explained(trial, schema)
            trial.rollback()
        yield found
        connection.execute(f"drop schema {schema} cascade".encode())


def test_every_statement_has_its_plans(plans: list[Plan]) -> None:
    """The plans below are those of all statements of the store, each as a custom and as a generic plan."""
    assert {(plan.name, plan.mode) for plan in plans} == {(name, mode) for name in names() for mode in MODES}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", sorted(names() - LISTS))
def test_no_statement_reads_a_whole_table(plans: list[Plan], name: str, mode: str) -> None:
    """Every row of a table that grows is found by an index, in custom and in generic plans."""
    mine = [plan for plan in plans if (plan.name, plan.mode) == (name, mode)]
    assert mine
    assert [str(plan) for plan in mine if plan.scanned()] == []


def test_the_newest_jobs_are_found_by_an_index(plans: list[Plan]) -> None:
    """The newest jobs are listed without reading the others."""
    newest, of_a_time, _ = [plan for plan in plans if (plan.name, plan.mode) == ("find", "custom")]
    for mine in (newest, of_a_time):
        assert mine.scanned() == []
        assert "Sort" not in {node["Node Type"] for _, node in mine.nodes()}


@pytest.mark.parametrize("name", ["find", "count_jobs"])
def test_the_jobs_of_a_submitter_are_found_by_an_index(plans: list[Plan], name: str) -> None:
    """The jobs of one submitter are listed and counted without reading those of the others."""
    mine = [plan for plan in plans if (plan.name, plan.mode) == (name, "custom")][-1]
    assert mine.scanned() == []
    assert "jobs_submitter" in {node.get("Index Name") for _, node in mine.nodes()}


def test_sqlite_finds_the_jobs_of_a_submitter_by_an_index(tmp_path: Path) -> None:
    """On SQLite, too, the jobs of one submitter are listed, in order, and counted by the index on submitters."""
    path = tmp_path / "ledger.db"
    with StoreAddress(f"sqlite:///{path}", "unused").opened() as store:
        store.find(Query(submitter="a"))
    values = dict.fromkeys(("task", "tasks", "identity", "reason", "since", "until", "before", "before_id"))
    values |= {"states": "[]", "submitter": "a", "unsettled": False, "limit": 50, "offset": 0}
    names = ("find_of_submitter", "find_light_of_submitter", "count_jobs_of_submitter", "count_newest_of_submitter")
    with sqlite3.connect(path) as connection:
        for name in names:
            rows = connection.execute(f"explain query plan {SQLITE[name]}", values).fetchall()
            details = " ".join(str(row[-1]) for row in rows)
            assert "jobs_submitter" in details, details
            assert "ORDER BY" not in details
    connection.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_sweep_finds_lost_runs_apart_from_the_others(plans: list[Plan], mode: str) -> None:
    """Three indexes lead to expired runs, to the waiting jobs of each task, and to ended jobs, each to no others."""
    mine = [plan for plan in plans if (plan.name, plan.mode) == ("take_due", mode)]
    assert mine
    for plan in mine:
        found = {node["Index Name"]: node for _, node in plan.nodes() if "Index Name" in node}
        assert {"jobs_lease", "jobs_wake", "jobs_ended"} <= set(found)
        assert all(node.get("Rows Removed by Filter", 0) == 0 for node in found.values())
        assert "known.task" in found["jobs_wake"]["Index Cond"]


def test_a_scan_is_seen() -> None:
    """A sequential scan is detected anywhere in a plan."""
    inner = {"Node Type": "Seq Scan", "Relation Name": "jobs"}
    outer = {"Node Type": "Nested Loop", "Plans": [{"Node Type": "Index Scan", "Relation Name": "steps"}, inner]}
    assert Plan("take_due", "generic", {"Plan": outer}).scanned() == ["jobs"]
