"""Serializers and compressions of Celery and kombu, for the messages of jobs."""

import pytest

from tests.works_with.program import MakeProgram
from tests.works_with.rows import Row

pytestmark = pytest.mark.deep
ROW = Row(
    packages=("celery==5.7.0", "backports-zstd==1.8.0", "brotli==1.2.1"),
    feature="serializer `msgpack`; compression `zstd`, `brotli`, `gzip`",
    ran='`task_serializer = "msgpack"`, `accept_content = ["msgpack"]`, and each `task_compression`, with a retry; '
    "Redis, `onejob://`",
    holds="The message has the serializer and the compression of the app. The ledger keeps JSON.",
    do="For `zstd` on Python before 3.14 install `backports.zstd`.",
    fails="`celery[zstd]` installs `zstandard`, which kombu 5.7 does not use: the submission raises "
    "`InvalidArgumentsError`, which names the compressions that are there.",
)
KINDS = {"zstd": "application/zstd", "brotli": "application/x-brotli", "gzip": "application/x-gzip"}
"""The names of compressions in a message."""
APP = """
from kit import *

serializer = os.environ["SERIALIZER"]
app = make_app(task_serializer=serializer, accept_content=[serializer], task_compression=os.environ["COMPRESSION"])

@app.task(base=onejob.Task, bind=True)
def store(self, text, number):
    if self.request.retries == 0:
        raise self.retry(countdown=0)
    mark(self.request.get("compression"), len(text), number)
    return text
"""


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize(
    ("serializer", "compression"), [("msgpack", "zstd"), ("msgpack", "brotli"), ("json", "zstd"), ("json", "gzip")]
)
def test_a_message_may_be_packed(program: MakeProgram, serializer: str, compression: str, direct: bool) -> None:
    """A job whose messages are msgpack, or compressed, runs, is retried, and has the result that a plain one has."""
    shop = program(APP, direct=direct, SERIALIZER=serializer, COMPRESSION=compression)
    with shop.worker():
        assert shop.run("answer = store.delay('é' * 3000, 7).get(timeout=30) == 'é' * 3000") is True
    assert shop.marks == [[KINDS[compression], 3000, 7]]


def test_an_unknown_compression_is_refused_at_the_submission(program: MakeProgram) -> None:
    """A compression that kombu does not have is an error of the submission, which names those that it has."""
    shop = program(APP, SERIALIZER="json", COMPRESSION="lz4")
    refused = "try: store.delay('', 1)\nexcept onejob.errors.InvalidArgumentsError as error: answer = str(error)"
    assert "application/zstd" in shop.run(refused)
    assert not shop.jobs()
