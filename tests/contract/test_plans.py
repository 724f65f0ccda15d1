"""Every statement on PostgreSQL uses an index: no job becomes slower with the number of earlier jobs."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.rows import dict_row

from bench.filling import fill
from bench.plans import MODES, Plan, explained, names
from tests.conftest import make_ledger

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    newest, of_a_time = [plan for plan in plans if (plan.name, plan.mode) == ("find", "custom")]
    for mine in (newest, of_a_time):
        assert mine.scanned() == []
        assert "Sort" not in {node["Node Type"] for _, node in mine.nodes()}


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
