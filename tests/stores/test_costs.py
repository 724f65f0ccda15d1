"""The costs of runs and their sums, where the model cannot show it: under races, at limits, and with the ledger."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pytest
import redis

from onejob.errors import InvalidArgumentsError, LeaseLost
from onejob.jobs.costs import COST_DAYS, CostKey, JobCosts, Label, day_of, day_text
from onejob.jobs.durations import DAY
from onejob.jobs.lifecycle import Transition
from onejob.jobs.model import JobRow
from onejob.ledger.ledger import Ledger
from onejob.observability.events import JobEvent
from onejob.observability.meter import saved_by
from onejob.stores.protocol import OTHER_SUBMITTERS, Store
from tests.cases import for_each
from tests.stores.processes import RaceProcess, race
from tests.stores.support import (
    RUNNING,
    ManualClock,
    StoreAddress,
    accepted,
    apply,
    claim,
    cost_write,
    not_none,
    read,
    run,
    submission,
    submit,
)

PROCESSES, ADDITIONS = 4, 25
USD, ZERO = Decimal("0.000000001"), Decimal(0)


def sums(store: Store, label: Label = Label.SUBMITTER) -> dict[tuple[str, str], tuple[Decimal, Decimal]]:
    """Return what was spent and saved, by name and unit, in all days that are kept."""
    today = day_of(store.read_clock())
    found = store.cost_sums(first=today - COST_DAYS, last=today, label=label)
    return {(each.key.name, each.key.unit): (each.spent, each.saved) for each in found}


def spend_often(process: RaceProcess) -> str:
    """Add costs of one run, with sums in ascending or descending order that other processes add to, too."""
    names = [f"tag-{number}" for number in range(5)]
    with process.address.opened() as store:
        ledger = Ledger(store)
        job = run(store, f"job-{process.number}", tag_lines="\n".join(names if process.number % 2 else names[::-1]))
        process.ready()
        for _ in range(ADDITIONS):
            job = ledger.add_cost(job, {"usd": USD, "tokens": Decimal(10**13)})
            store.add_saved({CostKey(task=job.task, label=Label.TAG, name=name, unit="usd"): USD for name in names})
    return not_none(job.costs)


def test_concurrent_costs_are_all_kept(store_address: StoreAddress, store: Store) -> None:
    """No amount of many processes is lost, or rounded, or blocks another."""
    costs = race(store_address, PROCESSES, spend_often)
    total = PROCESSES * ADDITIONS
    assert {*costs} == {f'{{"1":{{"tokens":"{ADDITIONS * 10**13}","usd":"0.000000025"}}}}'}
    assert sums(store) == {("", "usd"): (total * USD, ZERO), ("", "tokens"): (Decimal(total * 10**13), ZERO)}
    assert sums(store, Label.TAG)["tag-3", "usd"] == (total * USD, total * USD)


def test_each_duplicate_saves_the_whole_cost_of_its_job(store: Store) -> None:
    """However duplicates and costs are interleaved, what is saved is the cost times the duplicates."""
    saved: Counter[CostKey] = Counter()

    def count(event: JobEvent) -> None:
        for key, amount in saved_by(event).items():
            saved[key] += amount  # type: ignore[assignment] # a Decimal

    ledger = Ledger(store, emit=count)
    job = run(store, identity="same", submitter="anna")

    def click(number: int) -> None:
        ledger.submit(submission(f"again-{number}", identity="same", submitter="ben"))

    with ThreadPoolExecutor(4) as pool:
        clicks = pool.map(click, range(60))
        for _ in range(20):
            job = ledger.add_cost(job, {"usd": Decimal("0.5")})
        assert [*clicks] == [None] * 60
    ((key, in_memory),) = saved.items() or [(None, 0)]
    spent, stored = sums(store)["anna", "usd"]
    assert (spent, stored + in_memory) == (Decimal(10), Decimal(10 * 60))
    assert key is None or key.name == "anna"


def test_a_rejected_or_queued_duplicate_saves_nothing(store: Store) -> None:
    """A duplicate that was refused, or that runs later, has not saved the cost of the job."""
    job = run(store, identity="same")
    submit(store, "next", identity="same", queue_next=True)
    Ledger(store).add_cost(job, {"usd": Decimal(1)})
    assert sums(store) == {("", "usd"): (Decimal(1), ZERO)}


@pytest.fixture
def few_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep sums of three names only."""
    monkeypatch.setattr("onejob.stores.postgres.statements.SUBMITTER_LIMIT", 3)
    monkeypatch.setattr("onejob.stores.sqlite.costs.SUBMITTER_LIMIT", 3)
    monkeypatch.setattr("onejob.stores.redis.costs.LIMITS", ("3", "1000"))


@pytest.mark.usefixtures("few_names")
def test_the_names_of_a_day_are_limited(store: Store) -> None:
    """Beyond the limit, further submitters of a task are added up together, and the known ones as before."""
    for name in "abcdea":
        key = CostKey(task="app.add", label=Label.SUBMITTER, name=name, unit="usd")
        store.add_saved({key: Decimal(1)})
    found = {name: saved for (name, _), (_, saved) in sums(store).items()}
    assert found == {"a": 2, "b": 1, "c": 1, OTHER_SUBMITTERS: 2}


def days_of(store: Store, first: int, last: int) -> set[str]:
    """Return the days that have sums."""
    return {each.day for each in store.cost_sums(first=first, last=last, label=Label.SUBMITTER)}


def test_each_day_has_sums_of_its_own(store: Store, clock: ManualClock) -> None:
    """A cost belongs to the day on the store's clock on which it is reported."""
    job, first = run(store), day_of(clock.now)
    for number in range(3):
        job = spend(store, job, usd=str(number))
        clock.advance(DAY)
    assert days_of(store, first - 3, first) == {day_text(first)}
    assert days_of(store, first + 1, first + 9) == {day_text(first + 1), day_text(first + 2)}


def test_the_sums_of_old_days_are_deleted(store: Store, clock: ManualClock, store_address: StoreAddress) -> None:
    """The sums of a day are kept for `COST_DAYS` days."""
    key, first = CostKey(task="app.add", label=Label.SUBMITTER, name="", unit="usd"), day_of(clock.now)
    store.add_saved({key: Decimal(1)})
    if store_address.kind == "redis":
        with redis.Redis.from_url(store_address.url) as server:
            (name,) = server.scan_iter("*:cost_sums:*")
            assert 0 < server.ttl(name) - COST_DAYS * DAY <= DAY
        return
    for days, kept in ((COST_DAYS, {day_text(first)}), (1, set())):
        clock.advance(DAY * days)
        store.add_saved({key: Decimal(1)})
        assert days_of(store, first, first) == kept


def test_a_repeated_write_adds_nothing(store: Store) -> None:
    """A write of costs whose reply was lost is applied once, also when a later one has restored the costs before it."""
    job = run(store)
    first = cost_write(job, 1, usd=5)
    store.add_cost(first, sources=RUNNING)
    store.add_cost(cost_write(read(store), 2, usd=-5), sources=RUNNING)
    answer = store.add_cost(first, sources=RUNNING)
    assert not_none(answer).applied
    assert JobCosts.of(read(store).costs).total == {"usd": 0}
    assert sums(store) == {("", "usd"): (ZERO, ZERO)}


# --- the ledger -------------------------------------------------------------------------------------------------------


def spend(store: Store, job: JobRow, **amounts: str) -> JobRow:
    """Add to the costs of a run."""
    return Ledger(store).add_cost(job, {unit: Decimal(amount) for unit, amount in amounts.items()})


def crash(store: Store, job: JobRow) -> JobRow:
    """Lose the worker of a run, and claim the job again."""
    apply(store, job, Transition.CRASH, crashes=1, wake_after=0.0)
    return accepted(claim(store, job.id))


def test_a_lost_attempt_has_cost_what_it_reported(store: Store) -> None:
    """The costs of each attempt are kept, also those of one whose worker died."""
    job = crash(store, spend(store, run(store), usd="0.5", tokens="7"))
    spend(store, spend(store, job, usd="0.25"), usd="0.125")
    costs = JobCosts.of(read(store).costs)
    assert costs.attempts == {1: {"usd": Decimal("0.5"), "tokens": 7}, 2: {"usd": Decimal("0.375")}}
    assert costs.total == {"usd": Decimal("0.875"), "tokens": 7}


def test_a_stale_run_adds_no_cost(store: Store) -> None:
    """A run that has lost its job, or has ended, is refused, and nothing is added."""
    job = run(store)
    crash(store, job)
    with pytest.raises(LeaseLost):
        spend(store, job, usd="1")
    assert (read(store).costs, sums(store)) == (None, {})


def test_costs_of_threads_of_one_run_are_all_added(store: Store) -> None:
    """A write that finds other costs than it expects is repeated on them."""
    job = run(store)
    for _ in range(3):
        spend(store, job, usd="1")
    assert JobCosts.of(read(store).costs).total == {"usd": 3}


REFUSED: dict[str, Callable[[JobCosts], object]] = {
    "would make the cost of this attempt negative": lambda costs: costs.add(1, {"usd": Decimal("-0.51")}),
    "of this attempt negative: it has 0": lambda costs: costs.add(2, {"usd": Decimal("-0.1")}),
    "10^15 or more": lambda costs: costs.add(1, {"usd": Decimal("999999999999999.5")}),
    "at most 16 units": lambda costs: costs.add(2, {f"unit{number}": Decimal(1) for number in range(16)}),
}


@for_each("message", REFUSED)
def test_a_sum_out_of_range_is_refused(message: str) -> None:
    """The sum of an attempt is neither negative nor too large, and a job has few units."""
    with pytest.raises(InvalidArgumentsError) as caught:
        REFUSED[message](JobCosts({1: {"usd": Decimal("0.5")}}))
    assert message in str(caught.value)
