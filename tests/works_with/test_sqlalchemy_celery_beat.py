"""sqlalchemy-celery-beat: its scheduler and its tables."""

import pytest

from tests.services import eventually
from tests.works_with.program import MakeProgram, on_both_brokers
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("sqlalchemy-celery-beat==0.9.1",),
    needs=("ephem==4.2.1", "tzdata==2026.6"),
    ran="its `DatabaseScheduler` on SQLite in front of jobs, and with `onejob_beat = True`; Redis, `onejob://`",
    holds="Ticks attach to a job that still runs, on each broker.",
    do="Name `beat_dburi`: it is no part of the ledger.",
    fails="The workers do not know entries of its tables: they tick only while its scheduler runs.",
)
APP = """
from sqlalchemy_celery_beat.models import IntervalSchedule, Period, PeriodicTask
from sqlalchemy_celery_beat.session import SessionManager
from kit import *

app = make_app(beat_dburi="sqlite:///beat.db", beat_schema=None, onejob_beat=bool(os.environ.get("OWN_BEAT")))

@app.task(base=onejob.Task)
def report(entry):
    mark(entry)
    while not Path("go").exists():
        time.sleep(0.05)
"""
ENTRY = """
manager = SessionManager()
engine, Session = manager.create_session(app.conf.beat_dburi)
manager.prepare_models(engine)
with Session() as session:
    every = IntervalSchedule(every=1, period=Period.SECONDS)
    session.add(every)
    session.commit()
    session.add(PeriodicTask(name="row", task="shop.report", schedule_model=every, args='["row"]'))
    session.commit()
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
    "sqlalchemy_celery_beat.schedulers:DatabaseScheduler",
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


def test_the_workers_do_not_read_its_tables(program: MakeProgram) -> None:
    """With `onejob_beat` the workers do not know its entries."""
    shop = program(APP, OWN_BEAT="1")
    shop.run(ENTRY)
    with shop.worker():
        assert "row" not in shop.command("-m", "celery", "-A", "shop", "onejob", "beat", "list")
