"""Invalid options raise an error at the task's definition or the worker's start, never during a job."""

import re
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import celery
import pytest
from celery import _state

import onejob
from onejob import State
from onejob.celery.app_state import MASK, app_state_of
from onejob.celery.messages.payload import loads
from onejob.celery.option_declarations import REMOVED
from onejob.celery.submission import plain_tasks
from onejob.config import Settings
from onejob.errors import ConfigurationError, InvalidArgumentsError
from onejob.jobs.durations import DAY
from onejob.jobs.query import Query
from onejob.uniqueness.window import Window
from tests.cases import for_each
from tests.celery.harness import Cluster
from tests.quiet import provokes
from tests.services import PostgresServer
from tests.submissions import row_of, submission_of

_apps: list[celery.Celery] = []


@pytest.fixture(autouse=True)
def closed_apps() -> Iterator[None]:
    """Close the ledgers of the apps of a test."""
    yield
    while _apps:
        app_state_of(_apps.pop()).close()


def app_with(**settings: Any) -> celery.Celery:
    changes = {"broker_url": "memory://", "onejob_store": "sqlite:///unused.db", **settings}
    _apps.append(celery.Celery("defined", changes=changes, set_as_current=False))
    return _apps[-1]


def define(app: celery.Celery, base: type = onejob.Task, **options: Any) -> Any:
    """Define a task on an app, and bind it."""

    @app.task(name="defined", shared=False, base=base, **options)
    def defined(a: int, b: int = 2) -> int:
        return a + b

    app.finalize()
    return app.tasks["defined"]


@pytest.fixture
def app(tmp_path: Path) -> celery.Celery:
    """Return an app with a ledger of its own."""
    return app_with(onejob_store=f"sqlite:///{tmp_path / 'ledger.db'}")


def jobs(app: celery.Celery) -> list[Any]:
    return app_state_of(app).ledger.find(Query())


# --- what is refused ------------------------------------------------------------------------------------------------

WRONG_OPTIONS: dict[str, list[dict[str, Any]]] = {
    "unique_on": [
        *[{"unique_on": value} for value in (["c"], "a", 7)], {"once": {"keys": ["a"]}}, {"heimdall": {"unique": True}},
    ],
    "lease": [{"lease": value} for value in (0, -1, "30", float("nan"))],
    "has a lease": [{"lock_expiry": 60}],
    "permanent_for": [
        {"permanent_for": value} for value in (ValueError, [ValueError], ("ValueError",), (KeyboardInterrupt,))
    ],
    "unique_until": [
        {"unique_until": "begun"}, {"unique_until": None}, {"unique_for": 60, "unique_until": "started"},
        {"on_duplicate": "run_again", "unique_until": "started"},
    ],
    "unique for": [{"unique_for": 86_401}, {"unique_for": "week@UTC"}],
    "unique_for": [
        {"on_duplicate": "run_again", "unique_for": 60},
        *[{"unique_for": value} for value in (0, True, "day", "year@UTC", "day@Nowhere/Land", "day@../../etc/passwd")],
    ],
    "on_duplicate": [{"on_duplicate": "ignore"}],
    "on_duplicate='raise' does that": [{"raise_on_duplicate": True}],
    "max_wait": [{"max_wait": 60}, {"on_duplicate": "replace", "max_wait": 0}],
    "expose of task defined": [{"expose": "yes"}],
    "requires_key of task defined": [{"requires_key": "yes"}],
    "did you mean on_duplicate": [{"on_dupliacte": "raise"}],
    "did you mean unique_on": [{"unque_on": lambda a: a}],
    "did you mean lease": [{"leese": 60}],
    "did you mean requires_key": [{"requires_keys": True}],
    "time_limit='1' is not a number of seconds": [{"time_limit": "1"}],
    "serializer=5 is not the name of a serializer": [{"serializer": 5}],
    "tags='import' is not a list of tags": [{"tags": "import"}],
    "did you mean tags": [{"tag": ["import"]}],
    "onejob_webhook_secrets": [{"webhook_url": "https://hooks.example/"}],
}  # fmt: skip


@for_each("why, options", [(why, options) for why, wrong in WRONG_OPTIONS.items() for options in wrong])
def test_options_that_cannot_work_are_refused(why: str, options: dict[str, Any]) -> None:
    """A task option that cannot work, is misspelt, or is another library's, raises an error at the definition."""
    with pytest.raises(ConfigurationError, match=why):
        define(app_with(), **options)


WRONG_SETTINGS: dict[str, list[dict[str, Any]]] = {
    "onejob_lease": [{"onejob_lease": 0}],
    "onejob_publish_timeout": [{"onejob_publish_timeout": float("inf")}],
    "onejob_shutdown_grace": [{"onejob_shutdown_grace": -1}],
    "onejob_key_retention": [{"onejob_key_retention": 0}],
    "onejob_tombstone_retention": [{"onejob_tombstone_retention": -1}],
    "onejob_namespace": [{"onejob_namespace": "a b"}],
    "the ledger's schema": [{"onejob_namespace": "Shop", "onejob_store": "postgresql://localhost/shop"}],
    "onejob_retention": [
        {"onejob_retention": value}
        for value in (3600, {"completed": 0}, {"failed": "long"}, {"running": 60}, {"done": 60})
    ],
    "onejob_webhook_ports": [{"onejob_webhook_ports": ["443"]}],
    "onejob_broker_acks": [{"onejob_broker_acks": 0}],
    "onejob_metrics_port=.* must be a port number, an address and a port": [
        {"onejob_metrics_port": value}
        for value in (
            True,
            -1,
            65536,
            9100.0,
            "9100",
            ":9100",
            "[]:9100",
            "::1:9100",
            "a b:9100",
            "host:0",
            "host:65536",
            "host:",
            "host:http",
            b"host:9100",
        )
    ],
    "onejob_crash_limit": [{"onejob_crash_limit": value} for value in (0, 2.5, "3", True)],
    "onejob_payload_limit": [{"onejob_payload_limit": 0}],
    "onejob_store": [{"onejob_store": Path("ledger.db")}],
    "onejob_namespace=7": [{"onejob_namespace": 7}],
    "onejob_probe_file": [{"onejob_probe_file": Path("worker")}],
    "onejob_beat_missed": [{"onejob_beat_missed": "some"}],
    "onejob_leese: did you mean onejob_lease": [{"onejob_leese": 60}],
    "did you mean onejob_webhook_secrets": [{"onejob_webhook_secret": []}],
    "there is no setting onejob_x": [{"onejob_x": 1}],
    "ONEJOB_LEASE is not read: write onejob_lease": [{"ONEJOB_LEASE": 60}],
    "CELERY_ONEJOB_LEESE: did you mean onejob_lease": [{"CELERY_ONEJOB_LEESE": 60}],
    "ONEJOB_LEASE is not read: write CELERY_ONEJOB_LEASE": [{"CELERY_ONEJOB_CRASH_LIMIT": 6, "ONEJOB_LEASE": 60}],
}


def configured(settings: dict[str, Any]) -> celery.Celery:
    """Return an app with these settings, which are in a namespace, as with Django, if one of them says so."""
    app = celery.Celery("defined", set_as_current=False)
    namespace = "CELERY" if any(name.startswith("CELERY_") for name in settings) else None
    app.config_from_object(SimpleNamespace(**settings) if namespace else settings, namespace=namespace)
    return app


@for_each("why, settings", [(why, settings) for why, wrong in WRONG_SETTINGS.items() for settings in wrong])
def test_settings_that_cannot_work_are_refused(why: str, settings: dict[str, Any]) -> None:
    """A setting that cannot work or does not exist raises an error that names it when the first task is bound."""
    with pytest.raises(ConfigurationError, match=why):
        define(configured(settings))


REMEDIES = {
    "onejob_heartbeat": "set onejob_lease", "onejob_sweep": "remove it", "onejob_depth_limit": "remove it",
    "onejob_log_jobs": r"logging.getLogger\('onejob.jobs'\).setLevel\(logging.WARNING\)",
    "onejob_log_json": "use onejob.logs.JsonFormatter",
    "onejob_metrics_address": "onejob_metrics_port = '0.0.0.0:9100'",
    "onejob_metrics_interval": "remove it", "onejob_share_old_locks": r"install\(share_old_locks=True\)",
    "onejob_silence": "remove it", "onejob_webhook_schedule": "remove it",
    "onejob_webhook_source": "set onejob_namespace",
}  # fmt: skip
"""What to do in place of each setting that was removed."""


@for_each("name, remedy", REMEDIES.items())
def test_a_removed_setting_is_refused_with_what_to_do(name: str, remedy: str) -> None:
    """A setting that was removed is refused in one line that says what to do, also in a namespace or misspelt."""
    assert REMOVED.keys() == REMEDIES.keys()
    misspelt = name[:-3] + name[-2:]
    for given, line in (
        (name, f"there is no setting {name}: .*{remedy}"),
        (f"CELERY_{name.upper()}", f"there is no setting CELERY_{name.upper()}: .*{remedy}"),
        (misspelt, f"there is no setting {misspelt}, and {name} is none either: .*{remedy}"),
    ):
        with pytest.raises(ConfigurationError, match=line) as refused:
            define(configured({given: 1}))
        assert "\n" not in str(refused.value)


@for_each("given, place", [
    (0, None), (9100, ("127.0.0.1", 9100)), ("0.0.0.0:9100", ("0.0.0.0", 9100)),  # noqa: S104 - what is tested
    ("[::1]:9100", ("::1", 9100)), ("metrics.internal:65535", ("metrics.internal", 65535)),
])  # fmt: skip
def test_the_port_of_metrics_has_an_address(given: int | str, place: tuple[str, int] | None) -> None:
    """Metrics are served on loopback, unless the setting has an address before its port."""
    assert Settings(metrics_port=given).metrics_place == place


def test_settings_of_another_application_are_not_read() -> None:
    """In a namespace the settings without its prefix belong to others."""
    assert define(configured({"CELERY_ONEJOB_LEASE": 60, "ONEJOB_TITLE": "another's"}))._onejob.lease == 60


@for_each(
    "options, hint",
    [
        ({"idempotencykey": "a"}, "did you mean idempotency_key"),
        ({"webhook_ur": "https://shop.example"}, "did you mean webhook_url"),
        ({"unique_for": 5}, r"set it in @app.task"),
        ({"lock_expiry": 3}, "another library's"),
        ({"leese": 3}, "did you mean lease"),
        ({"router": object()}, "router=<object .* is not kept"), ({"connection": 5}, "connection=5 is not kept"),
    ],
)  # fmt: skip
def test_misspelt_options_of_a_submission_are_refused(app: celery.Celery, options: dict[str, Any], hint: str) -> None:
    """An option of a submission that is misspelt raises an error before anything is stored."""
    task: Any = app.tasks.get("defined") or define(app)
    calls: list[Any] = [lambda: task.apply_async((1,), **options), lambda: task.submit_many([(1,)], **options)]
    calls.append(lambda: submission_of(task, {"a": 1}, source="http", **options))
    for call in calls:
        with pytest.raises(InvalidArgumentsError, match=hint):
            call()
    assert jobs(app) == []


@for_each(
    "name, value",
    [
        *[("priority", value) for value in ("high", -1, 256, 1.5, True, [1])],
        *[("retries", value) for value in ("x", -1, True, 2**31)],
        *[(name, value) for name in ("countdown", "eta", "expires") for value in ("tomorrow", [1], "5", True)],
        ("eta", "in an hour"), ("eta", 60), ("eta", 60.0), ("countdown", datetime(2030, 1, 1)),
        ("queue", 5), ("headers", "x"), ("routing_key", 1), ("exchange", 1), ("serializer", 1),
        *[("tags", value) for value in ("import", [1], [""], ["a" * 65], ["a\tb"], ["a "], {"a": 1}, [*"abcdefghijk"])],
        ("time_limit", "1"), ("soft_time_limit", True),
        *[("delivery_mode", value) for value in ("weird", 7, True, 2.0)],
        ("task_id", 5), ("task_id", ""), ("task_id", uuid.uuid4()), ("stamped_headers", ["tenant"]),
    ],
)  # fmt: skip
def test_a_value_that_no_message_can_have_is_refused_by_name(app: celery.Celery, name: str, value: object) -> None:
    """A value with which no message could be sent, or no job stored, is refused by name, also by an eager call."""
    task: Any = app.tasks.get("defined") or define(app)
    for is_eager in (False, True):
        app.conf.task_always_eager = is_eager
        with pytest.raises(InvalidArgumentsError, match=f"^{name}={re.escape(repr(value))} is "):
            task.apply_async((1,), **{name: value})
    app.conf.task_always_eager = False
    assert jobs(app) == []


def test_an_id_is_as_long_as_every_store_can_signal(app: celery.Celery) -> None:
    """A task id has at most 255 characters, as in the HTTP API: PostgreSQL cannot signal the end of a longer one."""
    task = define(app)
    assert task.apply_async((1,), task_id="x" * 255).id == "x" * 255
    with pytest.raises(InvalidArgumentsError, match="at most 255 characters"):
        task.apply_async((2,), task_id="x" * 256)


@for_each("options", [{"unque_on": ["a"]}, {"raise_on_duplicate": True}, {"lease": -1}])
def test_each_call_of_a_refused_definition_fails(app: celery.Celery, options: dict[str, Any]) -> None:
    """A task with an option that does not exist or cannot work is never submitted, however often it is called."""
    decorate: Any = app.task
    task = decorate(_rest, name=f"refused-{[*options]}", shared=False, base=onejob.Task, **options)
    for _ in range(3):
        with pytest.raises(ConfigurationError, match="refused-"):
            task.delay(1)
    assert jobs(app) == []


class Fetch(onejob.Task):
    """A task whose instances have names of their own."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, number: int) -> None: ...


class Plain(onejob.Task):
    """A task whose bodies get no instance."""

    name = "plain"

    @staticmethod
    def run(number: int) -> None: ...


def test_a_class_is_one_task(app: celery.Celery) -> None:
    """Instances of one class with names of their own would be one task, and are refused; `run` may be static."""
    other: Any = app_with(onejob_store=app.conf.onejob_store)
    for name in ("fetch.a", "fetch.b"):
        with pytest.raises(ConfigurationError, match=f"task {name} has its name from an instance"):
            other.register_task(Fetch(name)).delay(1)
    assert row_of(other.register_task(Plain()).delay(1)).payload.count("[1]") == 1
    assert [job.task for job in jobs(app)] == ["plain"]


def test_what_could_not_run_is_refused_before_it_is_stored(app: celery.Celery) -> None:
    """A soft time limit beyond the hard one, and the error of another task of the app, leave no job."""
    task = define(app, time_limit=1)
    with pytest.raises(ValueError, match="less than or equal to time_limit, not 2 and 1"):
        task.apply_async((1,), soft_time_limit=2)
    other: Any = app_with(onejob_store=app.conf.onejob_store).task
    good = other(_rest, name="good", shared=False, base=onejob.Task)
    other(_rest, name="bad", shared=False, base=onejob.Task, lease=-1)
    with pytest.raises(ConfigurationError, match="bad"):
        good.delay(1)
    assert jobs(app) == []


def _rest(*rest: int) -> None: ...


def _keywords(**rest: int) -> None: ...


def _positional(rest: int, /) -> None: ...


@for_each("body", [_rest, _keywords, _positional])
def test_an_exposed_task_names_its_arguments(body: Any) -> None:
    """What cannot be given by name cannot be checked, so an exposed task that takes it is refused; others may."""
    app = app_with()
    decorate: Any = app.task  # the published types know no task that a base class gives options
    decorate(name="closed", shared=False, base=onejob.Task)(body)
    app.finalize()
    with pytest.raises(ConfigurationError, match="task open is exposed"):
        decorate(name="open", shared=False, lazy=False, base=onejob.Task, expose=True)(body)


def test_a_webhook_that_cannot_be_sent_is_refused() -> None:
    """A task whose webhook could not be sent is refused."""
    app = app_with(onejob_webhook_secrets=["whsec_" + "A" * 40])
    with pytest.raises(ConfigurationError, match="https on port 443"):
        define(app, webhook_url="http://hooks.example/")


def test_the_task_name_of_webhooks_is_reserved() -> None:
    """No task can have the reserved name of webhook jobs."""
    app = app_with()
    decorate: Any = app.task
    decorate(_rest, name="onejob.webhook", shared=False, base=onejob.Task)
    with pytest.raises(ConfigurationError, match="reserved task name"):
        app.finalize()


@provokes(logs=["the worker cannot start"], because="the ledger or the broker is wrong")
def test_a_worker_that_cannot_work_does_not_start(cluster: Cluster, postgres_server: PostgresServer) -> None:
    """A worker without a reachable store, a ledger in it, or a broker of its own says what to do, and exits."""
    settings: dict[str, dict[str, Any]] = {
        "nowhere": {"onejob_store": f"sqlite:///{cluster.directory / 'nowhere' / 'l.db'}"},
        "migrate up": {"onejob_store": postgres_server.url, "onejob_namespace": "not_there"},
        "--pool=threads or --pool=solo": {"broker_url": "memory://", "result_backend": None},
    }
    workers = {hint: cluster.start("-c", "1", **each) for hint, each in settings.items()}
    for hint, worker in workers.items():
        worker.await_end()
        assert hint in worker.text
        assert "ready." not in worker.text
    assert "Traceback" not in workers["migrate up"].text


# --- what is allowed ------------------------------------------------------------------------------------------------


def test_attributes_of_a_class_are_options_or_the_users_own(app: celery.Celery) -> None:
    """A misspelt attribute of a task's class, or of its bases, is refused; what is like no option is the user's."""

    class Defaults:
        on_duplicat = "raise"

    class Base(Defaults, onejob.Task):
        abstract = True

    class Method(onejob.Task):
        abstract = True

        def leases(self) -> None:
            """Do what the user likes."""

        @property
        def unique_un(self) -> str:
            return "the user's"

    with pytest.raises(ConfigurationError, match="on_duplicat: did you mean on_duplicate"):
        define(app_with(), Base)
    own = {"release": "1.2", "owner": "billing", "unique": True, "key": "a", "rate_limit": 3, "expires": 9, "type": "x"}
    task = define(app, Method, **own)
    assert {name: getattr(task, name) for name in own} == own
    assert task.unique_un == "the user's"
    signature = task.s(1)
    signature.stamp(mtask_id="1234", once="a")  # a stamp of a canvas may be named nearly as an option is
    assert loads(row_of(signature.apply_async()).options)["mtask_id"] == "1234"


def test_calls_are_not_checked_without_typing(app: celery.Celery) -> None:
    """With `typing=False` a call that the body does not take is a job, equal to the same call, and fails in its run."""
    task = define(app, typing=False, unique_on=["a"])
    first, same, other, right = task.delay(b=1), task.delay(b=1), task.delay(b=2), task.delay(1)
    assert first.id == same.id
    assert len({first.id, other.id, right.id}) == 3


@for_each(
    "settings, store",
    [
        ({"broker_url": "redis://broker/1"}, "redis://broker/1"),
        ({"broker_url": "redis://broker/1", "result_backend": "redis://results/2"}, "redis://results/2"),
        ({"broker_url": "amqp://broker", "result_backend": "redis://results/2"}, "redis://results/2"),
        ({"broker_url": "redis://broker/1", "onejob_store": "sqlite:///x.db"}, "sqlite:///x.db"),
        ({"broker_url": "rediss://user:p%40ss@broker/1"}, "rediss://user:p%40ss@broker/1"),
        ({"broker_url": "memory://"}, None),
    ],
)
def test_the_store_is_found(settings: dict[str, Any], store: str | None) -> None:
    """Without a setting of its own the ledger is in the result backend, or else in the broker, or an error."""
    app = app_with(**{"onejob_store": None} | settings)
    if store is not None:
        assert app_state_of(app).settings.store == store
        return
    with pytest.raises(ConfigurationError, match="onejob_store"):
        define(app).delay(1)


def test_a_class_is_a_task_too(app: celery.Celery) -> None:
    """A registered class takes its options from its attributes; nameless ones share no identity."""

    class Sum(onejob.Task):
        name = "sum"
        unique_on = ("a",)

        def run(self, a: int, b: int = 2) -> int:
            return a + b

    task: Any = app.register_task(Sum())
    first, second = task.apply_async((1, 2), countdown=60), task.apply_async((1, 3), countdown=60)
    assert (first.id, task(1, 2)) == (second.id, 3)

    class First(onejob.Task):
        def run(self, a: int) -> None: ...

    class Second(First): ...

    tasks: list[Any] = [app.register_task(each()) for each in (First, Second)]
    one, two = (each._onejob.identifier.identity for each in tasks)
    assert one((1,), {}) != two((1,), {})


def test_a_task_that_is_being_bound_has_its_options() -> None:
    """A thread that uses a task while another one still binds it gets the options of its definition."""
    seen = []

    class Early(onejob.Task):
        name = "early"
        on_duplicate = "raise"
        unique_for = 60

        @classmethod
        def on_bound(cls, app: celery.Celery) -> None:
            seen.append(cls()._onejob)
            super().on_bound(app)

        def run(self) -> None: ...

    registered: Any = app_with().register_task(Early())
    bound = registered._onejob
    assert bound.conflict_policy.rejects
    assert bound.window == Window(seconds=60)
    assert [replace(early, identifier=bound.identifier) for early in seen] == [bound]


def test_a_task_class_belongs_to_its_user() -> None:
    """Besides Celery's, a task class has as attributes our documented options, seven methods and private names."""
    ours = {name for name in {*dir(onejob.Task)} - {*dir(celery.Task)} if not name.startswith("_")}
    options = set(re.findall(r"^ *- `(\w+)`", str(onejob.Task.__doc__), re.MULTILINE))
    coroutines = {"asubmit", "aapply_async", "asubmit_many"}
    assert ours == options | coroutines | {"submit", "submit_many", "delay_on_commit", "apply_async_on_commit"}


def test_retention_is_a_setting(app: celery.Celery) -> None:
    """What is set for one final state, for purged jobs, or for a task's lease holds, and all else has its default."""
    app.conf.update(onejob_retention={"failed": 60}, onejob_tombstone_retention=0)
    settings = app_state_of(app).ledger.settings
    assert settings.retention == {State.COMPLETED: DAY, State.CANCELED: DAY, State.FAILED: 60}
    assert (settings.tombstone_retention, app_state_of(app_with()).settings.tombstone_retention) == (0, 7 * DAY)
    assert row_of(define(app, lease=31).delay(1)).lease == 31


def test_a_worker_without_onejob_tasks_needs_no_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """An app of plain Celery tasks starts no heartbeat and no sweeper: the first onejob task installs the step."""
    monkeypatch.setattr(celery._state, "_on_app_finalizers", set())  # tasks that other tests share
    app = app_with()
    decorate: Any = app.task
    decorate(_rest, name="plain-only", shared=False)
    app.finalize()
    assert [step for step in app.steps["worker"] if "onejob" in str(step)] == []
    define(app)
    assert len([step for step in app.steps["worker"] if "onejob" in str(step)]) == 1


PASSWORD = "correct-horse"  # noqa: S105 - of no server


@for_each("name, value", [
    ("onejob_store", f"postgresql://app:{PASSWORD}@db/ledger"), ("ONEJOB_STORE", f"redis://:{PASSWORD}@db/0"),
    ("onejob_webhook_secrets", [PASSWORD]), ("broker_url", f"redis://:{PASSWORD}@db/0"),
    ("onejob_webhook_submitter_secrets", {"shop": [PASSWORD]}),
])  # fmt: skip
def test_humanize_shows_no_secret(name: str, value: object) -> None:
    """`app.conf.humanize()` hides every setting with a password or a secret, and shows the others as they are."""
    app = celery.Celery("shop", set_as_current=False)
    app.conf.onejob_namespace = "shop"
    assert MASK not in app.conf.humanize()
    app.conf[name] = value
    text = app.conf.humanize()
    assert name in text
    assert PASSWORD not in text
    assert "onejob_namespace: 'shop'" in text


# --- options of a task that is not ours -------------------------------------------------------------------------------


def run_nothing() -> None:
    """The body of a task that is only defined."""


class OtherLibrary(celery.Task[..., Any]):
    abstract = True
    unique_on: Any = None


class Digest(celery.Task[..., Any]):
    name = "digest"
    unique_until = "started"
    run = staticmethod(run_nothing)


class Tagged(celery.Task[..., Any]):
    abstract = True
    tags = ("mine",)

    def unique_for(self) -> int:
        """Return what only this class means by the name."""
        return 1


@for_each("options, found", [
    ({"unique_on": ["a"], "on_duplicate": "raise"}, "unique_on, on_duplicate"),
    ({"unique_onn": ["a"], "expose": True}, "unique_onn, expose"),
    ({"unique_for": 60, "max_retries": 3, "acks_late": True, "rate_limit": "1/s"}, "unique_for"),
    ({"max_retries": 3, "acks_late": True, "autoretry_for": (ValueError,), "typing": False}, ""),
    ({"tags": ["mine"], "schedule": 5}, ""),
    ({"base": OtherLibrary, "unique_on": ["a"]}, ""),
    ({"base": Tagged}, ""),
    ({"base": onejob.Task, "unique_on": []}, ""),
    ({"unique_until": "finished"}, ""),
])  # fmt: skip
@pytest.mark.parametrize("is_shared", [False, True])
def test_a_forgotten_base_is_warned_of(
    options: dict[str, Any], found: str, is_shared: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Finalizing an app warns, once, of a task of another class with options of `onejob.Task`; of Celery's, never."""
    caplog.clear()
    app = celery.Celery("shop", set_as_current=False)
    app.task(base=onejob.Task, name="good", shared=False)(run_nothing)
    finalizers: set[Any] = vars(_state)["_on_app_finalizers"]
    before = finalizers.copy()
    define: Any = celery.shared_task if is_shared else partial(app.task, shared=False)
    define(name="report", **options)(run_nothing)
    app.finalize()
    at_once = len(caplog.records)
    plain_tasks.warn_of_plain_tasks(app)
    finalizers.intersection_update(before)
    expected = [f"task report has {found}, and is not of class onejob.Task"] if found else []
    assert [record.getMessage().partition(": ")[0] for record in caplog.records] == expected
    assert at_once == len(expected)
    assert all(plain_tasks.REMEDY in record.getMessage() for record in caplog.records)


def test_a_forgotten_base_of_a_class_or_a_late_task_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A worker warns, at its start, of what is defined after the app was finalized; of the class `app.Task`, none."""
    app: Any = celery.Celery("shop", set_as_current=False)
    app.task(name="early", shared=False, unique_on=[])(run_nothing)
    app.Task = onejob.Task
    app.register_task(Digest())  # which finalizes the app before
    app.task(name="late", shared=False, base=celery.Task, unique_on=[])(run_nothing)
    assert not caplog.records
    plain_tasks.warn_of_plain_tasks(app)
    warned = [record.getMessage().partition(",")[0] for record in caplog.records]
    assert warned == ["task digest has unique_until", "task late has unique_on"]
