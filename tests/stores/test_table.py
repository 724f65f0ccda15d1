"""The outcomes of the model, and so of every store, and the rules of the lifecycle are those of the pages."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from onejob.jobs.lifecycle import RULES, Transition
from onejob.jobs.limits import KeyUse, first_park, write_uses
from onejob.jobs.model import Outcome
from onejob.jobs.on_duplicate import CONFLICT_POLICIES
from tests.cases import for_each
from tests.stores.model import ModelStore
from tests.stores.support import LEASE, ManualClock, apply, read, start, submission, submit_one

PAGE = Path(__file__).parents[2] / "docs/concepts/on-duplicate.md"


def _table() -> dict[tuple[str, str, str], Outcome]:
    """Return the table of the page: (situation, arguments, conflict policy) to outcome."""
    lines = [line.strip("|").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    head, *rows = [[cell.strip(" `") for cell in line] for line in lines]
    return {(row[0], row[1], head[n]): Outcome(row[n]) for row in rows for n in range(2, len(head))}


TABLE = _table()
USES = (None, write_uses([KeyUse("gpu")]))


def test_the_rules_are_those_of_the_page() -> None:
    """The lifecycle's page has a row for each transition: its sources, its target, and whether it needs the token."""
    lines = PAGE.with_name("lifecycle.md").read_text().splitlines()
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    names = {row[0]: (set(row[1].split(", ")), row[2], bool(row[3])) for row in rows if row[0] in {*Transition}}
    assert names == {
        event: ({*map(str, rule.sources)}, str(rule.target or "stays"), rule.fenced) for event, rule in RULES.items()
    }


def test_the_table_has_every_case() -> None:
    """The page has a row for each situation of the existing job, with the same and with other arguments."""
    assert {conflict_policy for _, _, conflict_policy in TABLE} == set(CONFLICT_POLICIES)
    assert len(TABLE) == 5 * 2 * len(CONFLICT_POLICIES)


@for_each(
    "situation, arguments, conflict_policy, limit_keys", [(*case, keys) for case in sorted(TABLE) for keys in USES]
)
def test_each_case_of_the_table(situation: str, arguments: str, conflict_policy: str, limit_keys: str | None) -> None:
    """The model returns the outcome of the table in each case, also if the existing job waits for room on a key."""
    store: Any = ModelStore(ManualClock())
    case = f"{situation} / {arguments} / {conflict_policy}"
    policy: dict[str, Any] = asdict(CONFLICT_POLICIES[conflict_policy]) | {"max_wait": 0.0}
    room: dict[str, Any] = {"limit_keys": limit_keys, "parked_on": first_park(limit_keys)}
    first = submission(f"{case}: first", identity=case, fingerprint="same", **room)
    if situation != "none, or one that released its identity":
        submit_one(store, first, wake_after=LEASE)
    if situation.startswith("has"):
        start(store, first.id)
    if "queued" in situation:
        submit_one(store, replace(first, id=f"{case}: next", nonce="next", queue_next=True), wake_after=LEASE)
    if "completed" in situation:
        apply(store, read(store, first.id), Transition.COMPLETE, keeps_identity=True, identity_for=60.0)
    new = submission(f"{case}: new", identity=case, fingerprint=arguments, **policy)
    assert submit_one(store, new, wake_after=LEASE).outcome is TABLE[situation, arguments, conflict_policy]
