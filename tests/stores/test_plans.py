"""Every statement on PostgreSQL uses an index: no job becomes slower with the number of earlier jobs."""

import re
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import redis
from psycopg.rows import dict_row

from bench.filling import fill
from bench.plans import MODES, Plan, explained, names
from onejob.jobs.handover import by_caller
from onejob.jobs.lifecycle import FINAL, State
from onejob.jobs.query import Query
from onejob.stores.migrate import index_redis
from onejob.stores.postgres.connection import Connection
from onejob.stores.postgres.statements import SQL, statement
from onejob.stores.sqlite.transaction import SQL as SQLITE
from tests.cases import for_each
from tests.conftest import make_ledger
from tests.services import PostgresServer
from tests.stores.support import LEASE, ManualClock, StoreAddress, claim, end, run, submission

JOBS = 20_000
"""So many that PostgreSQL reads a whole table only when it must."""
LISTS = frozenset({"find", "find_light", "count_jobs", "count_newest", "list_stats"})
"""Statements that list or count. `list_stats` reads all duplicates; the others have no generic plan."""


@pytest.fixture(scope="module")
def plans(postgres_server: PostgresServer) -> list[Plan]:
    """Return the plans of all statements among many jobs."""
    return plans_among(JOBS, postgres_server.url)


def plans_among(jobs: int, url: str) -> list[Plan]:
    """Return the plans of all statements in a ledger of so many jobs."""
    schema = f"test_{secrets.token_hex(4)}"
    make_ledger(url, schema)
    with psycopg.connect(url, autocommit=True) as connection:
        if jobs:
            fill(connection, schema, jobs)
        with psycopg.connect(url, row_factory=dict_row) as trial:
            found = explained(trial, schema)
            trial.rollback()
        connection.execute(f"drop schema {schema} cascade".encode())
    return found


def indexes_of_jobs(plans: list[Plan]) -> dict[tuple[str, str], set[str]]:
    """Return the indexes by which each statement finds jobs, by its name and mode."""
    found: dict[tuple[str, str], set[str]] = {}
    for plan in plans:
        names = {node["Index Name"] for _, node in plan.nodes() if node.get("Index Name", "").startswith("jobs_")}
        found.setdefault((plan.name, plan.mode), set()).update(names)
    return found


def test_every_statement_has_its_plans(plans: list[Plan]) -> None:
    """The plans below are those of all statements of the store, each as a custom and as a generic plan."""
    assert {(plan.name, plan.mode) for plan in plans} == {(name, mode) for name in names() for mode in MODES}


@pytest.mark.parametrize("mode", MODES)
@for_each("name", sorted(names() - LISTS))
def test_no_statement_reads_a_whole_table(plans: list[Plan], name: str, mode: str) -> None:
    """Every row of a table that grows is found by an index, in custom and in generic plans."""
    mine = [plan for plan in plans if (plan.name, plan.mode) == (name, mode)]
    assert mine
    assert [str(plan) for plan in mine if plan.scanned()] == []


LISTED = ("find", "find_light", "count_jobs", "count_newest", "edge")
"""The statements that have a variant for each index."""
VARIANTS = ("", "_of_submitter", "_of_state", "_of_runs")


LED = {
    **{f"{name}_of_submitter": {"jobs_submitter"} for name in LISTED},
    **{f"{name}_of_state": {"jobs_state"} for name in LISTED},
    **{f"{name}_of_runs": {"jobs_lease"} for name in LISTED},
    "count_states": {"jobs_state", "jobs_lease", "jobs_ended"},
    "edge": {"jobs_created"},
    "backlog": {"jobs_wake", "jobs_lease"},
    "followers": {"jobs_follows_id"},
    "unpark": {"jobs_parked"},
    "limit_use": {"jobs_parked"},
    "limit_uses": {"jobs_parked"},
    "parked_before": {"jobs_parked"},
}
"""Of each statement the indexes that lead to few jobs."""
ON_INDEXES_ALONE = ("count_states", "edge")
"""Statements that read no row of an index's entry."""


@pytest.mark.parametrize("mode", MODES)
@for_each("name", LED)
def test_few_jobs_are_found_by_their_index(plans: list[Plan], name: str, mode: str) -> None:
    """States, running jobs, numbers, positions, the backlog and followers are found by these indexes, in both modes."""
    for plan in [plan for plan in plans if (plan.name, plan.mode) == (name, mode)]:
        used = {node["Index Name"]: node["Node Type"] for _, node in plan.nodes() if "Index Name" in node}
        assert LED[name] <= set(used)
        assert name == "edge" or "jobs_created" not in used
        assert name not in ON_INDEXES_ALONE or {used[index] for index in LED[name]} == {"Index Only Scan"}
        keys = {key for _, node in plan.nodes() for key in node.get("Sort Key", ())}
        assert not name.endswith("_of_state") or not {key for key in keys if "created_at DESC" in key}


@pytest.mark.parametrize("mode", MODES)
@for_each("name", ("claim_limited", "free_slot", "set_alarm"))
def test_the_first_parked_job_is_found_by_an_index(plans: list[Plan], name: str, mode: str) -> None:
    """Of the jobs that are parked on a key only the first one is read, in both modes."""
    mine = [plan for plan in plans if (plan.name, plan.mode) == (name, mode)]
    assert mine
    for plan in mine:
        parked = [node for _, node in plan.nodes() if node.get("Index Name") == "jobs_parked"]
        assert parked
        assert {node["Node Type"] for node in parked} <= {"Index Scan", "Index Only Scan"}
        assert max(node["Actual Rows"] for node in parked) <= 1
        sorted_by = {key for _, node in plan.nodes() for key in node.get("Sort Key", ())}
        assert not {key for key in sorted_by if "priority_rank" in key}


def test_a_new_ledger_has_the_plans_of_a_large_one(plans: list[Plan], postgres_server: PostgresServer) -> None:
    """A plan that was chosen among few jobs, and is kept while thousands come, leads by no other index to them."""
    among_many = indexes_of_jobs(plans)
    for key, indexes in indexes_of_jobs(plans_among(0, postgres_server.url)).items():
        assert key[0] in LISTS or indexes <= among_many[key], key


def test_a_page_of_a_state_begins_at_its_position(plans: list[Plan]) -> None:
    """The index leads to the first job of a page, also a later one: what precedes it is not read, and not sorted."""
    _, later = [plan for plan in plans if (plan.name, plan.mode) == ("find_of_state", "custom")]
    conditions = [node.get("Index Cond", "") for _, node in later.nodes()]
    assert [each for each in conditions if re.search(r"ROW\((jobs\.)?created_at, (jobs\.)?id\)", each)]


def test_the_newest_jobs_are_found_by_an_index(plans: list[Plan]) -> None:
    """The newest jobs are listed without reading the others."""
    newest, of_a_time = [plan for plan in plans if (plan.name, plan.mode) == ("find", "custom")]
    for mine in (newest, of_a_time):
        assert mine.scanned() == []
        assert "Sort" not in {node["Node Type"] for _, node in mine.nodes()}


def test_lists_are_planned_for_their_filters(postgres_server: PostgresServer) -> None:
    """PostgreSQL prepares no statement that lists by filters, so that it never comes to a generic plan for it."""
    schema = f"test_{secrets.token_hex(4)}"
    make_ledger(postgres_server.url, schema)
    with Connection.connect(
        postgres_server.url, prepare_threshold=0, row_factory=dict_row, cursor_factory=psycopg.RawCursor
    ) as connection:
        for name in names() & {f"{name}{variant}" for name in LISTED for variant in VARIANTS}:
            values: dict[str, object] = dict.fromkeys(re.findall(r"(?<![:\w]):([a-z_]+)", SQL[name]))
            connection.run(statement(name, schema), values | {"states": [], "limit": 1, "offset": 0})
        found = connection.run("select statement from pg_prepared_statements", {})
        connection.execute(f"drop schema {schema} cascade".encode())
    assert [each["statement"] for each in found if schema in each["statement"]] == []


@pytest.fixture
def sqlite_plan(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Return a function that returns how SQLite executes a statement."""
    path = tmp_path / "ledger.db"
    with StoreAddress(f"sqlite:///{path}", "unused").opened() as store:
        store.find(Query())
    connection = sqlite3.connect(path)

    def plan_of(name: str) -> str:
        values = dict.fromkeys(re.findall(r":([a-z_]+)", SQLITE[name]))
        return "\n".join(str(row[-1]) for row in connection.execute(f"explain query plan {SQLITE[name]}", values))

    yield plan_of
    connection.close()


@for_each("name", LED)
def test_sqlite_finds_few_jobs_by_their_index(sqlite_plan: Callable[[str], str], name: str) -> None:
    """On SQLite the same jobs are found by exactly these indexes, and lists of a submitter or a state in order."""
    found = sqlite_plan(name)
    expected = LED[name] | ({"jobs_wake"} if name == "count_states" else set())
    assert set(re.findall(r"INDEX (jobs_\w+)", found)) == expected
    assert not re.search(r"SCAN jobs$", found, re.MULTILINE)
    if name.endswith(("_of_state", "_of_submitter")):
        assert "ORDER BY" not in found
        assert name.endswith("submitter") or "jobs_state (state=? AND created_at" in found


@for_each("name", ("first_parked", "key_state", "forget_slots", "forget_reservations", "limit_value"))
def test_sqlite_looks_at_one_key_of_a_limit(sqlite_plan: Callable[[str], str], name: str) -> None:
    """On SQLite no statement about a key reads the rows of another key, or sorts parked jobs."""
    found = sqlite_plan(name)
    assert not re.search(r"SCAN (?!CONSTANT)", found), found
    assert name != "first_parked" or "ORDER BY" not in found


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


def test_an_idle_sweep_of_redis_costs_the_same_for_any_number_of_tasks(redis_url: str, redis_prefix: str) -> None:
    """While no job is due, a sweep runs the same few commands in Redis for a hundred tasks with jobs and for none."""
    clock = ManualClock()
    with StoreAddress(redis_url, redis_prefix).opened(clock) as store, redis.Redis.from_url(redis_url) as server:

        def commands(tasks: frozenset[str]) -> int:
            before = server.info("commandstats").get("cmdstat_zrangebyscore", {"calls": 0})["calls"]
            assert store.take_due(tasks=tasks, limit=10, hold=5.0) == []
            return int(server.info("commandstats")["cmdstat_zrangebyscore"]["calls"] - before)

        tasks = frozenset(f"app.task{number}" for number in range(100))
        none = commands(frozenset())
        store.submit_many([submission(task, task=task) for task in tasks], handover_of=by_caller)
        assert [commands(tasks), commands(tasks)] == [none, none]
        for task in tasks:
            claim(store, task)
        clock.advance(LEASE / 2)
        assert commands(tasks) == none


def test_a_list_in_redis_reads_the_jobs_of_its_submitter_only(redis_url: str, redis_prefix: str) -> None:
    """For a submitter without jobs a list, a search, a count and an edge cost a few commands, whatever others have."""
    queries = (
        Query(submitter="user:2"), Query(submitter="user:2", limit=1, arguments="zzz"),
        Query(submitter="user:2", states=frozenset({State.FAILED})), Query(submitter="user:2", task="app.add"),
    )  # fmt: skip
    with StoreAddress(redis_url, redis_prefix).opened() as store, redis.Redis.from_url(redis_url) as server:
        others = [submission(f"job-{number}", submitter="user:1") for number in range(600)]
        store.submit_many(others, handover_of=by_caller)

        def commands() -> int:
            return sum(row["calls"] for row in server.info("commandstats").values())

        for query in queries:
            before = commands()
            assert (store.find(query), store.counts(query), store.edge(query, skip=0)) == ([], {}, None)
            assert commands() - before <= 6, query
        run(store, "mine", submitter="user:2")
        before = commands()
        assert [job.id for job in store.find(Query(submitter="user:2"))] == ["mine"]
        assert commands() - before <= 8


def test_a_submitter_in_redis_has_a_set_while_it_has_jobs(redis_url: str, redis_prefix: str) -> None:
    """Each way to write a job adds it to the set of its submitter, and its purge removes it; others are in none."""
    prefix = f"{{{redis_prefix}}}:submitter:"
    with (
        StoreAddress(redis_url, redis_prefix).opened() as store,
        redis.Redis.from_url(redis_url, decode_responses=True) as server,
    ):

        def listed() -> dict[str, set[str]]:
            found = server.scan_iter(f"{prefix}*")
            return {each.removeprefix(prefix): {*server.zrange(each, 0, -1)} for each in found}

        store.submit_many([submission("nobodys"), submission("other", submitter="user:2")], handover_of=by_caller)
        first = run(store, "first", submitter="user:1", identity="same", queue_next=True)
        for job_id, more in (("next", {"queue_next": True}), ("attached", {"follows": True}), ("plain", {})):
            store.submit_many(
                [submission(job_id, submitter="user:1", identity="same", fingerprint=job_id, **more)],
                handover_of=by_caller,
            )
        store.follow(submission("webhook", submitter="user:1"), follows_id="first")
        mine = {"first", "next", "attached", "webhook"}
        assert listed() == {"user:1": mine, "user:2": {"other"}}
        assert {job.id for job in store.find(Query(submitter="user:1"))} == mine
        end(store, first)
        assert store.delete([*mine, "other", "nobodys"], sources=FINAL) == ["first"]
        assert listed() == {"user:1": mine - {"first"}, "user:2": {"other"}}


def test_jobs_of_an_earlier_version_in_redis_are_indexed(redis_url: str, redis_prefix: str) -> None:
    """A migration adds the jobs that are in no set of their submitter, once, and leaves those without one."""
    address = StoreAddress(redis_url, redis_prefix)
    with address.opened() as store, redis.Redis.from_url(redis_url) as server:
        names = [("", "user:1", "user:2")[number % 3] for number in range(600)]
        jobs = [submission(f"job-{number}", submitter=name) for number, name in enumerate(names)]
        store.submit_many(jobs, handover_of=by_caller)
        expected = {name: store.find(Query(submitter=name, limit=1000)) for name in names[:3]}
        for name in names[1:3]:
            server.delete(f"{{{redis_prefix}}}:submitter:{name}")
        assert store.find(Query(submitter="user:1")) == []
        assert [index_redis(address.url, address.namespace) for _ in range(2)] == [400, 0]
        assert {name: store.find(Query(submitter=name, limit=1000)) for name in names[:3]} == expected
        assert server.keys(f"{{{redis_prefix}}}:submitter:") == []


def test_an_end_in_redis_makes_many_followers_due_in_a_few_commands(redis_url: str, redis_prefix: str) -> None:
    """The end of a job with 1,500 followers, of two tasks, makes all of them due in a few commands."""
    followers = [
        submission(f"follower-{number}", identity="same", follows=True, task=f"app.task{number % 2}")
        for number in range(1500)
    ]
    clock = ManualClock()
    with StoreAddress(redis_url, redis_prefix).opened(clock) as store, redis.Redis.from_url(redis_url) as server:
        job = run(store, "job-1", identity="same")
        store.submit_many(followers, handover_of=by_caller)

        def commands() -> int:
            return sum(row["calls"] for row in server.info("commandstats").values())

        before = commands()
        end(store, job)
        assert commands() - before < 50
        due = store.take_due(tasks=frozenset({"app.task0", "app.task1"}), limit=2000, hold=LEASE)
        assert {each.id for each in due} == {each.id for each in followers}


def test_a_scan_is_seen() -> None:
    """A sequential scan is detected anywhere in a plan."""
    inner = {"Node Type": "Seq Scan", "Relation Name": "jobs"}
    outer = {"Node Type": "Nested Loop", "Plans": [{"Node Type": "Index Scan", "Relation Name": "steps"}, inner]}
    assert Plan("take_due", "generic", {"Plan": outer}).scanned() == ["jobs"]
