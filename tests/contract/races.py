"""Races as functions that take a count: the tests run a few hundred rounds of each, a campaign any number.

Each runs its rounds on open stores of one ledger, on the stores' own clocks. It asserts after every round what must
hold whichever operation was first, and returns how often each result occurred.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from onejob.errors import IdentityHeldError
from onejob.jobs.lifecycle import FINAL, RULES, State, Transition
from onejob.jobs.model import Outcome, Retention
from onejob.jobs.transitions import new_nonce
from onejob.ledger.ledger import Ledger
from onejob.stores.protocol import DUPLICATE_LIMIT
from tests.contract.support import (
    LEASE,
    RUN_AGAIN,
    admission,
    apply,
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from onejob.jobs.model import Admission, Job
    from onejob.stores.protocol import Store

    Stores: TypeAlias = Sequence[Store]
    Counts: TypeAlias = Counter[str]

T = TypeVar("T")

CROWD = 4
"""The number of concurrent calls, each on a store of its own."""
PATIENCE = 40.0
WINDOW = 0.002
OLD: dict[str, Any] = {"payload": "old", "fingerprint": "old"}
NEW: dict[str, Any] = {"payload": "new", "fingerprint": "new"}
RUN_ENDS = (Transition.COMPLETE, Transition.FAIL, Transition.ABANDON, Transition.DEAD_LETTER)


@contextmanager
def concurrent_calls(size: int) -> Iterator[Callable[..., list[Any]]]:
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


def purge(store: Store, *job_ids: str) -> None:
    """Delete the jobs of a round, so that all rounds begin alike."""
    for job_id in job_ids:
        Ledger(store).cancel(job_id)
    store.delete(job_ids, sources=FINAL)


def assert_free(store: Store, identity: str) -> None:
    """Assert that no job holds or waits for an identity, by admitting jobs of it and deleting them."""
    check = f"check-of-{identity}"
    assert admission(store, check, identity=identity, nonce=new_nonce()).outcome is Outcome.ADMITTED
    end(store, start(store, check))
    assert admission(store, f"{check}-2", identity=identity, nonce=new_nonce()).outcome is Outcome.ADMITTED
    purge(store, check, f"{check}-2")


# --- conflict policies ----------------------------------------------------------------------------------------------


def replace_against_claim(stores: Stores, rounds: int) -> Counts:
    """New arguments are submitted during a claim: the run gets all old ones or all new ones, as the outcome says."""
    counts: Counts = Counter()
    with concurrent_calls(2) as at_once:
        for number in range(rounds):
            name = f"replace-{number}"
            submit(stores[0], name, identity=name, **OLD)
            replacing = partial(admission, stores[1], "late", identity=name, nonce=new_nonce(), replaces=True, **NEW)
            claimed, answer = at_once(partial(claim, stores[0], name), replacing)
            assert claimed.applied
            assert answer.outcome in {Outcome.REPLACED, Outcome.ATTACHED}
            expected = "new" if answer.outcome is Outcome.REPLACED else "old"
            for job in (claimed.job, read(stores[1], name)):
                assert (job.payload, job.fingerprint) == (expected, expected)
            counts[answer.outcome] += 1
            end(stores[0], claimed.job)
            purge(stores[0], name)
    return counts


def postponement_against_claim(stores: Stores, rounds: int) -> Counts:
    """A job is postponed during a claim: the old arguments run now or the new ones later, as the outcome says."""
    counts: Counts = Counter()
    later = {"replaces": True, "delay": 20.0, "max_wait": 60.0, **NEW}
    with concurrent_calls(2) as at_once:
        for number in range(rounds):
            name = f"postpone-{number}"
            submit(stores[0], name, identity=name, **OLD)
            postponing = partial(admission, stores[1], "late", identity=name, nonce=new_nonce(), **later)
            claimed, answer = at_once(partial(claim, stores[0], name), postponing)
            job = read(stores[1], name)
            assert claimed.applied is (answer.outcome is Outcome.ATTACHED) is not answer.rescheduled
            assert (job.payload, job.state) == (("old", State.RUNNING) if claimed.applied else ("new", State.QUEUED))
            assert (job.run_at > job.created_at) is answer.rescheduled
            counts[answer.outcome] += 1
            if claimed.applied:
                end(stores[0], claimed.job)
            purge(stores[0], name)
    return counts


def run_again_against_end(stores: Stores, rounds: int) -> Counts:
    """Two more runs are submitted during an end: exactly one is written, with the arguments of the later one."""
    counts: Counts = Counter()
    with concurrent_calls(3) as at_once:
        for number in range(rounds):
            name = f"again-{number}"
            ids = [f"{name}-a", f"{name}-b"]
            ending = partial(end, stores[0], run(stores[0], name, identity=name), RUN_ENDS[number % len(RUN_ENDS)])
            calls = [
                partial(admission, store, job_id, identity=name, payload=job_id, fingerprint=job_id, **RUN_AGAIN)
                for store, job_id in zip(stores[1:], ids, strict=False)
            ]
            _, *answers = at_once(ending, *calls)
            counts[_assert_one_more_run(stores[0], name, ids, answers)] += 1
    return counts


def _assert_one_more_run(store: Store, name: str, ids: Sequence[str], answers: Sequence[Admission]) -> str:
    """Assert that two submissions of one more run wrote one job, and run it."""
    first, second = sorted(answers, key=lambda answer: answer.outcome is Outcome.REPLACED)
    assert first.outcome in {Outcome.QUEUED_NEXT, Outcome.ADMITTED}
    assert (second.outcome, second.job.id) == (Outcome.REPLACED, first.job.id)
    assert [job_id for job_id in ids if get(store, job_id) is not None] == [first.job.id]
    job = start(store, first.job.id)
    assert (job.holds_identity, job.queued_next, job.follows_id) == (True, False, None)
    assert {job.payload} == set(ids) - {first.job.id}
    ended = end(store, job)
    assert_legal(store.history(job.id), ended, [job])
    assert_free(store, name)
    purge(store, name, job.id)
    return str(first.outcome)


def run_again_against_cancel(stores: Stores, rounds: int) -> Counts:
    """One more run is submitted while the queued one is canceled: it is replaced and canceled, or queued itself."""
    counts: Counts = Counter()
    with concurrent_calls(2) as at_once:
        for number in range(rounds):
            name, queued, late = (f"{kind}-{number}" for kind in ("runs", "queued", "late"))
            job = run(stores[0], name, identity=name)
            queue_next(stores[0], queued, identity=name)
            submitting = partial(admission, stores[1], late, identity=name, **NEW, **RUN_AGAIN)
            canceled, answer = at_once(partial(Ledger(stores[0]).cancel, queued), submitting)
            assert (canceled.state, canceled.holds_identity, canceled.queued_next) == (State.CANCELED, False, False)
            assert (answer.outcome, answer.job.id) in {(Outcome.REPLACED, queued), (Outcome.QUEUED_NEXT, late)}
            end(stores[0], job)
            if answer.job.id == late:
                assert start(stores[0], late).payload == "new"
                end(stores[0], read(stores[0], late))
                purge(stores[0], late)
            assert_free(stores[0], name)
            counts[answer.outcome] += 1
            purge(stores[0], name, queued)
    return counts


# --- cancellations --------------------------------------------------------------------------------------------------


def _transition_to(event: Transition) -> Callable[[Store, Job], object]:
    def transition(store: Store, job: Job) -> object:
        token = job.token if RULES[event].fenced else None
        return Ledger(store).change(job, event, None, token=token)

    return transition


def _queued_after(store: Store, name: str) -> Job:
    run(store, f"{name}-first", identity=name)
    return queue_next(store, name, identity=name)


def _submitted(store: Store, name: str) -> Job:
    return submit(store, name, identity=name)


def _running(store: Store, name: str) -> Job:
    return run(store, name, identity=name)


def _submit_again(store: Store, job: Job) -> Admission:
    return admission(store, f"{job.id}-late", identity=job.id, **NEW, **RUN_AGAIN)


TRANSITIONS: dict[str, tuple[Callable[[Store, str], Job], Callable[[Store, Job], object]]] = {
    "claim": (_submitted, lambda store, job: claim(store, job.id)),
    "publish": (_submitted, _transition_to(Transition.PUBLISH)),
    "replace": (_submitted, _submit_again),
    "run_again": (_running, _submit_again),
    "promote": (_queued_after, lambda store, job: end(store, read(store, f"{job.id}-first"))),
    "release_identity": (
        _running,
        lambda store, job: store.apply(change(job, Transition.RELEASE_IDENTITY, keeps_identity=False)),
    ),
    **{
        str(event): (_running, _transition_to(event))
        for event in (*RUN_ENDS, Transition.RETRY, Transition.RELEASE, Transition.CRASH)
    },
}
"""The operations that race with a cancellation, each with the preparation of its job."""


def cancel_against(name: str) -> Callable[[Stores, int], Counts]:
    """Return the race of a cancellation against another operation: the job ends, or its run has a cancel request."""
    prepare, operation = TRANSITIONS[name]

    def play(stores: Stores, rounds: int) -> Counts:
        counts: Counts = Counter()
        with concurrent_calls(2) as at_once:
            for number in range(rounds):
                job = prepare(stores[0], f"{name}-{number}")
                answer, _ = at_once(partial(Ledger(stores[1]).cancel, job.id), partial(operation, stores[0], job))
                counts[_assert_canceled(stores[0], job.id, answer)] += 1
        return counts

    return play


def _assert_canceled(store: Store, name: str, answer: Job) -> str:
    """Assert that a cancellation ended the job, was requested or was too late, as returned; end what is left."""
    job = read(store, name)
    for each in (answer, job):
        assert each.state.final or (each.state is State.RUNNING and each.cancel), each
    assert not answer.state.final or answer.state is job.state
    assert_legal(store.history(name), job)
    if job.state is State.RUNNING:
        apply(store, job, Transition.ABANDON)
    others = [f"{name}-first", f"{name}-late"]
    left = [job_id for job_id in others if get(store, job_id) is not None]
    for job_id in left:
        Ledger(store).cancel(job_id)
    assert_free(store, name)
    store.delete([name, *left], sources=FINAL)
    return str(job.state)


# --- ended jobs -----------------------------------------------------------------------------------------------------


def redrive_against_submission(stores: Stores, rounds: int) -> Counts:
    """A dead letter is redriven while an equal job is submitted: one of the two is live, and both calls return it."""
    counts: Counts = Counter()

    def redrive(name: str) -> str:
        try:
            return Ledger(stores[0]).redrive(name).id
        except IdentityHeldError as error:
            return error.holder_id

    with concurrent_calls(2) as at_once:
        for number in range(rounds):
            name, new = f"dead-{number}", f"new-{number}"
            end(stores[0], run(stores[0], name, identity=name), Transition.FAIL)
            live_id, answer = at_once(partial(redrive, name), partial(admission, stores[1], new, identity=name))
            redriven = live_id == name
            assert live_id in {name, new}
            assert (answer.outcome, answer.job.id) == (
                (Outcome.ATTACHED, name) if redriven else (Outcome.ADMITTED, new)
            )  # fmt: skip
            assert read(stores[0], name).holds_identity is redriven
            assert (get(stores[0], new) is None) is redriven
            end(stores[0], start(stores[0], live_id))
            assert_free(stores[0], name)
            counts["redriven" if redriven else "admitted"] += 1
            purge(stores[0], *({name, live_id}))
    return counts


def submissions_against_the_end_of_a_window(stores: Stores, rounds: int) -> Counts:
    """Equal jobs are submitted until a uniqueness window ends: each is replayed, and after the end one is admitted."""
    counts: Counts = Counter()
    with concurrent_calls(CROWD) as at_once:
        for number in range(rounds):
            name = f"window-{number}"
            Ledger(stores[0]).complete(
                run(stores[0], name, identity=name), '"done"', keep=Retention(identity_for=WINDOW)
            )
            submitted = at_once(*[partial(_submit_until_not_replayed, store, name) for store in stores[:CROWD]])
            answers = [answer for answer, _ in submitted]
            outcomes = Counter(answer.outcome for answer in answers)
            assert outcomes == {Outcome.ADMITTED: 1, Outcome.ATTACHED: CROWD - 1}
            (job_id,) = {answer.job.id for answer in answers}
            assert (read(stores[0], job_id).duplicate_count, read(stores[0], name).holds_identity) == (CROWD - 1, False)
            assert events(stores[0], name)[-2:] == ["complete", "release_identity"]
            counts["replayed"] += sum(replayed for _, replayed in submitted)
            counts["admitted"] += 1
            purge(stores[0], name, job_id)
    return counts


def _submit_until_not_replayed(store: Store, name: str) -> tuple[Admission, int]:
    """Submit an equal job until it is not replayed; return the last admission, and the number of replays."""
    for number in range(int(PATIENCE / WINDOW)):
        answer = admission(store, f"{name}-{new_nonce()}", identity=name, nonce=new_nonce())
        if answer.outcome is not Outcome.REPLAYED:
            return answer, number
        assert (answer.job.id, answer.job.result) == (name, '"done"')
    raise AssertionError("the window does not end")


def follow_against_end(stores: Stores, rounds: int) -> Counts:
    """A follower is written while the followed job ends: its `wake_at` is set, whichever was first."""
    counts: Counts = Counter()
    with concurrent_calls(3) as at_once:
        for number in range(rounds):
            name, ids = f"followed-{number}", [f"after-{number}-{n}" for n in range(2)]
            job = run(stores[0], name, identity=name)
            calls = [
                partial(store.follow, submission(job_id), follows_id=name)
                for store, job_id in zip(stores[1:], ids, strict=False)
            ]
            ended, *answers = at_once(partial(end, stores[0], job, RUN_ENDS[number % len(RUN_ENDS)]), *calls)
            for answer in answers:
                assert answer is not None
                assert answer.wake_at is not None
                woken = read(stores[0], answer.id).wake_at
                assert woken is not None
                assert woken < answer.created_at + LEASE, (ended, answer)
                counts["before" if answer.wake_at > answer.created_at else "after"] += 1
            purge(stores[0], name, *ids)
    return counts


# --- keys and duplicates --------------------------------------------------------------------------------------------


def one_key(stores: Stores, rounds: int) -> Counts:
    """Submissions of one kind or two with one key: one is admitted, and the others of its kind are attached to it."""
    counts: Counts = Counter()
    with concurrent_calls(CROWD) as at_once:
        for number in range(rounds):
            ids = [f"key-{number}-{n}" for n in range(CROWD)]
            identities, kinds = (ids if number % 2 else [ids[0]] * CROWD), 1 + number // 2 % 2
            answers = at_once(*[
                partial(admission, store, ids[n], identity=identities[n], key=ids[0], fingerprint=str(n % kinds))
                for n, store in enumerate(stores[:CROWD])
            ])  # fmt: skip
            (winner,) = [n for n, answer in enumerate(answers) if answer.outcome is Outcome.ADMITTED]
            for n, answer in enumerate(answers):
                same = (n - winner) % kinds == 0
                assert (answer.job.id, answer.key_reused) == (ids[winner], not same)
                assert n == winner or answer.outcome is (Outcome.ATTACHED if same else Outcome.REJECTED)
            assert [each for each in ids if get(stores[0], each) is not None] == [ids[winner]]
            assert read(stores[0], ids[winner]).duplicate_count == CROWD - 1
            counts[f"to the {winner + 1}. of {CROWD}"] += 1
            purge(stores[0], ids[winner])
    return counts


def key_against_end(stores: Stores, rounds: int) -> Counts:
    """A key is submitted while its job ends: that job is returned, live or ended, and no other is admitted."""
    counts: Counts = Counter()
    with concurrent_calls(2) as at_once:
        for number in range(rounds):
            name = f"ending-{number}"
            job = run(stores[0], name, identity=name, key=name)
            event = RUN_ENDS[number % len(RUN_ENDS)]
            submitting = partial(admission, stores[1], f"{name}-late", identity=name, key=name)
            _, answer = at_once(partial(end, stores[0], job, event), submitting)
            assert answer.job.id == name
            assert answer.outcome is (Outcome.REPLAYED if answer.job.state.final else Outcome.ATTACHED)
            assert (read(stores[0], name).duplicate_count, get(stores[0], f"{name}-late")) == (1, None)
            counts[answer.outcome] += 1
            purge(stores[0], name)
    return counts


def key_against_drop(stores: Stores, rounds: int) -> Counts:
    """A key is submitted while its dead letter is dropped: that is returned once more, or a new job has the key."""
    counts: Counts = Counter()
    with concurrent_calls(2) as at_once:
        for number in range(rounds):
            name, late = f"dropped-{number}", f"late-{number}"
            end(stores[0], run(stores[0], name, identity=name, key=name), Transition.FAIL)
            submitting = partial(admission, stores[1], late, identity=name, key=name)
            _, answer = at_once(partial(Ledger(stores[0]).drop, name), submitting)
            assert get(stores[0], name) is None
            assert (answer.outcome, answer.job.id) in {(Outcome.REPLAYED, name), (Outcome.ADMITTED, late)}
            admitted = answer.job.id == late
            assert (get(stores[0], late) is not None) is admitted
            again = admission(stores[0], f"{late}-2", identity=name, key=name)
            assert again.job.id == (late if admitted else f"{late}-2")
            counts[answer.outcome] += 1
            purge(stores[0], again.job.id)
    return counts


def key_against_purge(stores: Stores, rounds: int) -> Counts:
    """A key is submitted while its completed job is purged: the job stays for the key, or a new one has it."""
    counts: Counts = Counter()

    def release_and_purge(job: Job) -> list[str]:
        stores[0].apply(change(job, Transition.RELEASE_IDENTITY, keeps_identity=False))
        return stores[0].delete([job.id], sources=FINAL, skip_referenced=True)

    with concurrent_calls(2) as at_once:
        for number in range(rounds):
            name, late = f"purged-{number}", f"late-{number}"
            kept = Ledger(stores[0]).complete(
                run(stores[0], name, identity=name), "1", keep=Retention(identity_for=PATIENCE)
            )
            submitting = partial(admission, stores[1], late, identity=name, key=name)
            purged, answer = at_once(partial(release_and_purge, kept), submitting)
            assert (answer.outcome, answer.job.id) in {(Outcome.REPLAYED, name), (Outcome.ADMITTED, late)}
            assert answer.job.id == late or purged == []
            assert get(stores[1], answer.job.id) is not None
            assert admission(stores[1], f"{late}-2", identity=name, key=name).job.id == answer.job.id
            counts[answer.outcome] += 1
            purge(stores[0], *({name, late} - set(purged) - ({late} if answer.job.id == name else set())))
    return counts


def duplicates_at_once(stores: Stores, rounds: int) -> Counts:
    """Duplicates are submitted at once: each is counted and recorded."""
    counts: Counts = Counter()
    name = "counted"
    submit(stores[0], name, identity=name)
    with concurrent_calls(CROWD) as at_once:
        for number in range(1, rounds + 1):
            nonces = [f"{number}-{n}" for n in range(CROWD)]
            at_once(*[
                partial(admission, store, nonce, identity=name, nonce=nonce)
                for store, nonce in zip(stores, nonces, strict=False)
            ])  # fmt: skip
            duplicates = [duplicate.submission_nonce for duplicate in stores[0].duplicates(name)]
            assert len(duplicates) == len(set(duplicates)) == min(DUPLICATE_LIMIT, number * CROWD)
            assert sorted(duplicates[-CROWD:]) == nonces
            assert read(stores[0], name).duplicate_count == number * CROWD
            counts["attached"] += CROWD
    purge(stores[0], name)
    return counts


RACES: dict[str, Callable[[Stores, int], Counts]] = {
    race.__name__: race
    for race in (
        replace_against_claim,
        postponement_against_claim,
        run_again_against_end,
        run_again_against_cancel,
        redrive_against_submission,
        submissions_against_the_end_of_a_window,
        follow_against_end,
        one_key,
        key_against_end,
        key_against_drop,
        key_against_purge,
        duplicates_at_once,
    )
} | {f"cancel_against_{name}": cancel_against(name) for name in TRANSITIONS}
"""Every race by its name. Each needs `CROWD` stores."""
