"""The costs of runs, and their sums by day: a hash for each day, with a field for each limb of each sum."""

# ruff: noqa: D102 - an operation is explained where it is promised: in the protocol

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from decimal import Decimal

from onejob.jobs.costs import (
    COST_DAYS,
    SAVED,
    CostAnswer,
    CostKey,
    CostSum,
    CostWrite,
    Label,
    amount_of,
    day_text,
    limbs_of,
)
from onejob.jobs.durations import DAY
from onejob.jobs.lifecycle import State
from onejob.stores.protocol import SUBMITTER_LIMIT
from onejob.stores.redis.client import Part, pages_of, pairs_of

LIMITS = (str(SUBMITTER_LIMIT), str(round((COST_DAYS + 1) * DAY)))
"""How many names a task has sums of on a day, and for how many seconds the sums of a day are kept after each change."""
FIELD_SIZE = 6
"""The length of the array that names the limb of a sum; shorter ones count names."""


class Costs(Part):
    """The part of the store that keeps what runs have cost."""

    def add_cost(self, write: CostWrite, *, sources: frozenset[State]) -> CostAnswer | None:
        keys = self._keys
        script_keys = (keys.job(write.job_id), keys.duplicate_counts, keys.cost_sums)
        values = (
            write.job_id, str(write.token), " ".join(sources), write.request_id, write.expected or "", write.costs,
            " ".join(SAVED), *LIMITS, *_arguments_of(write.spent),
        )  # fmt: skip
        found = self._client.call("add_cost", script_keys, values)
        if found is None:
            return None
        applied, costs, duplicates = found
        return CostAnswer(applied=applied == "1", costs=costs or None, duplicates=int(duplicates))

    def add_saved(self, amounts: Mapping[CostKey, Decimal]) -> None:
        for page in pages_of([*amounts.items()]):
            self._client.call("add_saved", (self._keys.cost_sums,), (*LIMITS, *_arguments_of(dict(page))))

    def cost_sums(self, *, first: int, last: int, label: Label) -> list[CostSum]:
        found: list[CostSum] = []
        for days in pages_of(range(first, last + 1)):
            replies = self._client.read(*(("HGETALL", f"{self._keys.cost_sums}{day}") for day in days))
            for day, flat in zip(days, replies, strict=True):
                found += _parse_sums(day_text(day), flat, label)
        return found


def _arguments_of(amounts: Mapping[CostKey, Decimal]) -> list[str]:
    return [
        text
        for key, amount in amounts.items()
        for text in (key.task, key.label, key.name, key.unit, *map(str, limbs_of(amount)))
    ]


def _parse_sums(day: str, flat: Sequence[str], label: Label) -> list[CostSum]:
    limbs: defaultdict[CostKey, dict[str, list[tuple[int, int]]]]
    limbs = defaultdict(lambda: {"spent": [], "saved": []})
    for field, limb in pairs_of(flat).items():
        parts = json.loads(field)
        if len(parts) == FIELD_SIZE and parts[1] == label:
            task, _, name, unit, kind, position = parts
            key = CostKey(task=task, label=label, name=name, unit=unit)
            limbs[key][kind].append((position, int(limb)))
    return [
        CostSum(day=day, key=key, spent=amount_of(each["spent"]), saved=amount_of(each["saved"]))
        for key, each in limbs.items()
    ]
