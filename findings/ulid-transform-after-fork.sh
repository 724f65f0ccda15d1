#!/usr/bin/env bash
# ulid-transform 2.2.9, seen 2026-11-28.
# Expected: the children of a prefork pool draw ids of their own. Python's `random` is seeded again in a child, and so
#   are uuid-utils and fastuuid; python-ulid asks the system for each millisecond.
# Happens: the generator of the random part is in the extension's memory, and a fork copies it. Two children that are
#   forked after the parent drew one id draw the same random parts, in the same order: ids of one millisecond are
#   equal.
# Means: behind a prefork server or pool, such an id is unique in one process only. Draw the first id in the child, or
#   take a package that seeds after a fork.
. "$(dirname "$0")/lib.sh"
packages ulid-transform==2.2.9 python-ulid==4.1.0

observe <<'PY'
import os

import ulid
import ulid_transform

GENERATORS = {
    "ulid-transform": lambda second: ulid_transform.ulid_at_time(second),
    "python-ulid": lambda second: str(ulid.ULID.from_timestamp(second)),
}


def ids_of_a_child(draw):
    """What a child draws that is forked now, all in one millisecond that is later than the parent's."""
    reading, writing = os.pipe()
    if not os.fork():
        os.write(writing, " ".join(draw(1_790_000_001.0) for _ in range(100)).encode())
        os._exit(0)
    os.close(writing)
    os.wait()
    with os.fdopen(reading) as lines:
        return set(lines.read().split())


for name, draw in GENERATORS.items():
    draw(1_790_000_000.0)
    print(f"{name:15} ids that two children have in common, of 100: {len(ids_of_a_child(draw) & ids_of_a_child(draw))}")
PY
expect <<'TEXT'
ulid-transform  ids that two children have in common, of 100: 100
python-ulid     ids that two children have in common, of 100: 0
TEXT
