"""Invalid options raise an error at the task's definition or the worker's start, never during a job."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import celery
import pytest

import onejob
from onejob import ConfigurationError, InvalidArgumentsError, State, errors
from onejob.celery.app_state import app_state_of
from onejob.celery.message import loads
from onejob.celery.options import options_of
from onejob.celery.submission import prepare_submission
from onejob.jobs.policy import DAY
from onejob.jobs.records import Query
from onejob.uniqueness.window import Window
from tests.cases import for_each
from tests.quiet import provokes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.celery.harness import House
    from tests.services import PostgresServer


_apps: list[celery.Celery] = []


@pytest.fixture(autouse=True)
def closed_apps() -> Iterator[None]:
    """Close the ledgers of the apps of a test."""
    yield
    while _apps:
        app_state_of(_apps.pop()).close()


def app_with(**settings: Any) -> celery.Celery:
    """Return an app with settings."""
    _apps.append(celery.Celery("defined", changes={"broker_url": "memory://", **settings}, set_as_current=False))
    return _apps[-1]


def define(app: celery.Celery, **options: Any) -> Any:
    """Define a task on an app, and bind it."""

    @app.task(name="defined", shared=False, base=onejob.Task, **options)
    def defined(a: int, b: int = 2) -> int:
        return a + b

    app.finalize()
    return app.tasks["defined"]


WRONG_OPTIONS: dict[str, list[dict[str, Any]]] = {
    "unique_on": [{"unique_on": ["c"]}, {"unique_on": "a"}, {"unique_on": 7}],
    "lease": [{"lease": value} for value in (0, -1, "30", float("nan"), 19.9)],
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
        *[{"unique_for": value} for value in (0, -1, float("inf"), True, "day", "year@UTC")],
        *[{"unique_for": f"day@{zone}"} for zone in ("Nowhere/Land", "../../etc/passwd")],
    ],
    "on_duplicate": [{"on_duplicate": "ignore"}],
    "max_wait": [
        {"max_wait": 60}, {"on_duplicate": "run_again", "max_wait": 60},
        *[{"on_duplicate": "replace", "max_wait": value} for value in (0, "long")],
    ],
    "expose of task defined": [{"expose": value} for value in (1, "yes", None)],
    "requires_key of task defined": [{"requires_key": value} for value in (1, "yes", None)],
}  # fmt: skip


@for_each("name, options", [(name, options) for name, wrong in WRONG_OPTIONS.items() for options in wrong])
def test_options_that_cannot_work_are_refused(name: str, options: dict[str, Any]) -> None:
    """A task option that cannot work raises an error that names it when the task is defined."""
    with pytest.raises(ConfigurationError, match=name):
        define(app_with(), **options)


@for_each(
    "settings, name",
    [
        ({"onejob_lease": 5, "onejob_heartbeat": 3}, "lease"),
        ({"onejob_lease": 0}, "onejob_lease"),
        ({"onejob_heartbeat": "often"}, "onejob_heartbeat"),
        ({"onejob_sweep": -1}, "onejob_sweep"),
        ({"onejob_publish_timeout": float("inf")}, "onejob_publish_timeout"),
        ({"onejob_shutdown_grace": -1}, "onejob_shutdown_grace"),
        ({"onejob_key_retention": 0}, "onejob_key_retention"),
        ({"onejob_tombstone_retention": -1}, "onejob_tombstone_retention"),
        ({"onejob_namespace": "a b"}, "onejob_namespace"),
        ({"onejob_namespace": "Shop", "onejob_store": "postgresql://localhost/shop"}, "the ledger's schema"),
        *[
            ({"onejob_retention": value}, "onejob_retention")
            for value in (3600, {"completed": 0}, {"failed": "long"}, {"running": 60}, {"done": 60})
        ],
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], name: str) -> None:
    """A setting that cannot work raises an error that names it when the first task is bound."""
    with pytest.raises(ConfigurationError, match=name):
        define(app_with(**settings))


@for_each(
    "options, hint",
    [
        ({"on_dupliacte": "raise"}, "did you mean on_duplicate"),
        ({"unque_on": lambda a: a}, "did you mean unique_on"),
        ({"leese": 60}, "did you mean lease"),
        ({"requires_keys": True}, "did you mean requires_key"),
        ({"raise_on_duplicate": True}, "on_duplicate='raise' does that"),
        ({"lock_expiry": 60}, "has a lease"),
        ({"once": {"keys": ["a"]}}, "unique_on"),
        ({"heimdall": {"unique": True}}, "unique_on"),
    ],
)
def test_misspelt_and_foreign_options_are_refused(options: dict[str, Any], hint: str) -> None:
    """A task option that is misspelt, or another library's, raises an error that says what to write."""
    with pytest.raises(ConfigurationError, match=hint):
        define(app_with(), **options)


def test_options_of_a_class_are_checked() -> None:
    """A misspelt attribute of a task's class, or of its bases, raises an error, and a method is never an option."""

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
        define_with(app_with(), Base)
    assert define_with(app_with(), Method).unique_un == "the user's"


def define_with(app: celery.Celery, base: type) -> Any:
    """Define a task of a class."""

    @app.task(name="defined", shared=False, base=base)
    def defined() -> None:
        """Do nothing."""

    app.finalize()
    return app.tasks["defined"]


def test_other_attributes_are_the_users_own() -> None:
    """Options of Celery, and attributes that are like none of ours, are allowed."""
    own = {"release": "1.2", "owner": "billing", "unique": True, "key": "a", "rate_limit": 3, "expires": 9}
    task = define(app_with(), **own)
    assert {name: getattr(task, name) for name in own} == own


@for_each(
    "settings, hint",
    [
        ({"onejob_leese": 60}, "onejob_leese: did you mean onejob_lease"),
        ({"onejob_webhook_secret": []}, "did you mean onejob_webhook_secrets"),
        ({"onejob_x": 1}, "there is no setting onejob_x"),
        ({"ONEJOB_LEASE": 60}, "ONEJOB_LEASE is not read: write onejob_lease"),
    ],
)
def test_unknown_settings_are_refused(settings: dict[str, Any], hint: str) -> None:
    """A setting that does not exist, or that is not read, raises an error with the nearest name."""
    app = celery.Celery("defined", set_as_current=False)
    app.config_from_object(settings)
    with pytest.raises(ConfigurationError, match=hint):
        define(app)


@for_each(
    "settings, hint",
    [
        ({"CELERY_ONEJOB_LEESE": 60}, "CELERY_ONEJOB_LEESE: did you mean onejob_lease"),
        ({"ONEJOB_LEASE": 60}, "ONEJOB_LEASE is not read: write CELERY_ONEJOB_LEASE"),
        ({"CELERY_ONEJOB_LEASE": 60, "ONEJOB_TITLE": "of another application"}, None),
    ],
)
def test_unknown_settings_of_a_namespace_are_refused(settings: dict[str, Any], hint: str | None) -> None:
    """In a namespace, as with Django, unknown settings raise an error, and other settings are not read."""
    app = celery.Celery("defined", set_as_current=False)
    app.config_from_object(SimpleNamespace(**settings), namespace="CELERY")
    if hint is None:
        assert options_of(define(app)).lease == 60
        return
    with pytest.raises(ConfigurationError, match=hint):
        define(app)


@for_each(
    "options, hint",
    [
        ({"idempotencykey": "a"}, "did you mean idempotency_key"),
        ({"webhook_ur": "https://shop.example"}, "did you mean webhook_url"),
        ({"on_duplicate": "raise"}, r"set it in @app.task"),
        ({"lock_expiry": 3}, "another library's"),
        ({"leese": 3}, "did you mean lease"),
    ],
)
def test_misspelt_options_of_a_submission_are_refused(tmp_path: Path, options: dict[str, Any], hint: str) -> None:
    """An option of a submission that is misspelt raises an error before anything is stored."""
    task = define(app_with(onejob_store=f"sqlite:///{tmp_path / 'l.db'}"))
    with pytest.raises(InvalidArgumentsError, match=hint):
        task.apply_async((1,), **options)
    with pytest.raises(InvalidArgumentsError, match=hint):
        task.submit_many([(1,)], **options)
    if "on_duplicate" not in options:  # which another entry point may override
        with pytest.raises(InvalidArgumentsError, match=hint):
            prepare_submission(task, {"a": 1}, source="http", **options)
    assert app_state_of(task.app).ledger.find(Query()) == []


def test_stamps_have_any_name(tmp_path: Path) -> None:
    """A stamp of a canvas may be named nearly as an option is."""
    task = define(app_with(onejob_store=f"sqlite:///{tmp_path / 'l.db'}"))
    signature = task.s(1)
    signature.stamp(mtask_id="1234", once="a")
    assert loads(signature.apply_async().job.options)["mtask_id"] == "1234"


def test_a_soft_time_limit_beyond_the_hard_one_is_refused(tmp_path: Path) -> None:
    """A soft time limit that a run could never reach is a `ValueError` of the submission, which stores nothing."""
    task = define(app_with(onejob_store=f"sqlite:///{tmp_path / 'l.db'}"), time_limit=1)
    with pytest.raises(ValueError, match="less than or equal to time_limit, not 2 and 1"):
        task.apply_async((1,), soft_time_limit=2)
    assert app_state_of(task.app).ledger.find(Query()) == []


def test_calls_are_not_checked_without_typing(tmp_path: Path) -> None:
    """With `typing=False` a call that the body does not take is a job, equal to the same call, and fails in its run."""
    task = define(app_with(onejob_store=f"sqlite:///{tmp_path / 'l.db'}"), typing=False, unique_on=["a"])
    first, same, other, right = task.delay(b=1), task.delay(b=1), task.delay(b=2), task.delay(1)
    assert first.id == same.id
    assert len({first.id, other.id, right.id}) == 3


def test_a_misconfigured_task_fails_no_stored_submission(tmp_path: Path) -> None:
    """The error of another task of the app is raised before a job is stored."""
    app = app_with(onejob_store=f"sqlite:///{tmp_path / 'l.db'}")

    @app.task(name="good", shared=False, base=onejob.Task)
    def good() -> None:
        """Do nothing."""

    @app.task(name="bad", shared=False, base=onejob.Task, lease=-1)
    def bad() -> None:
        """Never run."""

    with pytest.raises(ConfigurationError, match="bad"):
        good.delay()
    assert app_state_of(app).ledger.find(Query()) == []


def test_an_app_without_a_store_is_refused(tmp_path: Path) -> None:
    """Without a store in the settings, the result backend or the broker, the first submission raises an error."""
    task = define(app_with())
    with pytest.raises(ConfigurationError, match="onejob_store"):
        task.delay(1)
    assert app_state_of(define(app_with(onejob_store=f"sqlite:///{tmp_path / 'l.db'}")).app).ledger is not None


@for_each(
    "settings, store",
    [
        ({"broker_url": "redis://broker/1"}, "redis://broker/1"),
        ({"broker_url": "redis://broker/1", "result_backend": "redis://results/2"}, "redis://results/2"),
        ({"broker_url": "amqp://broker", "result_backend": "redis://results/2"}, "redis://results/2"),
        ({"broker_url": "redis://broker/1", "onejob_store": "sqlite:///x.db"}, "sqlite:///x.db"),
        ({"broker_url": "rediss://user:p%40ss@broker/1"}, "rediss://user:p%40ss@broker/1"),
    ],
)
def test_the_store_is_found(settings: dict[str, Any], store: str) -> None:
    """Without a setting of its own the ledger is in the result backend, or else in the broker, by its whole URL."""
    assert app_state_of(app_with(**settings)).settings.store == store


def test_a_class_is_a_task_too(tmp_path: Path) -> None:
    """A registered class takes its options from its attributes; nameless ones and decorators share no identity."""

    class Sum(onejob.Task):
        name = "sum"
        unique_on = ("a",)

        def run(self, a: int, b: int = 2) -> int:
            return a + b

    app = app_with(onejob_store=f"sqlite:///{tmp_path / 'l.db'}")
    task: Any = app.register_task(Sum())
    first, second = task.apply_async((1, 2), countdown=60), task.apply_async((1, 3), countdown=60)
    assert first.id == second.id
    assert task(1, 2) == 3

    class First(onejob.Task):
        def run(self, a: int) -> None: ...

    class Second(First): ...

    one, two = (options_of(app.register_task(each())).identifier.identity for each in (First, Second))
    assert one((1,), {}) != two((1,), {})

    @app.task(name="bound", shared=False, base=onejob.Task, bind=True, unique_on=["b"], autoretry_for=(ValueError,))
    def bound(self: Any, a: int, b: int = 2) -> None: ...

    identity = options_of(cast("Any", app.tasks["bound"])).identifier.identity
    assert identity((1,), {}) == identity((5, 2), {}) == identity((), {"a": 3, "b": 2})
    assert identity((1, 3), {}) != identity((1,), {})


def test_a_task_that_is_being_bound_has_its_options() -> None:
    """A thread that uses a task while another one still binds it gets the options of its definition."""
    seen = []

    class Early(onejob.Task):
        name = "early"
        on_duplicate = "raise"
        unique_for = 60

        @classmethod
        def on_bound(cls, app: celery.Celery) -> None:
            seen.append(options_of(cls()))
            super().on_bound(app)

        def run(self) -> None: ...

    bound = options_of(app_with(onejob_store="sqlite:///unused.db").register_task(Early()))
    assert (bound.conflict_policy.rejects, bound.window) == (True, Window(seconds=60))
    assert [replace(early, identifier=bound.identifier) for early in seen] == [bound]


def test_a_task_class_belongs_to_its_user() -> None:
    """Besides Celery's, a task class has as attributes our documented options, seven methods and private names."""
    ours = {name for name in vars(onejob.Task) if not hasattr(celery.Task, name) and not name.startswith("__")}
    ours = {name for name in ours if not name.startswith("_onejob")}
    options = set(re.findall(r"^ *- `(\w+)`", str(onejob.Task.__doc__), re.MULTILINE))
    coroutines = {"asubmit", "aapply_async", "asubmit_many"}
    assert ours == options | coroutines | {"submit", "submit_many", "delay_on_commit", "apply_async_on_commit"}


@for_each("name", [name for name, value in vars(errors).items() if isinstance(value, type)])
def test_every_exception_crosses_a_process(name: str) -> None:
    """Every exception of onejob pickles, with its message: none may end a worker's parent."""
    kind = getattr(errors, name)
    arguments = {
        "JobNotFoundError": ("id",),
        "JobPurgedError": ("id", "completed", 5.25, 7.5),
        "StaleTokenError": ("id", 7, "running"),
        "DuplicateJobError": ("id", "running", "add"),
        "KeyRequiredError": ("add",),
        "KeyReuseMismatchError": ("key", "id"),
        "IdentityHeldError": ("id", "other", "queued"),
        "NoDeadLetterError": ("id", "running"),
        "NotWaitingError": ("id", "queued", "other"),
        "JobEndedError": ("id", "completed"),
        "JobNotEndedError": ("id", "running"),
        "UniquenessWindowError": ("id", "completed", "2026-01-31T12:00:00Z"),
        "NotResubmittableError": ("id", "it is a member of a canvas"),
        "QuotaExceededError": ("quota", "20/day", 60, "2026-01-31T12:00:00Z"),
        "TaskIdReusedError": ("id", "mul", "add"),
        "TooManyWebhooksError": ("id", 10),
        "JobFailedError": ("id", "ValueError", "no"),
    }.get(name, ("words",))
    error = kind(*arguments)
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (type(copy), str(copy), copy.args) == (kind, str(error), error.args)


def test_retention_is_a_setting(tmp_path: Path) -> None:
    """What is set for one final state, for purged jobs, or for a task's lease holds, and all else has its default."""
    store = {"onejob_store": f"sqlite:///{tmp_path / 'ledger.db'}"}
    app = app_with(**store, onejob_retention={"failed": 60}, onejob_tombstone_retention=0)
    policy = app_state_of(app).ledger.policy
    assert policy.retention == {State.COMPLETED: DAY, State.CANCELED: DAY, State.FAILED: 60}
    assert policy.tombstone_retention == 0
    assert app_state_of(app_with()).settings.tombstone_retention == 7 * DAY
    assert define(app, lease=31).delay(1).job.lease == 31


@provokes(logs=["the worker cannot start"], because="the ledger or the broker is wrong")
def test_a_worker_that_cannot_work_does_not_start(house: House, postgres_server: PostgresServer) -> None:
    """A worker without a reachable store, a ledger in it, or a broker of its own says what to do, and exits."""
    settings: dict[str, dict[str, Any]] = {
        "nowhere": {"onejob_store": f"sqlite:///{house.directory / 'nowhere' / 'l.db'}"},
        "migrate up": {"onejob_store": postgres_server.url, "onejob_namespace": "not_there"},
        "--pool=threads or --pool=solo": {"broker_url": "memory://", "result_backend": None},
    }
    workers = {hint: house.start("-c", "1", **each) for hint, each in settings.items()}
    for hint, worker in workers.items():
        worker.await_end()
        assert hint in worker.text
        assert "ready." not in worker.text
    assert "Traceback" not in workers["migrate up"].text


def test_a_worker_without_onejob_tasks_needs_no_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """An app of plain Celery tasks starts no heartbeat and no sweeper: the first onejob task installs the step."""
    monkeypatch.setattr(celery._state, "_on_app_finalizers", set())  # tasks that other tests share
    app = app_with()

    @app.task(name="plain-only", shared=False)
    def plain() -> None: ...

    app.finalize()
    assert [step for step in app.steps["worker"] if "onejob" in str(step)] == []
    define(app)
    assert len([step for step in app.steps["worker"] if "onejob" in str(step)]) == 1


def _rest(*rest: int) -> None: ...


def _keywords(**rest: int) -> None: ...


def _positional(rest: int, /) -> None: ...


@for_each("body", [_rest, _keywords, _positional])
def test_an_exposed_task_names_its_arguments(body: Any) -> None:
    """What cannot be given by name cannot be checked, so an exposed task that takes it is refused; others may."""
    app = app_with()
    define: Any = app.task  # the published types know no task that a base class gives options
    define(name="closed", shared=False, base=onejob.Task)(body)
    app.finalize()
    with pytest.raises(ConfigurationError, match="task open is exposed"):
        define(name="open", shared=False, lazy=False, base=onejob.Task, expose=True)(body)


SECRETS = {"onejob_webhook_secrets": ["whsec_" + "A" * 40]}


@for_each(
    "settings, url, why",
    [
        ({}, "https://hooks.example/", "onejob_webhook_secrets"),
        (SECRETS, "http://hooks.example/", "https on port 443"),
        (SECRETS, "https://127.1/", "not public"),
        (SECRETS, "https://user@hooks.example/", "without a user"),
        (SECRETS, 7, "a string of at most"),
        ({"onejob_webhook_ports": ["443"]}, None, "onejob_webhook_ports"),
    ],
)
def test_a_webhook_that_cannot_be_sent_is_refused(settings: dict[str, Any], url: Any, why: str) -> None:
    """A task whose webhook could not be signed or sent, or settings of webhooks that cannot work, are refused."""
    with pytest.raises(ConfigurationError, match=why):
        define(app_with(onejob_store="sqlite:///unused.db", **settings), webhook_url=url)
    valid = "https://hooks.example/"
    assert define(app_with(onejob_store="sqlite:///unused.db", **SECRETS), webhook_url=valid).webhook_url == valid


def test_the_task_name_of_webhooks_is_reserved() -> None:
    """No task can have the reserved name of webhook jobs."""
    app = app_with(onejob_store="sqlite:///unused.db")

    @app.task(name="onejob.webhook", shared=False, base=onejob.Task)
    def webhook() -> None: ...

    with pytest.raises(ConfigurationError, match="reserved task name"):
        app.finalize()
