"""Dead letters in groups: by task and error, whatever ids and numbers are in the messages."""

import json

from onejob.jobs.model import Job
from onejob.jobs.records import Query
from onejob.ledger.bulk import Selection, bulk_apply
from onejob.ledger.dead_letters import SAMPLE_LIMIT, group_failures, group_key, in_group
from tests.cases import for_each
from tests.conftest import every_store
from tests.contract.ledger.world import World

UUID = "d516792d-ede0-48fa-87ad-c2c95e863786"


def fail(world: World, job_id: str, kind: str, message: str, task: str = "app.add") -> Job:
    """Let a job fail with an error."""
    job = world.run(job_id, task=task, payload='{"large": 1}')
    return world.ledger.fail(
        job, json.dumps({"type": kind, "message": message, "traceback": "t"}), f"{kind}: {message}"
    )


@every_store
def test_failures_are_grouped(world: World) -> None:
    """Each group has its number of jobs, the times of its first and last failure, and the newest message."""
    failures = [
        ("KeyError", f"no row {UUID}", "app.add"), ("TimeoutError", "after 30.5 s", "app.add"),
        ("KeyError", "no row 17", "app.add"), ("KeyError", "no row 18", "other.task"),
        ("ValueError", "no row 18", "app.add"),
    ]  # fmt: skip
    times = {}
    for number, failure in enumerate(failures):
        times[number] = world.clock.advance(10.0)
        fail(world, f"job-{number}", *failure)
    groups = group_failures(world.ledger)
    assert [(each.task, each.error_type, each.count, each.message) for each in groups] == [
        ("app.add", "ValueError", 1, "no row 18"), ("other.task", "KeyError", 1, "no row 18"),
        ("app.add", "KeyError", 2, "no row 17"), ("app.add", "TimeoutError", 1, "after 30.5 s"),
    ]  # fmt: skip
    third = groups[2]
    assert (third.pattern, third.job_ids) == ("no row …", ["job-2", "job-0"])
    assert (third.first_at, third.last_at) == (times[0], times[2])
    assert [each.task for each in group_failures(world.ledger, task="other.task")] == ["other.task"]
    assert sum(each.count for each in group_failures(world.ledger, limit=2)) == 2


def test_the_message_is_that_of_the_last_failure(world: World) -> None:
    """Message and first id are those of the job that failed last, whenever it was submitted; the sample is bounded."""
    slow = world.run("slow")
    for number in range(SAMPLE_LIMIT + 1):
        fail(world, f"job-{number}", "E", f"try {number}")
    world.clock.advance(5.0)
    world.ledger.fail(slow, '{"type": "E", "message": "try 99"}', "E")
    (group,) = group_failures(world.ledger)
    assert (group.message, group.count, len(group.job_ids)) == ("try 99", SAMPLE_LIMIT + 2, SAMPLE_LIMIT)
    assert (group.last_at, group.job_ids[0]) == (world.clock(), slow.id)


@for_each(
    "one, other, equal",
    [
        ("row 17", "row 4711", True),
        ("took 1.5 s", "took 12 s", True),
        (f"no {UUID}", "no 00000000-0000-4000-8000-000000000000", True),
        ("commit deadbeef01", "commit 0123456789abcdef", True),
        ("commit deadbeef01", "commit 12345678", True),
        ("at 0x7f0a", "at 0xffffffff", True),
        ("no column 'a b'", "no column 'c'", True),
        ('no column "a"', 'no column "b 7"', True),
        ("can't open x, won't retry", "can't open y, won't retry", False),
        ("row not found", "column not found", False),
        ("", "x", False),
    ],
)
def test_ids_and_numbers_do_not_split_groups(world: World, one: str, other: str, equal: bool) -> None:
    """Numbers, UUIDs, hexadecimal and quoted texts are equal to all others; words are not."""
    number = len(world.store.find(Query(limit=1000)))
    keys = {group_key(fail(world, f"{number}-{index}", "E", text)) for index, text in enumerate((one, other))}
    assert len(keys) == (1 if equal else 2)


@for_each("error", ["", "null", "[]", "{", '"lost"', "{}"])
def test_an_error_of_another_form_is_grouped_by_its_reason(world: World, error: str) -> None:
    """A dead letter whose error has no class is grouped by its reason."""
    number = len(world.store.find(Query(limit=1000)))
    job = world.ledger.fail(world.run(f"job-{number}"), error, f"lost {number} times")
    assert group_key(job) == ("app.add", "", "lost … times")


def test_a_bulk_operation_acts_on_a_group(world: World) -> None:
    """The jobs of a group can be selected for a bulk operation; a redriven job is in no group."""
    for number in range(3):
        fail(world, f"job-{number}", "KeyError" if number != 1 else "E", f"no row {number}")
    key = next(each.key for each in group_failures(world.ledger) if each.error_type == "KeyError")
    selection = Selection(query=Query(), matches=lambda job: in_group(job, key))
    assert bulk_apply(world.ledger, selection, lambda job: world.ledger.redrive(job.id)).done == ["job-2", "job-0"]
    assert not in_group(world.read("job-2"), key)
