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
    "of its scheduler is one of theirs.",
    do="Stop its scheduler once the workers tick: [Schedules without beat](../guides/beat.md).",
    fails="`last_run_at` and `total_run_count` are not written while the workers tick.",
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
    """With `onejob_beat` the workers tick its entries and write none; a tick of its scheduler is one of theirs."""
    shop = program(APP, OWN_BEAT="1")
    (shop.folder / "go").touch()
    shop.run(ENTRY)
    with shop.worker():
        shop.await_marks(2)
        assert "row" in shop.command("-m", "celery", "-A", "shop", "onejob", "beat", "list")
        counts = "answer = [row.total_run_count for row in PeriodicTask.objects.filter(name='row')]"
        assert shop.run(counts) == [0]
        with shop.start(*BEAT, ready="beat: Starting"):
            eventually(lambda: any(job.duplicate_count for job in shop.jobs()))
