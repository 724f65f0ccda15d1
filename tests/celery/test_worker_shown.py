"""What a worker shows of itself: its banner, its metrics, its registration, its files; and what it survives in that."""

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from http.client import HTTPConnection
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest
from celery import Celery

from onejob import prometheus as metrics
from onejob.celery.app_state import app_state_of
from onejob.celery.results.result_backend import open_backend
from onejob.celery.submission.options import tasks_of
from onejob.celery.worker.bootstep import NAMED_TASKS, describe_ledger, warn_of_store
from onejob.celery.worker.probe import find_fault
from onejob.config import Settings, build_ledger
from onejob.doctor import examine
from onejob.errors import ConfigurationError
from onejob.health.finding import Finding, Installation, Level
from onejob.jobs.lifecycle import State, Transition
from onejob.jobs.model import Outcome
from onejob.ledger.explain import explain
from onejob.ledger.ledger import Ledger
from onejob.ledger.stuck import Stuck
from onejob.observability.logs import emit_to
from onejob.observability.meter import write_all
from onejob.prometheus import MetricsServer
from onejob.stores import display_url, open_store
from tests.cases import for_each, further
from tests.celery.harness import LEASE, PATIENCE, Cluster, await_, on_every_store, pause_until
from tests.doctor.support import names
from tests.quiet import provokes
from tests.services import free_port, start_redis
from tests.stores.support import submission


def findings_of(cluster: Cluster) -> list[Finding]:
    """Examine the installation of a cluster, as `onejob doctor` does."""
    return examine(Installation(settings=app_state_of(cluster.app).settings, ledger=cluster.ledger, app=cluster.app))


def test_a_worker_shows_its_ledger_at_the_start(cluster: Cluster) -> None:
    """A started worker has shown, below its banner, the store, the namespace, the lease and the first onejob tasks."""
    text = cluster.worker("--pool", "solo").text
    (line,) = [line for line in text.splitlines() if "onejob: ledger" in line]
    assert describe_ledger(cluster.app) in line
    names = sorted(tasks_of(cluster.app))
    assert line.endswith(f"tasks: {', '.join(names[:NAMED_TASKS])} and {len(names) - NAMED_TASKS} more")
    assert {"plain", "gather"}.isdisjoint(names)


@for_each(
    "url, shown",
    [
        ("postgresql://shop:s3cret@db.example:5433/shop?sslmode=require", "postgresql://db.example:5433/shop"),
        ("postgresql://db.example/shop?user=shop&password=s3cret@x", "postgresql://db.example:5432/shop"),
        ("postgresql://shop:s3cret@[::1]/shop", "postgresql://[::1]:5432/shop"),
        ("postgresql://a:1,b/shop", "postgresql://a:1,b:5432/shop"),
        ("postgresql://a,b/shop?port=6432", "postgresql://a:6432,b:6432/shop"),
        ("postgresql:///a%2Fb?host=/run/postgresql", "postgresql://%2Frun%2Fpostgresql:5432/a%2Fb"),
        ("rediss://:s3cret@cache.example/1", "rediss://cache.example:6379/1"),
        ("redis://:s3cret@[::1]:6380/1", "redis://[::1]:6380/1"),
        ("redis://cache.example/1?password=s3cret", "redis://cache.example:6379/1"),
        ("redis+socket:///run/redis.sock?virtual_host=2&password=s3cret", "unix:///run/redis.sock/2"),
        ("sqlite:////srv/ledger.db", "sqlite:////srv/ledger.db"),
    ],
)
def test_a_shown_url_has_no_secret(url: str, shown: str) -> None:
    """The URL that is logged has the place of the store, as commands take it; neither user, password nor options."""
    assert display_url(url) == shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite://user:s3cret@host/db", "sqlite://[redacted]@host/db"),
        ("sqlite://user:s3@cret@host/db", "sqlite://[redacted]@host/db"),
        ("sqlite:///ledger.db?key=s3cret", "sqlite:///ledger.db?[redacted]"),
        ("sqlite:///ledger.db#s3cret", "sqlite:///ledger.db#[redacted]"),
        ("sqlite:///ledger.db?key=s3@cret", "sqlite://[redacted]"),
        ("sqlite://user:s3?cret@host/db", "sqlite://[redacted]"),
        ("django://user:s3cret@host/shop", "django://[redacted]@host/shop"),
        ("user:s3cret@host/db", ""),
        ("user:s3cret@host://db", ""),
    ],
)
def test_an_error_about_a_url_has_no_secret(url: str, shown: str) -> None:
    """What is invalid as the URL of a store is named without what may be a user, a password or an option."""
    for use in (open_store, display_url, lambda each: Settings(store=each).address):
        with pytest.raises(ConfigurationError) as caught:
            use(url)
        assert shown in str(caught.value)
        assert "s3" not in str(caught.value)
    with pytest.raises(ConfigurationError, match=r"onejob\+rpc://\[redacted\]@host"):
        open_backend(Celery("x"), "rpc://user:s3cret@host//")


def test_a_shown_sqlite_file_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path is shown as the file that it names in this working directory; a database in memory has none."""
    monkeypatch.chdir(tmp_path)
    assert display_url("sqlite:///jobs.db") == f"sqlite:///{tmp_path}/jobs.db"
    assert Settings(store="sqlite:///jobs.db").address == f"sqlite:///{tmp_path}/jobs.db"
    assert Settings(store="redis://localhost/1", namespace="shop").address == "redis://localhost:6379/1, namespace shop"
    assert "/" not in display_url("sqlite:///file:shared%3Fmode=memory").removeprefix("sqlite:///")


def test_a_worker_warns_of_a_server_that_may_lose_its_ledger(cluster: Cluster, tmp_path: Path) -> None:
    """A starting worker logs what the doctor finds about the ledger's server: a line each, with the remedy."""
    with start_redis(tmp_path, "--maxmemory-policy", "allkeys-lru") as server:
        worker = cluster.start("-P", "threads", onejob_store=server.url).await_ready()
        worker.await_text("the ledger's redis: appendonly is no. A crash of Redis loses jobs")
        worker.await_text("the ledger's redis: maxmemory-policy is allkeys-lru (maxmemory is 0: not effective yet).")
        lines = [line for line in worker.text.splitlines() if "the ledger's redis" in line]
        remedy = f" in redis.conf, and `redis-cli -u {server.url} CONFIG SET "
        assert ["WARNING" in line and ". To do: " in line and remedy in line for line in lines] == [True, True]
        worker.stop()


def test_a_server_that_cannot_be_examined_costs_a_worker_nothing(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """What a store's driver raises while its server is examined is logged for who debugs, and raised nowhere."""
    with caplog.at_level(logging.DEBUG, "onejob"):
        warn_of_store(Settings(store="redis://127.0.0.1:1/0"), cluster.ledger)
    assert [record.levelno for record in caplog.records] == [logging.DEBUG]


def test_a_healthy_installation_has_no_warning(cluster: Cluster) -> None:
    """A worker that is alive leaves `onejob doctor` no warning; it registers its versions and when it started."""
    before = cluster.ledger.read_clock()
    assert names(findings_of(cluster)) - {"late-acks"} == {"no-worker"}
    worker = cluster.worker("-c", "1", "-P", "threads")
    await_(cluster.ledger.workers)
    assert "the ledger's sqlite" not in worker.text
    found = findings_of(cluster)
    assert [finding for finding in found if finding.level.rank > Level.INFO.rank] == []
    assert {finding.subject for finding in found if finding.level is Level.OK} >= {"ledger", "sqlite", "app", "workers"}
    (registered,) = cluster.ledger.workers()
    assert f"celery {version('celery')}" in registered.versions
    assert before < registered.started_at < registered.seen_at


def test_a_queue_that_no_worker_consumes_is_found(cluster: Cluster) -> None:
    """A queue that no live worker consumes is an error of `onejob doctor`, and the answer of `onejob why`."""
    worker = cluster.worker("-c", "1", "-P", "threads", "-Q", "another")
    unheard = cluster.play.delay("unheard", ["return"])
    heard = cluster.play.apply_async(("heard", ["return"]), queue="another", countdown=3600)
    await_(cluster.ledger.workers)
    missing = [finding.problem for finding in findings_of(cluster) if finding.check == "queue-without-worker"]
    assert "jobs of play are sent to celery, which no live worker with the task consumes" in missing
    found = explain(cluster.ledger, unheard.id)
    assert found.stuck is Stuck.QUEUE_NOT_CONSUMED
    assert any(f"consumes the queue celery: {worker.name}@test consumes " in line for line in found.sentences)
    assert explain(cluster.ledger, heard.id).stuck is None


def test_a_worker_writes_its_probe_file_until_it_ends(cluster: Cluster) -> None:
    """A worker is alive and ready by its file, which has its name; frozen it is not; after its end the file is gone."""
    path = cluster.directory / "probe-w1"
    worker = cluster.worker("-c", "1", onejob_probe_file=str(cluster.directory / "probe-%n"), onejob_lease=3)
    await_(lambda: find_fault(path, time.time(), ready=True, max_age=2.0) is None)
    worker.freeze()
    await_(lambda: "has not moved" in str(find_fault(path, time.time(), max_age=2.0)))
    worker.thaw()
    await_(lambda: find_fault(path, time.time(), ready=True, max_age=2.0) is None)
    worker.stop()
    assert not path.exists()


# --- metrics ----------------------------------------------------------------------------------------------------------


CLAIMS, COMPLETED = '["claims_total", "play"]', '["runs_total", "play", "completed"]'
CRASHED = '["runs_total", "play", "crashed"]'
OFTEN, NEVER = {"test_metrics": 0.2}, {"test_metrics": 1e6}


@pytest.mark.parametrize(("pool", "slots"), [("prefork", [2, 5]), ("solo", [1])])
def test_a_worker_registers_how_many_jobs_it_runs_at_once(cluster: Cluster, pool: str, slots: list[int]) -> None:
    """A worker registers what its pool can run, also after `pool_grow`, and not what its command line asks for."""
    cluster.worker("--pool", pool, "-c", "2", **OFTEN)
    await_(lambda: _registered_slots(cluster) == slots[:1])
    if slots[1:]:
        cluster.app.control.pool_grow(slots[1] - slots[0])
    await_(lambda: _registered_slots(cluster) == slots[-1:])


def _registered_slots(cluster: Cluster) -> list[int]:
    return [each.concurrency for each in cluster.ledger.workers()]


@on_every_store("cluster")
def test_counts_of_a_worker_are_stored(cluster: Cluster) -> None:
    """What children have counted is soon in the ledger's totals; the parent counts the crash of one, and its sweeps."""
    cluster.worker("-c", "2", **OFTEN)
    results = [cluster.play.delay(f"k{number}", ["return"]) for number in range(6)]
    for result in results:
        result.get(PATIENCE)
    await_(lambda: cluster.ledger.store.totals().get(COMPLETED) == 6.0)
    assert cluster.ledger.store.totals()[CLAIMS] == 6.0
    cluster.play.delay("dies", ["kill", "return"]).get(PATIENCE)
    await_(lambda: cluster.ledger.store.totals().get(CRASHED) == 1.0)
    await_(lambda: cluster.ledger.store.totals().get('["sweeps_total"]', 0.0) > 0)
    totals = cluster.ledger.store.totals()
    assert totals['["run_seconds", "play", "sum"]'] > 0
    assert '["lease_expiries_total", "play"]' not in totals
    cluster.assert_quiet()


@pytest.mark.parametrize("pool", ["prefork", *further("threads")])
def test_a_worker_that_stops_writes_its_counts(cluster: Cluster, pool: str) -> None:
    """A warm shutdown loses no count, neither of the parent nor of its children, and removes its node."""
    acts, crashed = (["kill", "return"], 1.0) if pool == "prefork" else (["return"], 0.0)
    worker = cluster.worker("--pool", pool, "-c", "2", **NEVER)
    await_(cluster.ledger.store.workers)
    cluster.play.delay("a", acts).get(PATIENCE)
    assert {CLAIMS, COMPLETED, CRASHED}.isdisjoint(cluster.ledger.store.totals())
    worker.stop()
    totals = cluster.ledger.store.totals()
    assert (totals[CLAIMS], totals[COMPLETED], totals.get(CRASHED, 0.0)) == (1.0, 1.0, crashed)
    assert cluster.ledger.store.workers() == []


def test_workers_of_a_host_share_a_port_for_metrics(cluster: Cluster) -> None:
    """One worker of a host serves the ledger's metrics; another one takes the port when that worker has ended."""
    port = free_port()
    first = cluster.worker("-c", "1", onejob_metrics_port=port)
    second = cluster.worker("-c", "1", onejob_metrics_port=port)
    second.await_text(f"the port {port} of onejob_metrics_port is taken")
    cluster.play.delay("a", ["return"]).get(PATIENCE)
    await_(lambda: 'onejob_runs_total{end="completed",task="play"} 1.0' in scrape(port))
    await_(lambda: "onejob_workers 2.0" in scrape(port))
    with pytest.raises(HTTPError, match="404"):
        scrape(port, "/")
    first.stop()
    await_(lambda: "onejob_workers 1.0" in scrape(port))


def test_metrics_that_cannot_be_read_are_an_error_of_the_request(caplog: pytest.LogCaptureFixture) -> None:
    """While the store is away a scrape is 503; an address of another host is refused at the start of the worker."""
    ledger = build_ledger(Settings(store="redis://127.0.0.1:1/0"), metrics_interval=0)
    server = MetricsServer(ledger, "127.0.0.1", port := free_port())
    server.start()
    with pytest.raises(HTTPError, match="503"):
        scrape(port)
    server.stop()
    ledger.close()
    assert "the metrics cannot be read" in caplog.text
    with pytest.raises(ConfigurationError, match=r"onejob_metrics_port='192\.0\.2\.1:\d+' cannot be bound"):
        MetricsServer(ledger, "192.0.2.1", port).start()


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], int]]:
    """Return a way to serve metrics at an address, for two clients at once and one second each: it returns the port."""
    monkeypatch.setattr(metrics, "REQUESTS_AT_ONCE", 2)
    monkeypatch.setattr(metrics, "REQUEST_SECONDS", 1.0)
    ledger = build_ledger(Settings(store=f"sqlite:///{tmp_path / 'l.db'}"), metrics_interval=0)
    with ExitStack() as stack:
        stack.callback(ledger.close)

        def serve(address: str) -> int:
            server = MetricsServer(ledger, address, port := free_port())
            server.start()
            stack.callback(server.stop)
            return port

        yield serve


def test_slow_clients_of_metrics_are_few_and_soon_gone(
    served: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that sends a byte now and then is closed at the deadline; one above the limit of clients soon."""
    monkeypatch.setattr(metrics, "SLOT_SECONDS", 0.01)
    port, before = served("127.0.0.1"), threading.active_count()
    with ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(2)]
        await_(lambda: threading.active_count() == before + 2)
        more = [stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE)) for _ in range(20)]
        assert [each.recv(1) for each in more] == [b""] * 20
        assert threading.active_count() <= before + 2

        def is_closed(client: socket.socket) -> bool:
            try:
                client.sendall(b"G")
                return client.recv(1, socket.MSG_DONTWAIT) == b""
            except BlockingIOError:
                return False
            except ConnectionError:
                return True

        for each in slow:
            await_(partial(is_closed, each))
    await_(lambda: "onejob_workers" in scrape(port))


def test_a_scrape_waits_for_a_thread_that_is_about_to_end(
    served: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that follows the last allowed one at once is answered when a thread has ended, and not refused."""
    monkeypatch.setattr(metrics, "SLOT_SECONDS", PATIENCE)
    port, before = served("127.0.0.1"), threading.active_count()
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        await_(lambda: threading.active_count() == before + 2)
        assert "onejob_workers" in scrape(port)


def test_metrics_on_loopback_have_local_names(served: Callable[[str], int]) -> None:
    """A port that is bound to loopback answers local names only, another one any name; no page of another origin."""
    for address, foreign in (("127.0.0.1", 403), ("0.0.0.0", 200)):  # noqa: S104 - what is tested
        port, sites = served(address), {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
        for headers, status in (
            ({"host": "localhost"}, 200), ({"host": f"127.0.0.1:{port}"}, 200), ({"host": "shop.example"}, foreign),
            ({"host": f"LOCALHOST:{port}"}, 200), ({"host": "localhost.shop.example"}, foreign),
            ({"host": "localhost"} | sites, 403), ({"host": "localhost"} | sites | {"sec-fetch-mode": "navigate"}, 200),
        ):  # fmt: skip
            connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
            connection.request("GET", "/metrics", headers=headers)
            assert connection.getresponse().status == status, (address, headers)
            connection.close()


def scrape(port: int, path: str = "/metrics") -> str:
    """Return what a worker serves; "" while none does."""
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as response:
            return str(response.read().decode())
    except HTTPError:
        raise
    except URLError:
        return ""


@pytest.mark.deep
def test_a_late_heartbeat_is_counted(cluster: Cluster) -> None:
    """A node whose heartbeat is more than half an interval late logs it; a killed one is forgotten after its lease."""
    cluster.use_lease(LEASE)
    worker = cluster.worker("-c", "1", **OFTEN, test_heartbeat=0.4)
    await_(cluster.ledger.store.workers)
    beats = {node.seen_at for node in cluster.ledger.store.workers()}
    await_(lambda: {node.seen_at for node in cluster.ledger.store.workers()} - beats)
    worker.freeze()
    pause_until(time.monotonic() + 1)
    worker.thaw()
    await_(lambda: cluster.ledger.store.totals().get('["heartbeats_late_total"]', 0.0) >= 1.0)
    worker.await_text("event=heartbeat_late node=w1@test")
    worker.sigkill()
    assert [node.name for node in cluster.ledger.store.workers()] == ["w1@test"]
    await_(lambda: cluster.ledger.store.workers() == [])


# --- listeners and logging handlers that raise ------------------------------------------------------------------------


FAILURE = "the observer failed"


def test_a_listener_that_raises_fails_no_operation(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The error of a listener is logged with its event, and the operation returns as without one."""
    ledger = Ledger(
        open_store(f"sqlite:///{tmp_path / 'other.db'}", namespace="onejob"),
        emit=emit_to(Mock(side_effect=OSError(FAILURE))),
    )
    admission = ledger.submit(submission())
    assert ledger.cancel(admission.job.id).state is State.CANCELED
    ledger.close()
    assert [record.exc_info[1].args for record in caplog.records if record.exc_info] == [(FAILURE,)] * 2  # type: ignore[union-attr]
    assert f"job_submitted of job {admission.job.id}" in caplog.text


@provokes(Transition.PUBLISH, because="one submission finds no broker")
def test_logs_that_fail_cost_no_submission(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a logging handler that raises, submissions are published and counted, also without a broker."""
    handler, logger = logging.Handler(), logging.getLogger("onejob")
    away: Any = cluster.another_app(broker_url="redis://127.0.0.1:1/0", onejob_publish_timeout=0.2).tasks["echo"]
    with monkeypatch.context() as patch:
        patch.setattr(handler, "emit", Mock(side_effect=OSError(FAILURE)))
        patch.setattr(logger, "handlers", [handler])
        patch.setattr(logger, "level", logging.DEBUG)
        assert cluster.echo.delay(1).outcome is Outcome.ADMITTED
        assert [each.outcome for each in cluster.echo.submit_many([(1,), (2,)])] == [Outcome.ATTACHED, Outcome.ADMITTED]
        assert away.delay(3).job.id == cluster.echo.delay(3).id
    write_all()
    assert cluster.ledger.store.totals()['["submissions_total", "echo", "admitted"]'] == 3.0
