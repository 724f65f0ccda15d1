"""Invalid options raise an error at the task's definition or the worker's start, never during a job."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import celery
import pytest

import onejob
from onejob import ConfigurationError, InvalidArgumentsError, State, errors
from onejob.celery.app_state import app_state_of
from onejob.celery.options import options_of
from onejob.celery.submission import prepare_submission
from onejob.jobs.policy import DAY
from onejob.jobs.records import Query
from onejob.uniqueness.window import Window
from tests.cases import for_each
from tests.celery.harness import await_

if TYPE_CHECKING:
    from pathlib import Path

    from tests.celery.harness import House
    from tests.services import PostgresServer


def app_with(**settings: Any) -> celery.Celery:
    """Return an app with settings."""
    return celery.Celery("defined", changes={"broker_url": "memory://", **settings}, set_as_current=False)


def define(app: celery.Celery, **options: Any) -> Any:
    """Define a task on an app, and bind it."""

    @app.task(name="defined", shared=False, base=onejob.Task, **options)
    def defined(a: int, b: int = 2) -> int:
        return a + b

    app.finalize()
    return app.tasks["defined"]


@for_each(
    "options",
    [
        {"unique_on": ["c"]},
        {"unique_on": "a"},
        {"unique_on": 7},
        {"lease": 0},
        {"lease": -1},
        {"lease": "30"},
        {"lease": float("nan")},
        {"lease": 19.9},
        {"permanent_for": ValueError},
        {"unique_until": "begun"},
        {"unique_until": None},
        {"unique_for": 0},
        {"unique_for": -1},
        {"unique_for": float("inf")},
        {"unique_for": True},
        {"unique_for": "day"},
        {"unique_for": "year@UTC"},
        {"unique_for": "day@Nowhere/Land"},
        {"unique_for": "day@../../etc/passwd"},
        {"unique_for": 60, "unique_until": "started"},
        {"unique_for": 86_401},
        {"unique_for": "week@UTC"},
        {"on_duplicate": "ignore"},
        {"on_duplicate": None},
        {"on_duplicate": "run_again", "unique_until": "started"},
        {"on_duplicate": "run_again", "unique_for": 60},
        {"max_wait": 60},
        {"on_duplicate": "run_again", "max_wait": 60},
        {"on_duplicate": "replace", "max_wait": 0},
        {"on_duplicate": "replace", "max_wait": "long"},
        {"permanent_for": [ValueError]},
        {"permanent_for": ("ValueError",)},
        {"permanent_for": (KeyboardInterrupt,)},
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    """A task option that cannot work raises `ConfigurationError` when the task is defined."""
    with pytest.raises(ConfigurationError):
        define(app_with(), **options)


@for_each(
    "settings",
    [
        {"onejob_lease": 5, "onejob_heartbeat": 3},
        {"onejob_lease": 0},
        {"onejob_heartbeat": "often"},
        {"onejob_sweep": -1},
        {"onejob_publish_timeout": float("inf")},
        {"onejob_shutdown_grace": -1},
        {"onejob_key_retention": 0},
        {"onejob_tombstone_retention": -1},
        {"onejob_namespace": "a b"},
        {"onejob_namespace": "Shop", "onejob_store": "postgresql://localhost/shop"},
        {"onejob_retention": 3600},
        {"onejob_retention": {"completed": 0}},
        {"onejob_retention": {"failed": "long"}},
        {"onejob_retention": {"running": 60}},
        {"onejob_retention": {"done": 60}},
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    """A setting that cannot work raises `ConfigurationError` when the first task is bound."""
    with pytest.raises(ConfigurationError):
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


@pytest.mark.parametrize(
    ("settings", "store"),
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


def test_two_apps_have_two_ledgers(tmp_path: Path) -> None:
    """Every app has the ledger of its own settings, however many there are in a process."""
    apps = [app_with(onejob_store=f"sqlite:///{tmp_path / name}") for name in ("a.db", "b.db")]
    first, second = (app_state_of(app).ledger for app in apps)
    assert first is not second
    assert [app_state_of(app).ledger for app in apps] == [first, second]


def test_a_decorated_task_keeps_its_signature() -> None:
    """`bind`, `autoretry_for` and wrappers leave the identity of a call to the arguments that a user wrote."""
    app = app_with(onejob_store="sqlite:///unused.db")

    @app.task(name="bound", shared=False, base=onejob.Task, bind=True, unique_on=["b"], autoretry_for=(ValueError,))
    def bound(self: Any, a: int, b: int = 2) -> None: ...

    task: Any = app.tasks["bound"]
    identity = options_of(task).identifier.identity
    assert identity((1,), {}) == identity((5, 2), {}) == identity((), {"a": 3, "b": 2})
    assert identity((1, 3), {}) != identity((1,), {})


def test_a_class_is_a_task_too(tmp_path: Path) -> None:
    """A class that derives from `onejob.Task` and is registered takes its options from its attributes."""

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


def test_nameless_classes_are_different_tasks() -> None:
    """Equal calls of two classes that Celery names, because they do not name themselves, are different jobs."""

    class First(onejob.Task):
        def run(self, a: int) -> None: ...

    class Second(onejob.Task):
        def run(self, a: int) -> None: ...

    app = app_with(onejob_store="sqlite:///unused.db")
    first, second = (options_of(app.register_task(task())) for task in (First, Second))
    assert first.identifier.identity((1,), {}) != second.identifier.identity((1,), {})


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


def test_a_worker_refuses_a_store_that_is_not_there(house: House) -> None:
    """A worker whose ledger cannot be reached exits at its start with the reason."""
    worker = house.start("-c", "1", onejob_store=f"sqlite:///{house.directory / 'nowhere' / 'l.db'}")
    worker.await_end()
    assert "nowhere" in worker.text
    assert "ready." not in worker.text


def test_retention_is_a_setting(tmp_path: Path) -> None:
    """What is set for one final state holds for it, and the other states keep their defaults."""
    app = app_with(onejob_store=f"sqlite:///{tmp_path / 'ledger.db'}", onejob_retention={"failed": 60})
    expected = {State.COMPLETED: DAY, State.CANCELED: DAY, State.FAILED: 60}
    assert app_state_of(app).ledger.policy.retention == expected


@pytest.mark.parametrize("seconds", [0, 60.0])
def test_how_long_a_purge_is_remembered_is_a_setting(tmp_path: Path, seconds: float) -> None:
    """A ledger remembers purged jobs for as long as is set, a week by default."""
    app = app_with(onejob_store=f"sqlite:///{tmp_path / 'ledger.db'}", onejob_tombstone_retention=seconds)
    assert app_state_of(app).ledger.policy.tombstone_retention == seconds
    assert app_state_of(app_with()).settings.tombstone_retention == 7 * DAY


def test_a_worker_refuses_a_database_without_a_ledger(house: House, postgres_server: PostgresServer) -> None:
    """A worker whose database has no ledger yet exits at its start with the command that creates one."""
    worker = house.start("-c", "1", onejob_store=postgres_server.url, onejob_namespace="not_there")
    worker.await_end()
    assert "migrate up" in worker.text
    assert "ready." not in worker.text


def test_a_worker_refuses_an_in_memory_broker_under_prefork(house: House) -> None:
    """A prefork worker on an in-memory broker exits at its start with the pool to use."""
    worker = house.start("-c", "1", broker_url="memory://", result_backend=None)
    worker.await_end()
    assert "--pool=threads or --pool=solo" in worker.text


def test_a_worker_without_onejob_tasks_needs_no_ledger(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """An app of plain Celery tasks starts no heartbeat and no sweeper: the first onejob task installs the step."""
    monkeypatch.setattr(celery._state, "_on_app_finalizers", set())  # tasks that other tests share
    app = app_with()

    @app.task(name="plain-only", shared=False)
    def plain() -> None: ...

    app.finalize()
    assert [step for step in app.steps["worker"] if "onejob" in str(step)] == []
    define(app)
    assert len([step for step in app.steps["worker"] if "onejob" in str(step)]) == 1
    await_(lambda: house.queued_messages() == 0)


@pytest.mark.parametrize("option", ["expose", "requires_key"])
@pytest.mark.parametrize("given", [1, "yes", None])
def test_a_flag_is_yes_or_no(option: str, given: object) -> None:
    """`expose` and `requires_key` must be booleans: a value that is only truthy is refused."""
    with pytest.raises(ConfigurationError, match=f"{option} of task defined"):
        define(app_with(), **{option: given})


def _rest(*rest: int) -> None: ...


def _keywords(**rest: int) -> None: ...


def _positional(rest: int, /) -> None: ...


@pytest.mark.parametrize("body", [_rest, _keywords, _positional])
def test_an_exposed_task_names_its_arguments(body: Any) -> None:
    """What cannot be given by name cannot be checked, so an exposed task that takes it is refused; others may."""
    app = app_with()
    define: Any = app.task  # the published types know no task that a base class gives options
    define(name="closed", shared=False, base=onejob.Task)(body)
    app.finalize()
    with pytest.raises(ConfigurationError, match="task open is exposed"):
        define(name="open", shared=False, lazy=False, base=onejob.Task, expose=True)(body)


SECRETS = {"onejob_webhook_secrets": ["whsec_" + "A" * 40]}


@pytest.mark.parametrize(
    ("settings", "url", "why"),
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


def test_a_valid_webhook_url_is_accepted() -> None:
    """A task with a valid webhook URL can be defined."""
    app = app_with(onejob_store="sqlite:///unused.db", **SECRETS)
    assert define(app, webhook_url="https://hooks.example/").webhook_url == "https://hooks.example/"


def test_the_task_name_of_webhooks_is_reserved() -> None:
    """No task can have the reserved name of webhook jobs."""
    app = app_with(onejob_store="sqlite:///unused.db")

    @app.task(name="onejob.webhook", shared=False, base=onejob.Task)
    def webhook() -> None: ...

    with pytest.raises(ConfigurationError, match="reserved task name"):
        app.finalize()
