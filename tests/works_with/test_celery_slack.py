"""celery-slack: its messages about jobs."""

import json

import pytest

from tests.services import eventually, free_port
from tests.works_with.program import MakeProgram
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("celery-slack==0.4.1",),
    needs=("ephem==4.2.1",),
    ran="`Slackify(app, url)` with a receiver of its own, jobs that complete, fail and are duplicates; Redis, "
    "`onejob://`",
    holds="One message for each run that begins, none for a duplicate.",
    do="A class of your own, after `Slackify`: `class Job(onejob.Task)` with `on_success = app.Task.on_success` and "
    "`on_failure = app.Task.on_failure`.",
    fails="Without that class ends are not posted: it changes `app.Task`, which is no base of `onejob.Task`, nor of "
    "any other class of yours.",
)
RECEIVER = """
import http.server, os, pathlib

class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        with open("posts", "ab") as file:
            file.write(body + b"\\n")
        self.send_response(200)
        self.end_headers()

server = http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler)
print("ready", flush=True)
server.serve_forever()
"""
APP = """
from celery_slack import Slackify
from kit import *

app = make_app()
Slackify(app, f"http://127.0.0.1:{os.environ['PORT']}/", show_task_prerun=True, show_startup=False, show_shutdown=False)

class Job(onejob.Task):
    abstract = True
    on_success = app.Task.on_success
    on_failure = app.Task.on_failure

def body(number):
    if number < 0:
        raise ValueError(number)

bare = app.task(base=onejob.Task, name="bare")(body)
job = app.task(base=Job, name="job")(body)
"""


@pytest.mark.parametrize("direct", [False, True])
def test_it_posts_runs_and_ends(program: MakeProgram, direct: bool) -> None:
    """A run is posted once, and its end if the class of the task has the hooks that celery-slack has changed."""
    shop = program(APP, direct=direct, PORT=str(free_port()))

    def titles() -> list[str]:
        posts = shop.folder / "posts"
        lines = posts.read_text().splitlines() if posts.exists() else []
        return sorted(json.loads(line)["attachments"][0].get("title", "") for line in lines)

    shop.run("for task in (bare, job): task.delay(1), task.delay(1), task.delay(-1)")
    begun = ["Executing -- bare"] * 2 + ["Executing -- job"] * 2
    with shop.start("-c", RECEIVER, ready="ready"), shop.worker():
        eventually(lambda: len(titles()) >= 6 and all(job.state.final for job in shop.jobs()))
        assert titles() == [*begun, "FAILURE -- job", "SUCCESS -- job"]
