"""The limits of keys, a law each: slots, tokens, parked jobs, values; and that concurrent claims keep to them."""

from collections import Counter
from typing import Any

from onejob.jobs.blocks import PARKED_SECONDS
from onejob.jobs.handover import Way
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.limits import KeyUse, LimitUse, LimitValue, first_park, rate_value, write_uses
from onejob.jobs.model import JobRow, Outcome
from onejob.jobs.transitions import new_nonce
from onejob.stores.protocol import LISTED_HOLDERS, DeliveringStore, Store
from tests.cases import for_each
from tests.stores.processes import RaceProcess, race
from tests.stores.support import (
    LEASE,
    RUNNING,
    WAITING,
    ManualClock,
    StoreAddress,
    admission,
    apply,
    claim,
    end,
    events,
    not_none,
    read,
    start,
    submit,
)

GPU = LimitValue(key="gpu", running=2, is_default=True)
CUSTOMER = LimitValue(key="customer", running=1, is_default=True)
API = rate_value("api", "60/minute", 2, is_default=True)
PROCESSES, JOBS, ROOM = 4, 24, 2


def limited(store: Store, job_id: str, *uses: KeyUse | str, **values: Any) -> JobRow:
    """Submit a job with limits as an app does: parked on its first key until somebody frees a slot."""
    keys = write_uses([use if isinstance(use, KeyUse) else KeyUse(use) for use in uses])
    return submit(store, job_id, **{"limit_keys": keys, "parked_on": first_park(keys)} | values)


def waiting(store: Store, job_id: str, *uses: KeyUse | str, **values: Any) -> JobRow:
    """Submit a job with limits that is not parked."""
    return limited(store, job_id, *uses, **{"parked_on": None} | values)


def free(store: Store, key: str, *, way: Way = Way.CALLER, limit: int = 100) -> list[str]:
    """Return the ids of the jobs that have room on a key now."""
    return [job.id for job in store.free_slots(key, way=way, limit=limit).jobs]


def runs(store: Store, *job_ids: str) -> list[str]:
    """Claim jobs, and return the ids of those that run."""
    return [job_id for job_id in job_ids if claim(store, job_id).applied]


# --- slots ------------------------------------------------------------------------------------------------------------


def test_no_more_jobs_run_at_once_than_a_key_has_slots(store: Store) -> None:
    """A claim without room is refused and parks its job, and the end of a run frees its slot for the first."""
    store.put_limits([GPU])
    for number in range(4):
        waiting(store, f"job-{number}", "gpu")
    assert runs(store, *(f"job-{number}" for number in range(4))) == ["job-0", "job-1"]
    assert store.limit_use("gpu") == LimitUse(key="gpu", holders=("job-0", "job-1"), waiting=2)
    assert free(store, "gpu") == []
    end(store, read(store, "job-0"))
    assert free(store, "gpu") == ["job-2"]
    assert runs(store, "job-3", "job-2") == ["job-2"]


def test_a_refused_claim_parks_its_job_once(store: Store, clock: ManualClock) -> None:
    """A job without room waits unpublished by sweeps, its history says so, and a further refusal changes nothing."""
    store.put_limits([CUSTOMER])
    for job_id in ("job-1", "job-2"):
        waiting(store, job_id, "customer=42")
    start(store, "job-1")
    now = clock.advance(1.0)
    refused = claim(store, "job-2").job
    assert refused == read(store, "job-2")
    assert (refused.state, refused.parked_on) == (State.QUEUED, "limit:customer=42")
    assert (refused.published_at, refused.wake_at) == (now, now + PARKED_SECONDS)
    assert refused.reason == "waits for customer=42"
    assert events(store, "job-2") == ["submit", "park"]
    assert store.history("job-2")[-1].detail == "waits for customer=42"
    clock.advance(1.0)
    assert claim(store, "job-2").job == refused
    assert events(store, "job-2") == ["submit", "park"]


def test_a_parked_job_expires_when_it_would_have(store: Store, clock: ManualClock) -> None:
    """A sweep looks at a job that waits for room when it expires, also after it has got room."""
    store.put_limits([CUSTOMER])
    for job_id in ("job-1", "job-2"):
        waiting(store, job_id, "customer=42", expires_in=10.0)
    start(store, "job-1")
    claim(store, "job-2")
    assert read(store, "job-2").wake_at == clock.now + 10.0
    end(store, read(store, "job-1"))
    assert free(store, "customer=42") == ["job-2"]
    assert read(store, "job-2").wake_at == clock.now + 10.0


def test_a_lost_run_frees_its_slot_when_its_lease_ends(store: Store, clock: ManualClock) -> None:
    """Nothing but time frees the slot of a lost run; its late end frees none of those that others have."""
    store.put_limits([CUSTOMER])
    for number in range(3):
        limited(store, f"job-{number}", "customer=42")
    assert free(store, "customer=42") == ["job-0"]
    lost = start(store, "job-0")
    clock.advance(LEASE - 1.0)
    assert free(store, "customer=42") == []
    clock.advance(1.0)
    assert free(store, "customer=42") == ["job-1"]
    start(store, "job-1")
    end(store, lost)
    assert free(store, "customer=42") == []
    assert store.limit_use("customer=42").holders == ("job-1",)


def test_a_renewed_run_keeps_its_slot(store: Store, clock: ManualClock) -> None:
    """A slot lasts as long as the lease of its run is renewed in time; a renewal that is late is refused."""
    store.put_limits([CUSTOMER])
    for number in range(2):
        limited(store, f"job-{number}", "customer=42")
    free(store, "customer=42")
    run = start(store, "job-0")
    for _ in range(3):
        clock.advance(LEASE - 1.0)
        assert store.renew([(run.id, run.claim)], sources=RUNNING)[0].held
        assert free(store, "customer=42") == []
    clock.advance(LEASE)
    assert store.limit_use("customer=42").holders == ()
    assert not store.renew([(run.id, run.claim)], sources=RUNNING)[0].held
    assert free(store, "customer=42") == ["job-1"]


def test_room_that_no_claim_takes_is_free_after_a_lease(store: Store, clock: ManualClock) -> None:
    """A job that was made due has its room for one lease; after it another job gets the room, and the late one none."""
    store.put_limits([CUSTOMER])
    for number in range(2):
        limited(store, f"job-{number}", "customer=42")
    assert free(store, "customer=42") == ["job-0"]
    clock.advance(LEASE - 1.0)
    assert free(store, "customer=42") == []
    clock.advance(1.0)
    assert free(store, "customer=42") == ["job-1"]
    assert runs(store, "job-0", "job-1") == ["job-1"]


def test_a_job_that_stops_waiting_has_no_room(store: Store) -> None:
    """The room of a job that is canceled or paused before its run is free at once."""
    store.put_limits([CUSTOMER])
    for number in range(3):
        limited(store, f"job-{number}", "customer=42")
    assert free(store, "customer=42") == ["job-0"]
    apply(store, read(store, "job-0"), Transition.CANCEL, parked_on="")
    assert free(store, "customer=42") == ["job-1"]
    apply(store, read(store, "job-1"), Transition.PARK, parked_on="p-1")
    assert free(store, "customer=42") == ["job-2"]


def test_the_run_after_a_retry_needs_room_again(store: Store) -> None:
    """A job that is retried gives its slot back until its next run, and its earlier claim stays in its history."""
    store.put_limits([CUSTOMER])
    for number in range(2):
        limited(store, f"job-{number}", "customer=42")
    free(store, "customer=42")
    apply(store, start(store, "job-0"), Transition.RETRY, wake_after=LEASE)
    assert free(store, "customer=42") == ["job-1"]
    start(store, "job-1")
    assert runs(store, "job-0") == []
    assert read(store, "job-0").state is State.RETRYING
    end(store, read(store, "job-1"))
    assert free(store, "customer=42") == ["job-0"]
    assert start(store, "job-0").attempt == 2
    assert events(store, "job-0") == ["submit", "claim", "retry", "park", "claim"]


def test_a_repeated_claim_of_a_job_with_limits_gets_its_answer_again(store: Store) -> None:
    """A claim whose reply was lost is granted once, and takes one slot."""
    store.put_limits([GPU])
    waiting(store, "job-1", "gpu")
    nonce = new_nonce()
    first = claim(store, "job-1", nonce=nonce)
    assert first.applied
    assert claim(store, "job-1", nonce=nonce) == first
    assert store.limit_use("gpu").holders == ("job-1",)


# --- the order --------------------------------------------------------------------------------------------------------


def test_the_first_job_gets_the_next_slot(store: Store, clock: ManualClock) -> None:
    """Room goes to the most urgent job, and then to the oldest; a claim overtakes none that comes first."""
    store.put_limits([CUSTOMER])
    for job_id, rank in (("old", 0), ("new", 0), ("urgent", 5)):
        limited(store, job_id, "customer=42", priority_rank=rank)
        clock.advance(1.0)
    waiting(store, "late", "customer=42")
    assert runs(store, "late") == []
    assert [store.parked_before(read(store, each)) for each in ("urgent", "old", "new", "late")] == [0, 1, 2, 3]
    order = []
    for _ in range(4):
        (job_id,) = free(store, "customer=42")
        order.append(job_id)
        end(store, start(store, job_id))
    assert order == ["urgent", "old", "new", "late"]
    assert free(store, "customer=42") == []


def test_keys_take_turns_whatever_has_waited(store: Store, clock: ManualClock) -> None:
    """Among jobs with room the one is run first that got its room first, though one of another key is older."""
    store.put_limits([CUSTOMER])
    for number in range(2):
        limited(store, f"large-{number}", "customer=1", route="q")
    free(store, "customer=1", way=Way.OFFERED)
    first = start(store, "large-0")
    clock.advance(5.0)
    limited(store, "small", "customer=2", route="q")
    assert free(store, "customer=2", way=Way.OFFERED) == ["small"]
    clock.advance(1.0)
    end(store, first)
    assert free(store, "customer=1", way=Way.OFFERED) == ["large-1"]
    assert read(store, "small").run_at < read(store, "large-1").run_at == clock.now
    if isinstance(store, DeliveringStore):
        assert [job.id for job in store.deliver(["q"], limit=2)] == ["small", "large-1"]


def test_a_more_urgent_job_may_overtake(store: Store) -> None:
    """A claim of a job that comes before all that are parked takes a free slot."""
    store.put_limits([CUSTOMER])
    limited(store, "parked", "customer=42")
    waiting(store, "urgent", "customer=42", priority_rank=1)
    assert runs(store, "urgent") == ["urgent"]


def test_parked_jobs_are_made_due_in_portions(store: Store) -> None:
    """A call makes at most as many jobs due as it is told, and a later one goes on."""
    store.put_limits([LimitValue(key="gpu", running=50, is_default=True)])
    ids = [f"job-{number:02}" for number in range(60)]
    for job_id in ids:
        limited(store, job_id, "gpu")
    assert free(store, "gpu", limit=1) == ids[:1]
    assert free(store, "gpu", limit=9) == ids[1:10]
    assert free(store, "gpu", limit=100) == ids[10:50]
    assert free(store, "gpu", limit=100) == []


def test_a_job_that_is_due_later_is_parked_no_longer(store: Store, clock: ManualClock) -> None:
    """A delayed job needs no room before it is due, and keeps no other from it."""
    store.put_limits([CUSTOMER])
    limited(store, "later", "customer=42", delay=100.0)
    limited(store, "now", "customer=42")
    assert free(store, "customer=42") == ["now"]
    later = read(store, "later")
    assert (later.parked_on, later.published_at, later.wake_at) == (None, None, clock.now + 100.0)


# --- the hand-over ----------------------------------------------------------------------------------------------------

ENCODED = '["", "", "slow"]'
HANDOVERS = {
    "a sweep": (Way.SWEPT, "slow", 0.0, False),
    "a worker": (Way.OFFERED, "slow", LEASE, False),
    "a worker of another broker": (Way.OFFERED, ENCODED, LEASE, True),
    "a message": (Way.CALLER, "slow", LEASE, True),
}


@for_each("name", HANDOVERS)
def test_a_job_with_room_is_handed_over(store: Store, clock: ManualClock, name: str) -> None:
    """A job that gets room is due by the hand-over that the caller names, and its reason says why."""
    way, route, wake_after, is_sent = HANDOVERS[name]
    store.put_limits([LimitValue(key="gpu", running=9, is_default=True)])
    limited(store, name, "gpu", route=route)
    (job,) = store.free_slots("gpu", way=way, limit=1).jobs
    assert job == read(store, name)
    assert (job.parked_on, job.reason) == (None, "has room on gpu")
    assert (job.wake_at, job.published_at) == (clock.now + wake_after, clock.now if is_sent else None)


# --- several limits ---------------------------------------------------------------------------------------------------


def test_a_job_takes_room_on_all_its_keys_or_on_none(store: Store, clock: ManualClock) -> None:
    """A job without room on one of its keys is parked there, and its room on the others is free."""
    store.put_limits([CUSTOMER, API, GPU])
    waiting(store, "first", "customer=42")
    start(store, "first")
    limited(store, "both", KeyUse("api", 2.0), "customer=42")
    limited(store, "other", KeyUse("api", 2.0))
    freed = store.free_slots("api", way=Way.CALLER, limit=9)
    assert ([job.id for job in freed.jobs], freed.moved_to) == (["other"], frozenset({"customer=42"}))
    assert (read(store, "both").parked_on, read(store, "both").reason) == (
        "limit:customer=42", "waits for customer=42",
    )  # fmt: skip
    end(store, read(store, "first"))
    freed = store.free_slots("customer=42", way=Way.CALLER, limit=9)
    assert ([job.id for job in freed.jobs], freed.moved_to) == ([], frozenset({"api"}))
    clock.advance(2.0)
    assert free(store, "api") == ["both"]
    for key in ("api", "customer=42"):
        assert "both" in store.limit_use(key).holders


def test_a_refused_claim_gives_its_room_on_other_keys_back(store: Store, clock: ManualClock) -> None:
    """A job that has got tokens, takes over arguments, and then finds a new key full, gives the tokens back."""
    store.put_limits([API, LimitValue(key="customer", running=0, is_default=True)])
    limited(store, "job-1", KeyUse("api", 2.0), identity="same")
    limited(store, "job-2", KeyUse("api", 2.0))
    assert free(store, "api") == ["job-1"]
    keys = write_uses([KeyUse("api", 2.0), KeyUse("customer=42")])
    values: dict[str, Any] = {"identity": "same", "fingerprint": "other", "replaces": True, "limit_keys": keys}
    assert admission(store, "job-3", nonce=new_nonce(), **values).outcome is Outcome.REPLACED
    assert free(store, "api") == []
    assert runs(store, "job-1") == []
    assert read(store, "job-1").parked_on == "limit:customer=42"
    assert free(store, "api") == ["job-2"]


def test_a_duplicate_that_replaces_the_arguments_brings_its_keys(store: Store) -> None:
    """A job that takes over other arguments has their limits; parked on an old key, it needs no room there."""
    store.put_limits([CUSTOMER])
    waiting(store, "busy", "customer=1")
    start(store, "busy")
    limited(store, "job-1", "customer=1", identity="same")
    new = admission(
        store, "job-2", identity="same", replaces=True, fingerprint="other", nonce=new_nonce(),
        limit_keys=write_uses([KeyUse("customer=2")]),
    )  # fmt: skip
    assert (new.outcome, new.job.id) == (Outcome.REPLACED, "job-1")
    assert read(store, "job-1").limit_keys == '[["customer=2",1.0]]'
    assert free(store, "customer=1") == ["job-1"]
    start(store, "job-1")
    assert [store.limit_use(f"customer={number}").holders for number in (1, 2)] == [("busy",), ("job-1",)]


def test_only_a_job_that_holds_its_identity_is_parked_at_first(store: Store) -> None:
    """A follower and a job that is queued next wait for another job, and look for room at their claims."""
    keys = write_uses([KeyUse("gpu")])
    values: dict[str, Any] = {"identity": "same", "limit_keys": keys, "parked_on": first_park(keys)}
    limited(store, "first", "gpu", identity="same")
    assert read(store, "first").parked_on == "limit:gpu"
    start(store, "first")
    admission(store, "follower", follows=True, nonce=new_nonce(), **values)
    admission(store, "next", queue_next=True, nonce=new_nonce(), **values)
    for job_id in ("follower", "next"):
        assert (read(store, job_id).limit_keys, read(store, job_id).parked_on) == (keys, None)


# --- values -----------------------------------------------------------------------------------------------------------


def test_a_key_without_a_value_is_not_limited(store: Store) -> None:
    """Nothing limits a key of which nobody has written a value; its runs count as soon as somebody does."""
    for number in range(3):
        waiting(store, f"job-{number}", "customer=42")
    assert len(runs(store, "job-0", "job-1")) == 2
    store.put_limits([LimitValue(key="customer", running=3, is_default=True)])
    assert len(store.limit_use("customer=42").holders) == 2
    assert runs(store, "job-2") == ["job-2"]
    store.put_limits([CUSTOMER])
    waiting(store, "job-4", "customer=42")
    assert runs(store, "job-4") == []


def test_zero_stops(store: Store) -> None:
    """With 0 no job starts, whatever the limit is; those that run, or are about to run, are not stopped."""
    store.put_limits([CUSTOMER, API])
    for job_id, key in (("slot", "customer=1"), ("token", "api")):
        store.put_limits([LimitValue(key=key, running=0)])
        limited(store, job_id, key)
        assert (free(store, key), runs(store, job_id)) == ([], [])
        store.delete_limit(key)
        assert free(store, key) == [job_id]
        store.put_limits([LimitValue(key=key, running=0)])
        assert runs(store, job_id) == [job_id]


def test_an_exception_of_a_key_has_precedence(store: Store, clock: ManualClock) -> None:
    """The exception of a key is before that of its name, which is before the definition; each ends by itself."""
    until = clock.now + 60.0
    name, key = LimitValue(key="customer", running=2), LimitValue(key="customer=1", running=3, until=until)
    store.put_limits([CUSTOMER, key, name])
    assert store.limit_values() == [CUSTOMER, name, key]
    for number in range(1, 3):
        for job in range(4):
            waiting(store, f"{number}-{job}", f"customer={number}")

    def started(number: int) -> int:
        return len(runs(store, *(f"{number}-{job}" for job in range(4))))

    assert (started(1), started(2)) == (3, 2)
    clock.advance(60.0)
    assert store.limit_values() == [CUSTOMER, name, key]
    for number in range(1, 3):
        waiting(store, f"late-{number}", f"customer={number}", priority_rank=1)
        assert len(store.limit_use(f"customer={number}").holders) == 0  # the leases are over
    assert free(store, "customer=1") == ["1-3"]
    store.delete_limit("customer")
    assert store.limit_values() == [CUSTOMER, key]
    assert free(store, "customer=2") == ["2-2"]
    assert free(store, "customer=2") == []


def test_a_value_replaces_the_one_before(store: Store) -> None:
    """A key has one definition and one exception, as they were written last, with every field."""
    rate = rate_value("customer", "100/minute", 7, until=2e9)
    store.put_limits([CUSTOMER, LimitValue(key="customer", running=5)])
    store.put_limits([rate, LimitValue(key="customer", running=4, is_default=True)])
    assert store.limit_values() == [LimitValue(key="customer", running=4, is_default=True), rate]
    store.put_limits([])
    store.delete_limit("customer=1")
    store.delete_limit("customer")
    assert store.limit_values() == [LimitValue(key="customer", running=4, is_default=True)]


def test_lowering_stops_no_run(store: Store) -> None:
    """Jobs that run beyond a lowered limit run on, and the next one starts when enough of them have ended."""
    store.put_limits([GPU])
    ids = [f"job-{number}" for number in range(3)]
    for job_id in ids:
        waiting(store, job_id, "gpu")
    runs(store, *ids)
    store.put_limits([LimitValue(key="gpu", running=1)])
    assert store.limit_use("gpu").holders == ("job-0", "job-1")
    end(store, read(store, "job-0"))
    assert free(store, "gpu") == []
    end(store, read(store, "job-1"))
    assert free(store, "gpu") == ["job-2"]


# --- rates ------------------------------------------------------------------------------------------------------------


def test_a_rate_starts_no_more_than_its_burst_and_what_time_gives(store: Store, clock: ManualClock) -> None:
    """In any time a rate starts at most its burst and the rate times the time; and after enough time as much."""
    store.put_limits([API])  # one a second, and two at once
    ids = [f"job-{number:02}" for number in range(20)]
    for job_id in ids:
        limited(store, job_id, "api")
    began, started = clock.now, 0
    for seconds in (0.0, 0.25, 0.5, 0.25, 3.0, 0.0, 2.0, 0.5):
        clock.advance(seconds)
        freed = free(store, "api")
        assert runs(store, *freed) == freed
        started += len(freed)
        assert started <= 2 + (clock.now - began)
    assert started == 7  # the 3 seconds without a look gave 2


def test_tokens_of_a_job_that_does_not_run_are_given_back(store: Store, clock: ManualClock) -> None:
    """A job that has got tokens and is canceled, or does not run within its lease, gives them back; a run does not."""
    store.put_limits([rate_value("model", "1/hour", 1, is_default=True)])
    for number in range(3):
        limited(store, f"job-{number}", "model=x")
    assert free(store, "model=x") == ["job-0"]
    assert store.limit_use("model=x") == LimitUse(key="model=x", holders=("job-0",), waiting=2)
    apply(store, read(store, "job-0"), Transition.CANCEL, parked_on="")
    assert free(store, "model=x") == ["job-1"]
    clock.advance(LEASE)
    assert free(store, "model=x") == ["job-2"]
    end(store, start(store, "job-2"))
    assert store.limit_use("model=x").holders == ()
    waiting(store, "job-3", "model=x")
    assert runs(store, "job-3", "job-1") == []


def test_more_weight_than_a_burst_starts_from_a_full_bucket(store: Store, clock: ManualClock) -> None:
    """A job whose weight is above the burst waits for a full bucket, and all of its weight is taken."""
    store.put_limits([API])
    waiting(store, "heavy", KeyUse("api", 10.0))
    start(store, "heavy")
    limited(store, "next", "api")
    clock.advance(8.5)
    assert free(store, "api") == []
    clock.advance(0.5)
    assert free(store, "api") == ["next"]


def test_a_claim_takes_the_tokens_that_its_job_has_not_got(store: Store, clock: ManualClock) -> None:
    """Tokens are taken once for each run: before its claim, or by it."""
    store.put_limits([API])
    limited(store, "reserved", "api")
    assert free(store, "api") == ["reserved"]
    for job_id in ("claimed", "next"):
        waiting(store, job_id, "api")
    assert runs(store, "reserved", "claimed", "next") == ["reserved", "claimed"]


def test_a_key_has_an_alarm_while_jobs_wait_for_its_tokens(store: Store, clock: ManualClock) -> None:
    """The alarm is at the time at which the first job has enough tokens; whoever asks moves a due one by a second."""
    store.put_limits([API, CUSTOMER])
    assert store.due_limits() == ([], None)
    for number in range(4):
        limited(store, f"job-{number}", KeyUse("api", 2.0))
    assert free(store, "api") == ["job-0"]
    assert store.due_limits() == ([], 2.0)
    clock.advance(2.0)
    assert store.due_limits() == (["api"], 1.0)
    assert store.due_limits() == ([], 1.0)
    assert free(store, "api") == ["job-1"]
    assert store.due_limits() == ([], 2.0)
    clock.advance(5.0)
    assert free(store, "api", limit=1) == ["job-2"]
    assert store.due_limits() == ([], 2.0)
    clock.advance(2.0)
    assert free(store, "api") == ["job-3"]
    assert store.due_limits() == ([], None)


def test_further_tokens_can_be_taken_and_given_back(store: Store, clock: ManualClock) -> None:
    """What a run has really used is taken, also more than the bucket has, or given back; others have no tokens."""
    store.put_limits([API, GPU])
    limited(store, "job-1", KeyUse("api", 2.0))
    for amount, seconds in ((5.0, 5.0), (-2.0, 3.0)):
        store.spend("api", amount)
        assert free(store, "api") == []
        assert store.due_limits() == ([], seconds)
    store.spend("api", -9.0)
    assert free(store, "api") == ["job-1"]
    for key in ("gpu", "unknown"):
        store.spend(key, 5.0)
        assert store.limit_use(key) == LimitUse(key=key)


# --- what people read -------------------------------------------------------------------------------------------------


def test_the_keys_that_jobs_wait_for_are_listed(store: Store) -> None:
    """The keys with the most waiting jobs come first, and a pause is none of them."""
    store.put_limits([CUSTOMER, LimitValue(key="gpu", running=0, is_default=True)])
    keys = ["customer=1", "customer=1", "customer=2", "gpu", "gpu", "gpu"]
    for number, key in enumerate(keys):
        limited(store, f"job-{number}", key)
    paused = submit(store, "paused")
    apply(store, paused, Transition.PARK, parked_on="p-1")
    free(store, "customer=1")
    assert [(use.key, use.waiting, use.holders) for use in store.limit_uses(limit=10)] == [
        ("gpu", 3, ()), ("customer=1", 1, ("job-0",)), ("customer=2", 1, ()),
    ]  # fmt: skip
    assert [use.key for use in store.limit_uses(limit=1)] == ["gpu"]


def test_some_of_the_holders_of_a_key_are_listed(store: Store) -> None:
    """Of a key with many slots only some of the jobs that have them are named."""
    store.put_limits([LimitValue(key="gpu", running=1000, is_default=True)])
    for number in range(LISTED_HOLDERS + 5):
        limited(store, f"job-{number:03}", "gpu")
    free(store, "gpu", limit=1000)
    assert len(store.limit_use("gpu").holders) == LISTED_HOLDERS


def test_the_place_of_a_parked_job_is_told(store: Store, clock: ManualClock) -> None:
    """How many jobs come before a job that is parked on a key, or on a pause; a job that is not parked is the first."""
    store.put_limits([LimitValue(key="gpu", running=0, is_default=True)])
    for number in range(3):
        limited(store, f"job-{number}", "gpu", priority_rank=number % 2)
        clock.advance(1.0)
    assert [store.parked_before(read(store, f"job-{number}")) for number in range(3)] == [1, 0, 2]
    for number in range(2):
        apply(store, submit(store, f"paused-{number}"), Transition.PARK, parked_on="p-1")
        clock.advance(1.0)
    assert store.parked_before(read(store, "paused-1")) == 1
    assert store.parked_before(submit(store, "free")) == 0


def test_the_limits_outlive_deleted_jobs(store: Store, clock: ManualClock) -> None:
    """A deleted job has no slot, and its tokens are given back."""
    store.put_limits([GPU, rate_value("model", "1/hour", 1, is_default=True)])
    waiting(store, "run", "gpu")
    end(store, start(store, "run"))
    limited(store, "reserved", "model=x")
    free(store, "model=x")
    apply(store, read(store, "reserved"), Transition.CANCEL, parked_on="")
    assert len(store.delete(["run", "reserved"], sources=frozenset(State))) == 2
    limited(store, "next", "model=x")
    clock.advance(1.0)
    assert free(store, "model=x") == ["next"]
    assert store.limit_use("gpu") == LimitUse(key="gpu")


# --- races ------------------------------------------------------------------------------------------------------------


IDS = [f"job-{number:02}" for number in range(JOBS)]


def run_limited(process: RaceProcess) -> tuple[int, list[str]]:
    """Claim jobs that share a key as workers do; return how many ran at once, at most, and which ran here."""
    most, done = 0, []
    with process.address.opened() as store:
        process.ready()
        while left := [job.id for job in store.get_many(IDS).values() if job.state in WAITING]:
            for job_id in left:
                claimed = claim(store, job_id)
                if claimed.applied:
                    most = max(most, len(store.limit_use("gpu").holders))
                    done.append(job_id)
                    end(store, not_none(claimed.job))
                    store.free_slots("gpu", way=Way.CALLER, limit=JOBS)
    return most, done


def test_concurrent_claims_keep_to_the_limit_of_their_key(store_address: StoreAddress, store: Store) -> None:
    """Processes that claim jobs with one key at the same time run each once, and no more at once than it has slots."""
    store.put_limits([LimitValue(key="gpu", running=ROOM, is_default=True)])
    for job_id in IDS:
        waiting(store, job_id, "gpu")
    found = race(store_address, PROCESSES, run_limited)
    assert Counter(job_id for _, done in found for job_id in done) == Counter(IDS)
    assert max(most for most, _ in found) <= ROOM
