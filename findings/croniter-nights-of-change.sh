#!/usr/bin/env bash
# croniter 7.0.0 and 6.0.0, beside cronsim 2.8, seen 2026-11-28.
# Expected: a daily `30 2 * * *` is due once a day, also in the night that has 2:30 twice; Debian's cron does so, and
#   so does cronsim, which monitors (healthchecks) compute with. `0 */2 * * *` is due at even hours.
# Happens: croniter 7.0.0 gives both 2:30; 6.0.0 gave one, and then 3:30 for the day after. In spring `0 */2 * * *`
#   gets a tick at 3:00, one hour before that of 4:00, since 2:00 is moved there.
# Means: an upgrade to 7 repairs the day after and adds a run to the night; a scheduler by croniter and a monitor by
#   cronsim disagree twice a year. Keep daily jobs out of the hours from 2 to 3, or compute in UTC.
. "$(dirname "$0")/lib.sh"

module ticks <<'PY'
import importlib.metadata
from datetime import datetime
from zoneinfo import ZoneInfo

from croniter import croniter
from cronsim import CronSim

BERLIN = ZoneInfo("Europe/Berlin")


def wall(moments):
    return " ".join(f"{moment:%d. %H:%M}{'s' if moment.dst() else 'w'}" for moment in moments)  # summer or winter time


def show(expression, *start):
    begin = datetime(*start, tzinfo=BERLIN)
    schedule, simulated = croniter(expression, begin), CronSim(expression, begin)
    print(f"{expression:12} croniter", wall(schedule.get_next(datetime) for _ in range(3)))
    print(f"{'':12} cronsim ", wall(next(simulated) for _ in range(3)))


print("croniter", importlib.metadata.version("croniter"))
show("30 2 * * *", 2026, 10, 24, 12)
show("0 */2 * * *", 2026, 3, 29, 0, 30)
PY

packages croniter==6.0.0 cronsim==2.8 tzdata==2026.6
observe <<<'import ticks'
expect <<'TEXT'
croniter 6.0.0
30 2 * * *   croniter 25. 02:30s 26. 03:30w 27. 02:30w
             cronsim  25. 02:30s 26. 02:30w 27. 02:30w
0 */2 * * *  croniter 29. 03:00s 29. 04:00s 29. 06:00s
             cronsim  29. 04:00s 29. 06:00s 29. 08:00s
TEXT

packages croniter==7.0.0
observe <<<'import ticks'
expect <<'TEXT'
croniter 7.0.0
30 2 * * *   croniter 25. 02:30s 25. 02:30w 26. 02:30w
             cronsim  25. 02:30s 26. 02:30w 27. 02:30w
0 */2 * * *  croniter 29. 03:00s 29. 04:00s 29. 06:00s
             cronsim  29. 04:00s 29. 06:00s 29. 08:00s
TEXT
