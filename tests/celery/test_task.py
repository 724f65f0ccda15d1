"""`onejob.task` defines Celery's own tasks, for one app or for all; each is bound at its first use."""

import ast
import gc
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import celery
import pytest
from celery import Celery

import onejob
from checks.project import PACKAGE
from onejob.celery.app_state import app_state_of
from onejob.celery.option_declarations import CELERY_OPTIONS
from onejob.celery.submission.call import parse_item
from tests.cases import for_each
from tests.stores.races import together


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Any]:
    app = Celery("typed", broker="memory://", set_as_current=False)
    app.conf.onejob_store = f"sqlite:///{tmp_path / 'ledger.db'}"
    yield app
    app_state_of(app).ledger.close()


def test_a_task_is_the_app_s_task(app: Any) -> None:
    """The decorator returns what `app.task` registers, with the options of both libraries, and calling it runs it."""

    @onejob.task(app, name="add", unique_on=["a"], lease=60, max_retries=7, shared=False)
    def add(a: int, b: int = 1) -> int:
        return a + b

    registered = app.tasks["add"]
    assert isinstance(add, onejob.Task)
    assert (add.name, add.max_retries, registered._onejob.lease) == ("add", 7, 60)
    assert add(1) == 2
    first, second = add.delay(1), add.delay(1, b=2)
    assert (first.outcome, second.outcome, second.id) == (onejob.Outcome.ADMITTED, onejob.Outcome.ATTACHED, first.id)


def test_equal_names_in_two_apps_are_two_tasks(app: Any, tmp_path: Path) -> None:
    """Tasks of equal names that two apps do not share have their own bodies, options and ledgers."""
    other = Celery("other", broker="memory://", set_as_current=False)
    other.conf.onejob_store = f"sqlite:///{tmp_path / 'other.db'}"
    found = []
    for each, unique_on in ((app, None), (other, ["a"])):

        @onejob.task(each, name="add", unique_on=unique_on, shared=False)
        def add(a: int, b: int = 1, main: str = each.main) -> str:
            return main + str(a + b)

    for each in (other, app):
        each.finalize()
        task: Any = each.tasks["add"]
        found.append((task(1), task.unique_on, [task.delay(1, b=b).outcome for b in (1, 2)]))
    admitted, attached = onejob.Outcome.ADMITTED, onejob.Outcome.ATTACHED
    assert found == [("other2", ["a"], [admitted, attached]), ("typed2", None, [admitted, admitted])]
    app_state_of(other).ledger.close()


def test_a_task_without_an_app_belongs_to_every_app(tmp_path: Path) -> None:
    """Without an app the task is a shared one: the current app's, and one per app."""
    gc.collect()  # apps of earlier tests, some with wrong settings, would get the task, too

    @onejob.task(name="everywhere", unique_on=[])
    def everywhere(number: int) -> int:
        return number

    apps: list[Any] = [Celery(name, broker="memory://", set_as_current=False) for name in ("one", "two")]
    for number, app in enumerate(apps):
        app.conf.onejob_store = f"sqlite:///{tmp_path / str(number)}.db"
        app.finalize()
        app.set_current()
        assert everywhere.app is app
        assert isinstance(app.tasks["everywhere"], onejob.Task)
        assert everywhere.delay(1).outcome is onejob.Outcome.ADMITTED
        assert everywhere.delay(2).outcome is onejob.Outcome.ATTACHED
        app_state_of(app).ledger.close()


@for_each("wrong", [
    {"base": object}, {"base": "Task"}, {"unique_onn": ["a"]}, {"uniq": ["a"]}, {"team": "billing"},
    {"unique_on": ["b"]}, {"unique_until": "started", "unique_for": 60}, {"on_duplicate": "ignore"},
    {"expose": "yes"}, {"permanent_for": ValueError},
])  # fmt: skip
def test_a_definition_that_cannot_work_is_refused(app: Any, wrong: dict[str, Any]) -> None:
    """A wrong base, an unknown name and options that cannot work raise at the definition, not at the first use."""

    def body(a: int) -> int:
        return a

    decorate: Any = onejob.task
    with pytest.raises(onejob.errors.ConfigurationError):
        decorate(app, shared=False, **wrong)(body)
    assert not app.finalized


def test_a_generator_is_refused(app: Any) -> None:
    """A body that is a generator, asynchronous or not, is refused, with either decorator."""

    async def agenerator(a: int) -> AsyncIterator[int]:
        yield a

    def generator(a: int) -> Iterator[int]:
        yield a

    bodies: list[Any] = [agenerator, generator]
    for body in bodies:
        with pytest.raises(onejob.errors.ConfigurationError, match="is a generator"):
            onejob.task(app, shared=False)(body)
    app.task(base=onejob.Task, shared=False)(bodies[0])
    with pytest.raises(onejob.errors.ConfigurationError, match="is a generator"):
        app.finalize()


def test_a_coroutine_has_models_by_typed(app: Any) -> None:
    """`pydantic=True` of Celery, which would not convert what a coroutine returns, is refused."""

    async def body(a: int) -> int:
        return a

    app.task(base=onejob.Task, shared=False, pydantic=True)(body)
    if hasattr(celery.Task, "_dump_pydantic_arguments"):
        with pytest.raises(onejob.errors.ConfigurationError, match="typed=True"):
            app.finalize()


def test_the_options_are_those_that_type_checkers_know() -> None:
    """What `onejob.task` accepts besides the attributes of the class is what its type names."""
    types = ast.parse(
        (PACKAGE / "celery" / "submission" / "call_types.py").read_text(encoding="utf-8")
    )  # not made to be imported
    (keywords,) = [node for node in types.body if isinstance(node, ast.ClassDef) and node.name == "TaskKeywords"]
    names = {ast.unparse(node.target) for node in keywords.body if isinstance(node, ast.AnnAssign)}
    assert {name for name in names if not hasattr(onejob.Task, name)} == CELERY_OPTIONS


def test_a_bare_decorator_is_refused() -> None:
    """`@onejob.task` without parentheses names what to write."""

    def body() -> None: ...

    decorate: Any = onejob.task
    with pytest.raises(onejob.errors.ConfigurationError, match=r"@onejob.task\(app\)"):
        decorate(body)


def test_signatures_are_items(app: Any) -> None:
    """`submit_many` takes signatures of the task, and refuses those of another task or with options."""

    @onejob.task(app, name="add", shared=False)
    def add(a: int, b: int = 1) -> int:
        return a + b

    @onejob.task(app, name="other", shared=False)
    def other(task: int) -> int:
        return task

    first, second, third = add.submit_many([add.s(1, 2), (1, 2), {"a": 1, "b": 2}])
    assert first.id == second.id == third.id
    assert parse_item(app.tasks["other"], 0, {"task": 3}) == ((), {"task": 3})
    for wrong in (other.s(1), add.s(1).set(countdown=3)):
        with pytest.raises(onejob.errors.InvalidArgumentsError, match="item 0"):
            add.submit_many([wrong])


@for_each("namespace, settings", [
    (None, {}), (None, {"task_always_eager": True}), (None, {"CELERY_ALWAYS_EAGER": True}),
    ("CELERY", {"CELERY_TASK_ALWAYS_EAGER": True}), ("SHOP", {"SHOP_TASK_ALWAYS_EAGER": True}),
    ("shop", {"shop_task_always_eager": True}), ("Shop", {"SHOP_TASK_ALWAYS_EAGER": True}),
])  # fmt: skip
def test_it_is_what_celery_reads(namespace: str | None, settings: dict[str, Any]) -> None:
    """Under every spelling of the setting, before the configuration is loaded and after each change, it is Celery's."""
    app: Any = Celery("eager", set_as_current=False)
    app.config_from_object(settings, namespace=namespace)
    first = app_state_of(app).is_eager
    assert first == bool(app.conf.task_always_eager)
    for value in (True, False, True):
        app.conf.task_always_eager = value
        assert app_state_of(app).is_eager is value
    app.config_from_object({})
    assert app_state_of(app).is_eager == bool(app.conf.task_always_eager)
    app.conf.update(task_always_eager=True)
    assert app_state_of(app).is_eager


THREADS = 32


def test_first_submissions_from_many_threads_are_one_job(tmp_path: Path) -> None:
    """The concurrent first submissions of a process are one job, also while its task is being bound."""
    for attempt in range(10):
        app = celery.Celery(f"shop{attempt}", broker="memory://", set_as_current=False)
        app.conf.onejob_store = f"sqlite:///{tmp_path / f'ledger{attempt}.db'}"

        @app.task(base=onejob.Task, name="shop.invoice", shared=False)
        def invoice(order_id: int) -> None:
            """Do nothing."""

        results: list[Any] = together(*[partial(invoice.delay, 42)] * THREADS)
        assert Counter(result.outcome for result in results) == {"admitted": 1, "attached": THREADS - 1}
        app_state_of(app).ledger.close()
