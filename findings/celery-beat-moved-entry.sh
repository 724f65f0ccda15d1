#!/usr/bin/env bash
# celery 5.7.0, beat's PersistentScheduler, seen 2026-11-28.
# Expected: an entry that is moved from 6:00 to 14:00, in a release at 15:00, runs next tomorrow at 14:00: a new entry
#   with that schedule does so, and its moment of today has passed.
# Happens: the new schedule is compared with the last run of the old one, kept in the schedule file: 14:00 lies
#   between it and now, so that the entry is sent the moment beat starts, for the second time of that day. Moved to a
#   time before the last run it is not; removed in one release and added in the next, it is not either.
# Means: a release that moves a daily report can send it twice on its day. Rename the entry with the move: a new name
#   starts anew.
. "$(dirname "$0")/lib.sh"
packages celery==5.7.0 kombu==5.7.0 time-machine==3.6.0

observe <<'PY'
import datetime

import celery
import time_machine
from celery.beat import PersistentScheduler
from celery.schedules import crontab


def beat(file, hour, entry, start):
    """What a beat sends that starts at this hour and lives for three minutes."""
    app = celery.Celery(broker="memory://", set_as_current=False)
    app.conf.beat_schedule = {entry: {"task": "report", "schedule": crontab(hour=hour, minute=0)}}
    sent = []
    app.send_task = lambda name, *args, **options: sent.append(name)
    with time_machine.travel(datetime.datetime(2026, 6, 10, start, tzinfo=datetime.timezone.utc), tick=False) as clock:
        scheduler = PersistentScheduler(app=app, schedule_filename=file, lazy=False)
        for _ in range(3):
            scheduler.tick()
            clock.shift(60)
        scheduler.close()
    return sent


for name, hour, entry in (
    ("same name", 14, "daily"),
    ("other name", 14, "daily at two"),
    ("to an earlier hour", 5, "daily"),
):
    beat(name, 6, "daily", 5)
    at_six, after_release = beat(name, 6, "daily", 6), beat(name, hour, entry, 15)
    print(f"{name:19} at 6:00 sent {at_six}, after the release at 15:00 sent {after_release}")
PY
expect <<'TEXT'
same name           at 6:00 sent ['report'], after the release at 15:00 sent ['report']
other name          at 6:00 sent ['report'], after the release at 15:00 sent []
to an earlier hour  at 6:00 sent ['report'], after the release at 15:00 sent []
TEXT
