"""celery-redbeat: its entries submit jobs, alone and beside the schedules that the workers run."""

import pytest

from tests.services import eventually
from tests.works_with.program import MakeProgram, on_both_brokers
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("celery-redbeat==2.4.2",),
    needs=("python-dateutil==2.9.0.post0", "tenacity==9.2.1", "six==1.17.0"),
    ran="`celery beat -S redbeat.RedBeatScheduler` with an entry of `beat_schedule`, one that a program saved in "
    "Redis, and with `onejob_beat = True`; Redis, `onejob://`",
    holds="Ticks attach to a job that still runs. With `onejob_beat` the tick of an entry of `beat_schedule` is one "
    "job, whoever submits it first.",
    do="Name `redbeat_redis_url` where the broker is `onejob://`.",
    fails="The workers do not know entries that only Redis has: `onejob beat list` does not show them, and they tick "
    "only while RedBeat runs.",
)
APP = """
from kit import *
from redbeat import RedBeatSchedulerEntry

app = make_app(
    redbeat_redis_url=os.environ["SHOP_REDIS"], onejob_beat=bool(os.environ.get("OWN_BEAT")),
    beat_schedule={"static": {"task": "shop.report", "schedule": 1.0, "args": ["static"]}},
)

@app.task(base=onejob.Task)
def report(entry):
    mark(entry)
    while not Path("go").exists():
        time.sleep(0.05)
"""
BEAT = ("-m", "celery", "-A", "shop", "beat", "-l", "INFO", "-S", "redbeat.RedBeatScheduler", "--max-interval", "1")


@on_both_brokers
def test_ticks_attach_to_the_running_job(program: MakeProgram, direct: bool) -> None:
    """Ticks of an entry, of the settings or saved by a program, attach to its job while this runs."""
    shop = program(APP, direct=direct)
    shop.run("RedBeatSchedulerEntry('saved', 'shop.report', celery.schedules.schedule(1.0), ['saved'], app=app).save()")
    with shop.worker(), shop.start(*BEAT, ready="Acquired lock"):
        assert sorted(shop.await_marks(2)) == [["saved"], ["static"]]
        eventually(lambda: all(job.duplicate_count > 1 for job in shop.jobs()))
        assert [job.state for job in shop.jobs()] == ["running"] * 2
        (shop.folder / "go").touch()
        shop.await_marks(4)


def test_a_tick_of_both_schedulers_is_one_job(program: MakeProgram) -> None:
    """With `onejob_beat` a call of RedBeat is the tick that the workers submit; they do not know its own entries."""
    shop = program(APP, OWN_BEAT="1")
    (shop.folder / "go").touch()
    shop.run("RedBeatSchedulerEntry('saved', 'shop.report', celery.schedules.schedule(1.0), ['saved'], app=app).save()")
    with shop.worker(), shop.start(*BEAT, ready="Acquired lock"):
        eventually(lambda: sum(job.duplicate_count for job in shop.jobs() if "static" in job.payload) > 1)
    assert "saved" not in shop.command("-m", "celery", "-A", "shop", "onejob", "beat", "list")
