"""django-celery-beat: its scheduler, and its tables read by the workers."""

import pytest

from tests.services import eventually
from tests.works_with.program import MakeProgram, on_both_brokers
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("django-celery-beat==2.9.0",),
    needs=(
        "django==5.2.19",
        "cron-descriptor==1.4.5",
        "django-timezone-field==7.2.2",
        "python-crontab==3.4.0",
        "tzdata==2026.6",
    ),
    ran="its `DatabaseScheduler` in front of jobs; its tables read by the workers, `onejob_beat = True`, alone and "
    "beside its scheduler; Redis, `onejob://`",
    holds="Ticks attach to a job that still runs. The workers tick its entries without a process of beat, and a tick "
    "of its scheduler is one of theirs. All columns keep their meaning: `one_off`, `expires`, `start_time`, "
    "`last_run_at`, `total_run_count`, and the options of messages.",
    do="Stop its scheduler once the workers tick: [Schedules without beat](../guides/beat.md).",
    fails="A new row whose `start_time` has passed waits for its next moment; its own scheduler runs it at once. Its "
    "admin does not show that onejob has paused an entry.",
)
APP = """
import django
from django.conf import settings
from kit import *

settings.configure(
    INSTALLED_APPS=["django_celery_beat"], USE_TZ=True, DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "django.db",
        "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE"}}},
)
django.setup()
from django.core.management import call_command
from django_celery_beat.models import IntervalSchedule, PeriodicTask

app = make_app(onejob_beat=bool(os.environ.get("OWN_BEAT")))

@app.task(base=onejob.Task)
def report(entry):
    mark(entry)
    while not Path("go").exists():
        time.sleep(0.05)
"""
ENTRY = """
call_command("migrate", verbosity=0)
every, _ = IntervalSchedule.objects.get_or_create(every=1, period="seconds")
PeriodicTask.objects.create(name="row", task="shop.report", interval=every, args='["row"]')
"""
BEAT = (
    "-m",
    "celery",
    "-A",
    "shop",
    "beat",
    "-l",
    "INFO",
    "--max-interval",
    "1",
    "-S",
    "django_celery_beat.schedulers:DatabaseScheduler",
)


@on_both_brokers
def test_its_ticks_attach_to_the_running_job(program: MakeProgram, direct: bool) -> None:
    """Ticks of its scheduler attach to the job of an entry while this runs."""
    shop = program(APP, direct=direct)
    shop.run(ENTRY)
    with shop.worker(), shop.start(*BEAT, ready="beat: Starting"):
        shop.await_marks(1)
        eventually(lambda: shop.jobs()[0].duplicate_count > 1)
        (shop.folder / "go").touch()
        shop.await_marks(2)


def test_the_workers_read_its_tables(program: MakeProgram) -> None:
    """With `onejob_beat` the workers tick its entries and count runs; a tick of its scheduler is theirs."""
    shop = program(APP, OWN_BEAT="1")
    (shop.folder / "go").touch()
    shop.run(ENTRY)
    with shop.worker():
        shop.await_marks(2)
        assert "row" in shop.command("-m", "celery", "-A", "shop", "onejob", "beat", "list")
        assert shop.run("answer = [row.total_run_count > 0 for row in PeriodicTask.objects.filter(name='row')]") == [
            True
        ]
        with shop.start(*BEAT, ready="beat: Starting"):
            eventually(lambda: any(job.duplicate_count for job in shop.jobs()))


# --- the columns of a row, by a clock that the program sets -----------------------------------------------------------


CLOCK = """
from datetime import UTC, datetime, timedelta
from onejob.celery.beat import ticks as beat
from onejob.celery.app_state import app_state_of
from onejob.config import build_ledger
from onejob.jobs.route import Route
from onejob.jobs.query import Query
from onejob.stores.sqlite import SQLiteStore
from django_celery_beat.models import ClockedSchedule, CrontabSchedule
from django_celery_beat.schedulers import DatabaseScheduler

call_command("migrate", verbosity=0)
state, began, passed = app_state_of(app), time.time(), [0.0]
store = SQLiteStore("ledger.db", clock=lambda: began + passed[0])
state.use(build_ledger(state.settings, store=store), state.publisher, None)
minutely, _ = IntervalSchedule.objects.get_or_create(every=60, period="seconds")

@app.task
def plain(entry):
    pass

def at(seconds):
    return datetime.fromtimestamp(began + seconds, UTC)

def clocked(seconds):
    return ClockedSchedule.objects.create(clocked_time=at(seconds))

def add(**columns):
    columns = {"interval": None if "clocked" in columns or "crontab" in columns else minutely} | columns
    row = PeriodicTask.objects.create(**{"name": "row", "task": "shop.report", "args": '["row"]'} | columns)
    rows().update(date_changed=at(0))
    return row

def rows():
    return PeriodicTask.objects.filter(name="row")

def jobs():
    return [job for job in store.find(Query(limit=1000)) if job.source == "beat"][::-1]

def look(seconds):
    \"\"\"Look at a time; return the number of jobs, and what the row says.\"\"\"
    passed[0] = seconds
    beat.Beat(app).look()
    (row,) = rows()
    ran = row.last_run_at and round(row.last_run_at.timestamp() - began)
    return [len(jobs()), row.enabled, row.total_run_count, ran]
"""
ONCE = """
if KIND == "clocked":
    add(clocked=clocked(100), one_off=True)
else:
    add(interval=IntervalSchedule.objects.create(every=100, period="seconds"), one_off=True)
app.conf.onejob_beat_missed = "skip"
answer = [look(0), look(99), look(170), look(171), look(500)]
rows().update(enabled=True)  # as an action of the admin does
answer += [look(600), look(601), look(701), look(900)]
row = rows().get()
row.clocked, row.interval, row.enabled = clocked(1000), None, True
row.save()
answer += [look(999), look(1001), look(2000)]
"""


@pytest.mark.parametrize("kind", ["clocked", "interval"])
def test_a_row_that_runs_once_runs_again_when_it_is_enabled(program: MakeProgram, kind: str) -> None:
    """A one-off row runs once and is disabled, as by its scheduler; enabled again, it runs again."""
    over = [False, 0, None]
    answer = program(APP, OWN_BEAT="1").run(f"{CLOCK}\nKIND = {kind!r}\n{ONCE}")
    assert answer[:5] == [[0, True, 0, None]] * 2 + [[1, *over]] * 3
    enabled = [1, True, 0, None]
    assert answer[5:9] == [enabled, [2, *over] if kind == "clocked" else enabled, [2, *over], [2, *over]]
    assert answer[9:] == [[2, True, 0, None], [3, *over], [3, *over]]


EXPIRES = """
add(expires=at(150))
answer = [look(0), look(61), look(121), look(180)]
rows().update(enabled=True, expires=at(-5))
answer += [look(200), [job.expires_at is not None for job in jobs()]]
rows().update(enabled=True, expires=None, expire_seconds=45)
answer += [look(301), [round(job.expires_at - job.created_at) for job in jobs()][2:]]
"""


def test_a_row_ends_with_its_expires(program: MakeProgram) -> None:
    """After `expires` a row has no job, and is disabled; each job of `expire_seconds` expires by itself."""
    answer = program(APP, OWN_BEAT="1").run(CLOCK + EXPIRES)
    assert answer[:4] == [[0, True, 0, None], [1, True, 1, 60], [2, True, 2, 120], [2, False, 0, None]]
    assert answer[4][:2] == [2, False]
    assert answer[5] == [True, True]
    assert (answer[6], answer[7]) == ([3, True, 1, 300], [45])


STARTS = """
add(start_time=at(90.5))
answer = [look(0), look(61), look(90), look(91), look(149), look(151)]
rows().delete()
crontab, _ = CrontabSchedule.objects.get_or_create(minute="*", hour="*", timezone="UTC")
start = 60 - began % 60 + 600
add(crontab=crontab, start_time=at(start))
answer += [look(300)[0], look(start - 1)[0], look(start)[0], look(start + 59)[0], look(start + 60)[0]]
"""


def test_a_row_begins_with_its_start_time(program: MakeProgram) -> None:
    """The first tick of an interval is at `start_time`, and that of a crontab the first one from then on."""
    answer = program(APP, OWN_BEAT="1").run(CLOCK + STARTS)
    assert [each[0] for each in answer[:6]] == [0, 0, 0, 1, 1, 2]
    assert answer[6:] == [2, 2, 3, 3, 4]


OPTIONS = """
add(queue="slow", priority=0, headers='{"tenant": "a"}')
rows().update(last_run_at=at(-30), total_run_count=7)
answer = [look(0), look(29), look(31)]
(job,) = jobs()
options = json.loads(job.options)
answer += [job.queue, options["priority"], options["headers"]["tenant"], options["headers"]["periodic_task_name"]]
rows().update(queue=None, exchange="own", routing_key="own.key")
look(91)
route = Route.decode(jobs()[1].route)
answer += [route.exchange, route.routing_key]
"""


def test_a_row_goes_on_where_its_scheduler_stopped(program: MakeProgram) -> None:
    """The first tick of the workers follows the last run of its scheduler, with the options of the row."""
    answer = program(APP, OWN_BEAT="1").run(CLOCK + OPTIONS)
    assert answer[:3] == [[0, True, 7, -30], [0, True, 7, -30], [1, True, 8, 30]]
    assert answer[3:] == ["slow", 0, "a", "row", "own", "own.key"]


BACK = """
add(date_changed=at(0))
PeriodicTask.objects.create(name="once", task="shop.report", args='["row"]', clocked=clocked(10), one_off=True)
PeriodicTask.objects.create(
    name="ran", task="shop.report", clocked=clocked(-10), one_off=True, total_run_count=1, last_run_at=at(-10)
)
look(0)
answer = [look(61)]
scheduler = DatabaseScheduler(app)
due = {name: entry.is_due().is_due for name, entry in scheduler.schedule.items() if name in ("row", "once", "ran")}
answer += [due, [[each.enabled, each.total_run_count] for each in PeriodicTask.objects.filter(one_off=True)]]
"""


def test_its_scheduler_repeats_nothing(program: MakeProgram) -> None:
    """Its own scheduler, when it takes over again, finds no row due that has run, and no one-off row enabled."""
    answer = program(APP, OWN_BEAT="1").run(CLOCK + BACK)
    assert answer == [[2, True, 1, 60], {"row": False}, [[False, 0], [False, 0]]]


PLAIN = """
from kombu.exceptions import OperationalError
add(task="shop.plain", clocked=clocked(10), one_off=True, queue="q")
look(0)
kept, sent = beat.send, []
def fail(*_, **__):
    raise OperationalError("the broker is away")
beat.send = fail
answer = [look(10)]
beat.send = lambda *_, task_id, **__: sent.append(task_id)
answer += [look(11), look(12), len(sent)]
"""


def test_a_row_of_a_plain_task_waits_for_the_broker(program: MakeProgram) -> None:
    """A one-off row of a task of Celery's own class stays enabled until its message is sent, and is sent once."""
    answer = program(APP, OWN_BEAT="1").run(CLOCK + PLAIN)
    assert answer == [[0, True, 0, None], [0, False, 0, None], [0, False, 0, None], 1]


AWAY = """
from django.db import OperationalError
from onejob.celery.beat.schedule_rows import Row
add()
look(0)
record = Row.record
def fail(*_):
    raise OperationalError("the database is away")
Row.record = fail
answer = [look(61), look(70)]
Row.record = record
answer += [look(80), look(81)]
"""


def test_a_row_that_cannot_be_written_is_written_later(program: MakeProgram) -> None:
    """While a row cannot be written its tick stays due: it is the same job, and counts once."""
    answer = program(APP, OWN_BEAT="1").run(CLOCK + AWAY)
    assert answer == [[1, True, 0, None]] * 2 + [[1, True, 1, 60]] * 2
