"""Chains, groups and chords end with the right results, whichever of their members are duplicates."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError

from onejob import JobFailedError, State
from tests.celery.harness import LEASE, PATIENCE, await_, on_every_store, pause_until, two_waiters
from tests.services import start_redis

if TYPE_CHECKING:
    from pathlib import Path

    from tests.celery.harness import House


@on_every_store("shared")
def test_chains_with_an_equal_head(shared: House) -> None:
    """Two chains that begin with the same job run it once, and each continues with its result."""
    heads = [shared.play.si("head", ["hold>return:from the head"]) for _ in range(2)]
    tails = [head | shared.note.s(f"tail-{n}") | shared.plain.s(f"end-{n}") for n, head in enumerate(heads)]
    results = [tail.delay() for tail in tails]
    shared.await_mark("head")
    shared.open("head")
    for number, result in enumerate(results):
        assert result.get(timeout=PATIENCE) == [[f"tail-{number}", "from the head"], f"end-{number}"]
        assert shared.runs(f"tail-{number}") == 1
    assert shared.runs("head") == 1
    shared.assert_free("head")


def test_a_chain_behind_a_running_job(shared: House) -> None:
    """A chain whose head equals a running job continues with that job's result when it ends."""
    first = shared.play.delay("before", ["hold>return:value"])
    shared.await_mark("before")
    result = (shared.play.si("before", ["return"]) | shared.note.s("behind")).delay()
    assert not result.ready()
    shared.open("before")
    assert result.get(timeout=PATIENCE) == ["behind", "value"]
    shared.assert_ran(first, State.COMPLETED, "before", 1)


def test_a_chain_with_an_equal_tail(shared: House) -> None:
    """A chain whose last task equals a job that runs ends when that job ends, with its result."""
    first = shared.play.delay("tail", ["hold>return:value"])
    shared.await_mark("tail")
    result = chain(shared.anywhere.si("to the tail"), shared.play.si("tail", ["return"]), shared.note.s("end")).delay()
    await_(lambda: shared.job(first).duplicate_count == 1)
    shared.open("tail")
    assert result.get(timeout=PATIENCE) == ["end", "value"]
    shared.assert_ran(first, State.COMPLETED, "tail", 1)


def test_a_chain_of_equal_jobs(shared: House) -> None:
    """Equal tasks in a chain are consecutive jobs: each runs."""
    result = chain(*[shared.play.si("again", ["return"]) for _ in range(3)]).delay()
    assert result.get(timeout=PATIENCE) == "again"
    assert shared.runs("again") == 3


@on_every_store("shared")
def test_a_group_with_equal_members(shared: House) -> None:
    """A group with equal members runs each different job once, and every member has the result."""
    members = [shared.play.s(key, ["hold:group>attempt"]) for key in ("repeated", "unique", "repeated")]
    result = group(members).delay()
    shared.await_mark("repeated")
    shared.open("group")
    first, single, second = result.get(timeout=PATIENCE)
    assert first == second != single
    assert (shared.runs("repeated"), shared.runs("unique")) == (1, 1)
    assert result.successful()
    shared.assert_free("repeated")


def test_a_group_without_a_result_backend(house: House) -> None:
    """A group of onejob tasks needs no result backend: its results come from the ledger."""
    house.config["result_backend"] = None
    house.app.conf.update(result_backend=None)
    house.worker()
    result = group(house.play.s(key, ["return"]) for key in ("a", "b", "a")).delay()
    assert result.get(timeout=PATIENCE) == ["a", "b", "a"]
    house.assert_quiet()


@on_every_store("shared")
def test_a_chord_with_equal_members(shared: House) -> None:
    """A chord whose header holds a job twice runs it once, and its body once, with all results."""
    header = [
        shared.play.s(key, ["hold:chord>return:x"]) for key in ("chord-repeated", "chord-unique", "chord-repeated")
    ]
    result = chord(header)(shared.gather.s("chord-body"))
    shared.await_mark("chord-repeated")
    shared.open("chord")
    assert result.get(timeout=PATIENCE) == ["x", "x", "x"]
    assert (shared.runs("chord-repeated"), shared.runs("chord-unique")) == (1, 1)
    assert len(shared.marks("chord-body", "gather")) == 1


@two_waiters
@on_every_store("shared")
def test_a_chord_with_a_member_that_runs_already(shared: House) -> None:
    """A chord whose header holds a job that runs already waits for it, takes its result, and ends."""
    first = shared.play.delay("member", ["hold>return:early"])
    shared.await_mark("member")
    header = [shared.play.s("member", ["return:late"]), shared.play.s("fresh", ["return:fresh"])]
    result: Any = chord(header)(shared.note.s("body"))
    assert shared.play.AsyncResult(result.parent.results[1].id).get(PATIENCE) == "fresh"
    assert not result.ready()
    shared.open("member")
    assert result.get(timeout=PATIENCE) == ["body", ["early", "fresh"]]
    shared.assert_ran(first, State.COMPLETED, "member", 1)
    assert shared.runs("body") == 1


@two_waiters
def test_chords_with_equal_bodies(shared: House) -> None:
    """Two chords with equal onejob bodies both end, and each body that ran had the results of its own header."""
    chords = [
        chord([shared.play.s(f"header-{number}", ["return"]), shared.play.s("common", ["return"])]) for number in (1, 2)
    ]
    results = [one(shared.play.si("same body", ["return:done"])) for one in chords]
    assert [result.get(timeout=PATIENCE) for result in results] == ["done", "done"]
    assert 1 <= shared.runs("same body") <= 2


# A child that dies may take the next job's message with it, which is run again when its lease is over.
ENDS = {
    "raise": "play_brief",
    "kill": "play_brief",
    "ignore": "play_brief",
    "reject": "play_brief",
    "unstorable": "play_brief",
    "hold:never": "play_limited",
}


def test_a_chord_whose_member_does_not_succeed(shared: House) -> None:
    """However a member ends, the chord ends: its body never runs, and its errback is called exactly once."""
    results = {}
    for end, task in ENDS.items():
        body = shared.gather.s(f"body-{end}").on_error(shared.errback.s(key=f"errback-{end}"))
        header = [shared.play_brief.s(f"good-{end}", ["return"]), shared.app.tasks[task].s(end, [end])]
        results[end] = chord(header)(body)
    for end, result in results.items():
        with pytest.raises(ChordError):
            result.get(timeout=PATIENCE, follow_parents=False)
        assert shared.runs(end) == (3 if end == "kill" else 1)
    shared.await_rest()
    assert [shared.marks(f"body-{end}", "gather") for end in ENDS] == [[]] * len(ENDS)
    assert {end: len(shared.marks(f"errback-{end}", "errback")) for end in ENDS} == dict.fromkeys(ENDS, 1)


def test_an_errback_is_called_once(shared: House) -> None:
    """However a job fails, its errback is called exactly once."""
    ends = [end for end in ENDS if end != "ignore"]
    for end in ends:
        shared.app.tasks[ENDS[end]].apply_async((end, [end]), link_error=shared.errback.s(key=f"errback-{end}"))
    for end in ends:
        shared.await_mark(f"errback-{end}", "errback")
    shared.await_rest()
    assert {end: len(shared.marks(f"errback-{end}", "errback")) for end in ends} == dict.fromkeys(ends, 1)


def test_a_chord_whose_member_is_terminated(shared: House) -> None:
    """A member that is terminated while it runs ends the chord; its body never runs, its errback is called once."""
    body = shared.gather.s("terminated-body").on_error(shared.errback.s(key="terminated-errback"))
    result: Any = chord([shared.play.s("calm", ["return"]), shared.play.s("terminated", ["hold:never"])])(body)
    shared.await_mark("terminated")
    shared.app.control.terminate(result.parent.results[1].id)
    with pytest.raises(ChordError):
        result.get(timeout=PATIENCE, follow_parents=False)
    shared.await_rest()
    assert shared.marks("terminated-body", "gather") == []
    assert len(shared.marks("terminated-errback", "errback")) == 1


def test_a_chord_whose_member_is_revoked(shared: House) -> None:
    """A member that is canceled while it waits ends the chord: its body never runs."""
    header = [shared.play.s("stays", ["return"]), shared.play.s("goes", ["return"]).set(countdown=3600)]
    result: Any = chord(header)(shared.gather.s("revoked-body"))
    shared.play.AsyncResult(result.parent.results[1].id).revoke()
    with pytest.raises(ChordError):
        result.get(timeout=PATIENCE, follow_parents=False)
    assert shared.runs("goes") == 0
    assert shared.marks("revoked-body", "gather") == []


def test_links_of_every_submission_are_called(shared: House) -> None:
    """`link` and `link_error` of a duplicate are called as those of the first submission are, each once."""
    submissions: list[tuple[str, str, Any]] = [("linked", "return:value", "plain"), ("link-error", "raise", "errback")]
    for key, act, callback in submissions:
        option = "link" if act.startswith("return") else "link_error"
        for who in ("first", "second"):
            link = shared.app.tasks[callback].s(f"{key}-{who}") if callback == "plain" else None
            link = link or shared.errback.s(key=f"{key}-{who}")
            shared.play.apply_async((key, [f"hold:{key}>{act}"]), **{option: link})
        shared.await_mark(key)
        shared.open(key)
        for who in ("first", "second"):
            shared.await_mark(f"{key}-{who}", callback)
        shared.await_rest()
        assert [len(shared.marks(f"{key}-{who}", callback)) for who in ("first", "second")] == [1, 1]
        assert shared.runs(key) == 1


def test_a_chain_stops_at_a_failure(shared: House) -> None:
    """A chain does not continue after a job that failed, nor after a duplicate of it."""
    heads = [shared.play.si("stop", ["hold>raise"]) for _ in range(2)]
    results = [(head | shared.note.s(f"never-{number}")).delay() for number, head in enumerate(heads)]
    shared.await_mark("stop")
    shared.open("stop")
    for result in results:
        with pytest.raises(ValueError, match="stop"):
            result.parent.get(timeout=PATIENCE)
    shared.await_rest()
    assert shared.runs("never-0") == shared.runs("never-1") == 0


def test_a_retry_keeps_the_chain(shared: House) -> None:
    """A member of a chain that retries, or whose worker dies, continues the chain when it has completed."""
    result = (shared.play.s("retries", ["retry:0.1", "kill", "return"]) | shared.note.s("after")).delay()
    assert result.get(timeout=PATIENCE) == ["after", "retries"]
    assert (shared.runs("retries"), shared.runs("after")) == (3, 1)


@pytest.mark.parametrize("replacement", ["play", "plain"])
def test_a_replaced_member_continues_the_chain(shared: House, replacement: str) -> None:
    """A member of a chain that replaces itself continues the chain when the replacement has completed."""
    data = ["stand-in", ["return"]] if replacement == "play" else ["stand-in"]
    head = shared.play.s(f"stands-{replacement}", [f"replace:{replacement}"], data)
    result = (head | shared.note.s(f"then-{replacement}")).delay()
    value = "stand-in" if replacement == "play" else ["stand-in"]
    assert result.get(timeout=PATIENCE) == [f"then-{replacement}", value]
    assert shared.runs(f"then-{replacement}") == 1


@pytest.mark.parametrize("act", ["replace:plain", "replace:anywhere,note", "replace:strange"])
def test_a_duplicate_of_a_job_that_replaces_itself(shared: House, act: str) -> None:
    """A chain after a duplicate of a job that replaces itself continues, or stops, as the replacement ends."""
    first = shared.play.delay("self", [f"hold>{act}"], ["new self"])
    shared.await_mark("self")
    result = (shared.play.s("self", ["return"]) | shared.note.s("behind")).delay()
    shared.open("self")
    if act == "replace:strange":
        with pytest.raises(JobFailedError):
            result.parent.get(timeout=PATIENCE)
        assert shared.job(result.parent).state is State.FAILED
    else:
        assert result.get(timeout=PATIENCE) == ["behind", first.get(PATIENCE)]
    assert shared.runs("self") == 1


def test_a_chord_behind_a_group_behind_a_chain(shared: House) -> None:
    """A nested canvas of onejob tasks with duplicates on each level ends with the right results."""
    first = shared.play.s("deep", ["return:1"])
    middle = group(shared.note.s("left"), shared.note.s("right"), shared.note.s("left"))
    canvas = first | middle | shared.gather.s("all")
    result = canvas.delay()
    assert result.get(timeout=PATIENCE) == [["left", "1"], ["right", "1"], ["left", "1"]]
    assert len(shared.marks("all", "gather")) == 1


@two_waiters
def test_a_member_in_threads(house: House) -> None:
    """Under the threads pool a chord with duplicates ends as under prefork."""
    house.worker("--pool", "threads", "-c", "4")
    header = [house.play.s(key, ["hold:chord>return:x"]) for key in ("repeated", "unique", "repeated")]
    result = chord(header)(house.note.s("body"))
    house.await_mark("repeated")
    house.open("chord")
    assert result.get(timeout=PATIENCE) == ["body", ["x", "x", "x"]]
    assert (house.runs("repeated"), house.runs("body")) == (1, 1)
    house.assert_quiet()


@pytest.mark.deep
def test_an_errback_outlives_an_outage_of_the_result_backend(house: House, tmp_path: Path) -> None:
    """If the result backend is away when a job exceeds its hard time limit, its errback is called later, once."""
    backend = start_redis(tmp_path)
    house.config |= {
        "result_backend": backend.url,
        "result_backend_transport_options": {"retry_policy": {"timeout": 1.0, "max_retries": 1}},
    }
    house.use_lease(LEASE)
    house.worker("-c", "2")
    errback = house.errback.s(key="errback")
    result = house.play_limited.apply_async(("limited", ["hold:never"]), link_error=errback)
    house.await_mark("limited")
    backend.stop()
    job = house.await_state(result, State.FAILED)
    assert job.canvas_pending
    pause_until(time.monotonic() + 1)
    assert house.job(result).canvas_pending
    backend.start()
    house.await_mark("errback", "errback")
    house.await_rest()
    assert len(house.marks("errback", "errback")) == 1
    backend.stop()
