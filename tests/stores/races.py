"""Races as functions that take a count: the tests run a few hundred rounds of each, a campaign any number.

Each runs on open stores of one ledger, on the stores' own clocks. It asserts after every round what must hold
whichever operation was first, and returns how often each result occurred.
"""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias, TypeVar

from onejob.errors import IdentityHeldError
from onejob.jobs.lifecycle import FINAL, State, Transition
from onejob.jobs.model import Admission, IdentityHold, JobRow, Outcome
from onejob.jobs.transitions import new_nonce
from onejob.ledger.ledger import Ledger
from onejob.stores.protocol import DUPLICATE_LIMIT, Store
from tests.stores.support import (
    LEASE,
    RUN_AGAIN,
    admission,
    assert_legal,
    change,
    claim,
    end,
    events,
    get,
    queue_next,
    read,
    run,
    start,
    submission,
    submit,
)

Stores: TypeAlias = Sequence[Store]
AtOnce: TypeAlias = Callable[..., list[Any]]
Round: TypeAlias = Callable[[Stores, AtOnce, int], str]

T = TypeVar("T")

CROWD = 4
"""The number of concurrent calls, each on a store of its own."""
PATIENCE = 40.0
WINDOW = 0.002
OLD: dict[str, Any] = {"payload": "old", "fingerprint": "old"}
NEW: dict[str, Any] = {"payload": "new", "fingerprint": "new"}
RUN_ENDS = (Transition.COMPLETE, Transition.FAIL, Transition.ABANDON, Transition.DEAD_LETTER)
RACES: dict[str, Callable[[Stores, int], Counter[str]]] = {}
"""Every race by its name. Each needs `CROWD` stores."""


@contextmanager
def concurrent_calls(size: int) -> Iterator[AtOnce]:
    """Yield a function that makes so many calls at once, each in a thread of its own, and returns their results."""
    barrier = threading.Barrier(size)
    directions = itertools.cycle((1, -1))  # the thread started first often runs last, so each call has both places

    def after_all(call: Callable[[], T]) -> T:
        barrier.wait(PATIENCE / 2)
        return call()

    def at_once(*calls: Callable[[], T]) -> list[T]:
        order = range(size)[:: next(directions)]
        futures = {number: threads.submit(after_all, calls[number]) for number in order}
        return [futures[number].result(PATIENCE) for number in range(size)]

    with ThreadPoolExecutor(size) as threads:
        yield at_once


def together(*calls: Callable[[], T]) -> list[T]:
    """Make all calls at once, each in its own thread, and return their results."""
    with concurrent_calls(len(calls)) as at_once:
        return at_once(*calls)


def race(calls: int, name: str = "") -> Callable[[Round], Round]:
    """Make a race of a function that plays one round with so many concurrent calls, and returns how it ended."""

    def register(play: Round) -> Round:
        def race_in_rounds(stores: Stores, rounds: int) -> Counter[str]:
            with concurrent_calls(calls) as at_once:
                return Counter(play(stores, at_once, number) for number in range(rounds))

        RACES[name or play.__name__] = race_in_rounds
        return play

    return register


def assert_free(store: Store, identity: str) -> None:
    """Assert that no job holds or waits for an identity, by admitting jobs of it."""
    check = f"check-of-{identity}"
    assert admission(store, check, identity=identity, nonce=new_nonce()).outcome is Outcome.ADMITTED
    end(store, start(store, check))
    assert admission(store, f"{check}-2", identity=identity, nonce=new_nonce()).outcome is Outcome.ADMITTED


# --- conflict policies ----------------------------------------------------------------------------------------------


@race(2)
def replace_against_claim(stores: Stores, at_once: AtOnce, number: int) -> str:
    """New arguments are submitted during a claim: the run gets all old ones or all new ones, as the outcome says."""
    name = f"replace-{number}"
    submit(stores[0], name, identity=name, **OLD)
    replacing = partial(admission, stores[1], "late", identity=name, nonce=new_nonce(), replaces=True, **NEW)
    claimed, answer = at_once(partial(claim, stores[0], name), replacing)
    assert claimed.applied
    assert answer.outcome in {Outcome.REPLACED, Outcome.ATTACHED}
    expected = "new" if answer.outcome is Outcome.REPLACED else "old"
    for job in (claimed.job, read(stores[1], name)):
        assert (job.payload, job.fingerprint) == (expected, expected)
    end(stores[0], claimed.job)
    return str(answer.outcome)


@race(2)
def postponement_against_claim(stores: Stores, at_once: AtOnce, number: int) -> str:
    """A job is postponed during a claim: the old arguments run now or the new ones later, as the outcome says."""
    later = {"replaces": True, "delay": 20.0, "max_wait": 60.0, **NEW}
    name = f"postpone-{number}"
    submit(stores[0], name, identity=name, **OLD)
    postponing = partial(admission, stores[1], "late", identity=name, nonce=new_nonce(), **later)
    claimed, answer = at_once(partial(claim, stores[0], name), postponing)
    job = read(stores[1], name)
    assert claimed.applied is (answer.outcome is Outcome.ATTACHED) is not answer.rescheduled
    assert (job.payload, job.state) == (("old", State.RUNNING) if claimed.applied else ("new", State.QUEUED))
    assert (job.run_at > job.created_at) is answer.rescheduled
    if claimed.applied:
        end(stores[0], claimed.job)
    return str(answer.outcome)


@race(3)
def run_again_against_end(stores: Stores, at_once: AtOnce, number: int) -> str:
    """Two more runs are submitted during an end: exactly one is written, with the arguments of the later one."""
    name = f"again-{number}"
    ids = [f"{name}-a", f"{name}-b"]
    ending = partial(end, stores[0], run(stores[0], name, identity=name), RUN_ENDS[number % len(RUN_ENDS)])
    calls = [
        partial(admission, store, job_id, identity=name, payload=job_id, fingerprint=job_id, **RUN_AGAIN)
        for store, job_id in zip(stores[1:], ids, strict=False)
    ]
    _, *answers = at_once(ending, *calls)
    return _assert_one_more_run(stores[0], name, ids, answers)


def _assert_one_more_run(store: Store, name: str, ids: Sequence[str], answers: Sequence[Admission]) -> str:
    """Assert that two submissions of one more run wrote one job, and run it."""
    first, second = sorted(answers, key=lambda answer: answer.outcome is Outcome.REPLACED)
    assert first.outcome in {Outcome.QUEUED_NEXT, Outcome.ADMITTED}
    assert (second.outcome, second.job.id) == (Outcome.REPLACED, first.job.id)
    assert [job_id for job_id in ids if get(store, job_id) is not None] == [first.job.id]
    job = start(store, first.job.id)
    assert job.holds_identity
    assert not job.queued_next
    assert job.follows_id is None
    assert {job.payload} == set(ids) - {first.job.id}
    ended = end(store, job)
    assert_legal(store.history(job.id), ended, [job])
    assert_free(store, name)
    return first.outcome


@race(2)
def run_again_against_cancel(stores: Stores, at_once: AtOnce, number: int) -> str:
    """One more run is submitted while the queued one is canceled: it is replaced and canceled, or queued itself."""
    name, queued, late = (f"{kind}-{number}" for kind in ("runs", "queued", "late"))
    job = run(stores[0], name, identity=name)
    queue_next(stores[0], queued, identity=name)
    submitting = partial(admission, stores[1], late, identity=name, **NEW, **RUN_AGAIN)
    canceled, answer = at_once(partial(Ledger(stores[0]).cancel, queued), submitting)
    assert canceled.state == State.CANCELED
    assert not canceled.holds_identity
    assert not canceled.queued_next
    assert (answer.outcome, answer.job.id) in {(Outcome.REPLACED, queued), (Outcome.QUEUED_NEXT, late)}
    end(stores[0], job)
    if answer.job.id == late:
        assert start(stores[0], late).payload == "new"
        end(stores[0], read(stores[0], late))
    assert_free(stores[0], name)
    return str(answer.outcome)


# --- ended jobs -----------------------------------------------------------------------------------------------------


@race(2)
def redrive_against_submission(stores: Stores, at_once: AtOnce, number: int) -> str:
    """A dead letter is redriven while an equal job is submitted: one of the two is live, and both calls return it."""

    def redrive(name: str) -> str:
        try:
            return Ledger(stores[0]).redrive(name).id
        except IdentityHeldError as error:
            return error.holder_id

    name, new = f"dead-{number}", f"new-{number}"
    end(stores[0], run(stores[0], name, identity=name), Transition.FAIL)
    live_id, answer = at_once(partial(redrive, name), partial(admission, stores[1], new, identity=name))
    redriven = live_id == name
    assert live_id in {name, new}
    assert (answer.outcome, answer.job.id) == ((Outcome.ATTACHED, name) if redriven else (Outcome.ADMITTED, new))
    assert read(stores[0], name).holds_identity is redriven
    assert (get(stores[0], new) is None) is redriven
    end(stores[0], start(stores[0], live_id))
    assert_free(stores[0], name)
    return "redriven" if redriven else "admitted"


@race(CROWD)
def submissions_against_the_end_of_a_window(stores: Stores, at_once: AtOnce, number: int) -> str:
    """Equal jobs are submitted until a uniqueness window ends: each is replayed, and after the end one is admitted."""
    name = f"window-{number}"
    Ledger(stores[0]).complete(run(stores[0], name, identity=name), '"done"', hold=IdentityHold(identity_for=WINDOW))
    submitted = at_once(*[partial(_submit_until_not_replayed, store, name) for store in stores[:CROWD]])
    answers = [answer for answer, _ in submitted]
    assert Counter(answer.outcome for answer in answers) == {Outcome.ADMITTED: 1, Outcome.ATTACHED: CROWD - 1}
    (job_id,) = {answer.job.id for answer in answers}
    assert read(stores[0], job_id).duplicate_count == CROWD - 1
    assert not read(stores[0], name).holds_identity
    assert events(stores[0], name)[-2:] == ["complete", "release_identity"]
    return "replayed first" if any(replays for _, replays in submitted) else "admitted"


def _submit_until_not_replayed(store: Store, name: str) -> tuple[Admission, int]:
    """Submit an equal job until it is not replayed; return the last admission, and the number of replays."""
    for number in range(int(PATIENCE / WINDOW)):
        answer = admission(store, f"{name}-{new_nonce()}", identity=name, nonce=new_nonce())
        if answer.outcome is not Outcome.REPLAYED:
            return answer, number
        assert (answer.job.id, answer.job.result) == (name, '"done"')
    raise AssertionError("the window does not end")


@race(3)
def follow_against_end(stores: Stores, at_once: AtOnce, number: int) -> str:
    """A follower is written while the followed job ends: its `wake_at` is set, whichever was first."""
    name, ids = f"followed-{number}", [f"after-{number}-{n}" for n in range(2)]
    job = run(stores[0], name, identity=name)
    calls = [partial(stores[n].follow, submission(each), follows_id=name) for n, each in enumerate(ids, start=1)]
    ended, *answers = at_once(partial(end, stores[0], job, RUN_ENDS[number % len(RUN_ENDS)]), *calls)
    for answer in answers:
        assert (read(stores[0], answer.id).wake_at or 1e12) < answer.created_at + LEASE, (ended, answer)
    return " and ".join(sorted("before" if each.wake_at > each.created_at else "after" for each in answers))


# --- keys and duplicates --------------------------------------------------------------------------------------------


@race(CROWD)
def one_key(stores: Stores, at_once: AtOnce, number: int) -> str:
    """Submissions of one kind or two with one key: one is admitted, and the others of its kind are attached to it."""
    ids = [f"key-{number}-{n}" for n in range(CROWD)]
    identities, kinds = (ids if number % 2 else [ids[0]] * CROWD), 1 + number // 2 % 2
    answers = at_once(*[
        partial(admission, store, ids[n], identity=identities[n], key=ids[0], fingerprint=str(n % kinds))
        for n, store in enumerate(stores[:CROWD])
    ])  # fmt: skip
    (winner,) = [n for n, answer in enumerate(answers) if answer.outcome is Outcome.ADMITTED]
    for n, answer in enumerate(answers):
        same = (n - winner) % kinds == 0
        assert answer.job.id == ids[winner]
        assert answer.key_reused == (not same)
        assert n == winner or answer.outcome is (Outcome.ATTACHED if same else Outcome.REJECTED)
    assert [each for each in ids if get(stores[0], each) is not None] == [ids[winner]]
    assert read(stores[0], ids[winner]).duplicate_count == CROWD - 1
    return f"to the {winner + 1}. of {CROWD}"


@race(2)
def key_against_end(stores: Stores, at_once: AtOnce, number: int) -> str:
    """A key is submitted while its job ends: that job is returned, live or ended, and no other is admitted."""
    name = f"ending-{number}"
    job = run(stores[0], name, identity=name, key=name)
    event = RUN_ENDS[number % len(RUN_ENDS)]
    submitting = partial(admission, stores[1], f"{name}-late", identity=name, key=name)
    _, answer = at_once(partial(end, stores[0], job, event), submitting)
    assert answer.job.id == name
    assert answer.outcome is (Outcome.REPLAYED if answer.job.state.final else Outcome.ATTACHED)
    assert (read(stores[0], name).duplicate_count, get(stores[0], f"{name}-late")) == (1, None)
    return str(answer.outcome)


@race(2)
def key_against_drop(stores: Stores, at_once: AtOnce, number: int) -> str:
    """A key is submitted while its dead letter is dropped: that is returned once more, or a new job has the key."""
    name, late = f"dropped-{number}", f"late-{number}"
    end(stores[0], run(stores[0], name, identity=name, key=name), Transition.FAIL)
    submitting = partial(admission, stores[1], late, identity=name, key=name)
    _, answer = at_once(partial(Ledger(stores[0]).drop, name, force=True), submitting)
    assert get(stores[0], name) is None
    assert (answer.outcome, answer.job.id) in {(Outcome.REPLAYED, name), (Outcome.ADMITTED, late)}
    admitted = answer.job.id == late
    assert (get(stores[0], late) is not None) is admitted
    again = admission(stores[0], f"{late}-2", identity=name, key=name)
    assert again.job.id == (late if admitted else f"{late}-2")
    return str(answer.outcome)


@race(2)
def key_against_purge(stores: Stores, at_once: AtOnce, number: int) -> str:
    """A key is submitted while its completed job is purged: the job stays for the key, or a new one has it."""

    def release_and_purge(job: JobRow) -> list[str]:
        stores[0].apply(change(job, Transition.RELEASE_IDENTITY, keeps_identity=False))
        return stores[0].delete([job.id], sources=FINAL, skip_referenced=True)

    name, late = f"purged-{number}", f"late-{number}"
    kept = Ledger(stores[0]).complete(
        run(stores[0], name, identity=name), "1", hold=IdentityHold(identity_for=PATIENCE)
    )
    submitting = partial(admission, stores[1], late, identity=name, key=name)
    purged, answer = at_once(partial(release_and_purge, kept), submitting)
    assert (answer.outcome, answer.job.id) in {(Outcome.REPLAYED, name), (Outcome.ADMITTED, late)}
    assert answer.job.id == late or purged == []
    assert get(stores[1], answer.job.id) is not None
    assert admission(stores[1], f"{late}-2", identity=name, key=name).job.id == answer.job.id
    return str(answer.outcome)


@race(CROWD)
def duplicates_at_once(stores: Stores, at_once: AtOnce, number: int) -> str:
    """Duplicates are submitted at once: each is counted and recorded."""
    admission(stores[0], f"counted-{number}", identity="counted", nonce=new_nonce())
    nonces = [f"{number}-{n}" for n in range(CROWD)]
    at_once(*[partial(admission, stores[n], each, identity="counted", nonce=each) for n, each in enumerate(nonces)])
    count = number + (number + 1) * CROWD
    duplicates = [duplicate.submission_nonce for duplicate in stores[0].duplicates("counted-0")]
    assert len(duplicates) == len(set(duplicates)) == min(DUPLICATE_LIMIT, count)
    assert sorted(duplicates[-CROWD:]) == nonces
    assert read(stores[0], "counted-0").duplicate_count == count
    return "attached"
