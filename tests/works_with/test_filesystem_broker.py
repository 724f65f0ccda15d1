"""kombu's broker `filesystem://`: messages are files of a folder."""

import pytest

from tests.works_with.program import MakeProgram
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("kombu==5.7.0",),
    feature="`filesystem://`",
    ran="duplicates, a countdown, `revoke(terminate=True)`, a message whose file is deleted; SQLite",
    holds="Jobs run once, and one whose file was deleted is published again.",
    do="With SQLite the broker `onejob://` needs no folder.",
    fails="",
)
APP = """
from kit import *

folders = {name: str(Path(name).absolute()) for name in ("queue", "processed", "control")}
for folder in folders.values():
    Path(folder).mkdir(exist_ok=True)
app = make_app(broker_transport_options={
    "data_folder_in": folders["queue"], "data_folder_out": folders["queue"],
    "processed_folder": folders["processed"], "control_folder": folders["control"],
})

@app.task(base=onejob.Task)
def work(number, held=False):
    mark(number)
    while held:
        time.sleep(0.05)
    return number
"""


def test_jobs_run_by_files(program: MakeProgram) -> None:
    """Equal submissions run once, and so do a later and a lost message; a terminated run is canceled."""
    shop = program(APP)
    shop.variables["SHOP_BROKER"] = "filesystem://"
    shop.run("work.delay(1)")
    for message in (shop.folder / "queue").iterdir():
        message.unlink()
    shop.run("work.delay(2), work.delay(2), work.apply_async((3,), countdown=1)")
    with shop.worker():
        shop.await_states("completed", "completed", "completed")
        assert sorted(shop.marks) == [[1], [2], [3]]
        shop.run("work.delay(4, True)")
        shop.await_marks(4)
        shop.run("app.control.revoke(work.delay(4, True).id, terminate=True)")
        shop.await_states("completed", "completed", "completed", "canceled")
