#!/usr/bin/env bash
# APScheduler 3.11.3 (3.11.0 to 3.11.3; 3.10.4 is right), seen 2026-11-28.
# Expected: `0 0 1 * *` is the midnight of each first of a month. The documentation warns of times that the change of
#   the clocks skips or repeats; the midnight of another day is far from it.
# Happens: a run before that night asks for the next one, and the walk over the days adds 24 hours for the day that
#   has 23: it arrives at 01:00 and goes on to the next match. The monthly run of April is missing in Berlin, as is
#   the daily run of the day after the change, and a weekly one of Mondays. Nothing is logged, and
#   `misfire_grace_time` has no part in it.
# Means: once a year, a job at or soon after midnight is not run. UTC as the trigger's timezone avoids it.
. "$(dirname "$0")/lib.sh"
packages apscheduler==3.11.3 tzdata==2026.6

observe <<'PY'
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

from apscheduler.triggers.cron import CronTrigger


def fire_times(expression, zone, start, count):
    """The moments at which a scheduler that never sleeps runs the job, as wall clock."""
    trigger, previous, now = CronTrigger.from_crontab(expression, timezone=zone), None, start.astimezone(ZoneInfo(zone))
    for _ in range(count):
        previous = trigger.get_next_fire_time(previous, now)
        yield f"{previous:%a %d %b}"
        now = (previous.astimezone(timezone.utc) + timedelta(milliseconds=5)).astimezone(ZoneInfo(zone))


start = datetime(2026, 2, 20, tzinfo=timezone.utc)
print("monthly, Berlin:  ", *fire_times("0 0 1 * *", "Europe/Berlin", start, 3), sep="  ")
print("monthly, UTC:     ", *fire_times("0 0 1 * *", "UTC", start, 3), sep="  ")
start = datetime(2026, 3, 27, 12, tzinfo=timezone.utc)
print("daily, Berlin:    ", *fire_times("0 0 * * *", "Europe/Berlin", start, 3), sep="  ")
start = datetime(2026, 3, 6, 12, tzinfo=timezone.utc)
print("daily, New York:  ", *fire_times("30 0 * * *", "America/New_York", start, 3), sep="  ")
start = datetime(2026, 3, 20, tzinfo=timezone.utc)
print("Mondays, Berlin:  ", *fire_times("0 0 * * mon", "Europe/Berlin", start, 3), sep="  ")
PY
expect <<'TEXT'
monthly, Berlin:    Sun 01 Mar  Fri 01 May  Mon 01 Jun
monthly, UTC:       Sun 01 Mar  Wed 01 Apr  Fri 01 May
daily, Berlin:      Sat 28 Mar  Sun 29 Mar  Tue 31 Mar
daily, New York:    Sat 07 Mar  Sun 08 Mar  Tue 10 Mar
Mondays, Berlin:    Mon 23 Mar  Mon 06 Apr  Mon 13 Apr
TEXT
